"""Which K/V types are listed and measured, and what differs for those that only hold K.

Centered keys (`+c`) subtract the mean of 64 positions, so their cells are blocks of that many, and V has the same type
without it (docs/CENTERED.md).
"""

from __future__ import annotations

from polykv.cache.codecs import CODECS, VARIANTS, codec
from polykv.ops import BACKENDS, Limits, load
from polykv.types import UNIT, Codec

# Centering is for types with few bits; more have no need of it.
FEW_BITS = 4


def known() -> list[Codec]:
    """All types but f32, which exists for tests: plain names, scalar types in rotated space (+r), and rotated types of
    few bits with the mean of keys taken off (+c)."""
    plain = [c for c in CODECS.values() if c.name != "f32"]
    turned = [codec(name) for name in VARIANTS]
    centered = [codec(f"{c.name}+c") for c in (*plain, *turned) if c.rotated and c.bits <= FEW_BITS]
    return [*plain, *turned, *centered]


def for_values(c: Codec) -> Codec:
    """The type that V has beside K of this type: the same, not centered."""
    return codec(c.name.removesuffix("+c"))


def block_size(c: Codec, limits: Limits) -> int:
    """Cells of a block that holds this type in a backend."""
    return UNIT if c.centered else limits.preferred_block()


def runs(c: Codec, head_dim: int) -> list[str]:
    """Backends that store and read K of this type, with V of the same if it can be."""
    v, backends = for_values(c), {b: load(b) for b in BACKENDS}
    return [
        b
        for b, ops in backends.items()
        if ops.supports_kv(c, v, head_dim, block_size(c, ops)) is None
        and not (c.centered and ops.supports_stages() is not None)
    ]


def bits(c: Codec, head_dim: int) -> float:
    """Bits in memory per value of a head, everything counted: codes, scales, padding, means."""
    return 8 * (c.packed_bytes(head_dim) + c.mean_bytes(head_dim) / UNIT) / head_dim
