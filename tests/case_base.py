"""What a case is, and the seeded data that cases are made of. Imports no pytest: benchmarks read the cases too."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polykv import ref
from polykv.model.gguf_check import SCALE_AT
from polykv.ops import AGREEMENT, Agreement, Limits, Ops
from polykv.ref import codec as codecs
from polykv.ref import rotation, trellis
from polykv.types import F32, U8, WEIGHT_BLOCK, Codec, Family, QuantTensor, WeightType

Arrays = tuple[np.ndarray, ...]
FLOATS = (WeightType.F32, WeightType.F16, WeightType.BF16)
# Own groups of all orders, whole groups of 128, padding (176), and sizes that are no multiples of 16 (72) or 8 (100).
HEAD_DIMS = (16, 64, 72, 80, 96, 100, 112, 128, 176, 192, 256, 320, 512, 576)
# Types, head_dim and block size, as `Limits.supports_kv` takes them.
Storage = tuple[Codec, Codec, int, int]

# Backends whose arrays are NumPy's; that of the GPU has tests of its own (tests/cuda).
HOSTS = ("ref", "cpu")


@dataclass(frozen=True)
class Case:
    """One operation on one input.

    prepare(ops) makes the seeded inputs and whatever state the backend needs, and returns the call; the call runs the
    operation and returns its results, every time the same. Benchmarks time the call alone.
    cost (class COST): squared error per vector of the codes that the call returned. tolerance: the largest error
    allowed, that of the agreement class unless the case has a reason for another. storage: K/V that the case needs and
    that a backend may refuse.
    """

    op: str
    id: str
    prepare: Callable[[Ops], Callable[[], Arrays]]
    cost: Callable[[Arrays], np.ndarray] | None = None
    # Negative: that of the class.
    tolerance: float = -1.0
    storage: Storage | None = None

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            object.__setattr__(self, "tolerance", self.agreement.value)

    @property
    def agreement(self) -> Agreement:
        return AGREEMENT[self.op]

    def refusal(self, limits: Limits) -> str | None:
        """Why a backend does not run this case; None = it must."""
        return None if self.storage is None else limits.supports_kv(*self.storage)

    def __str__(self) -> str:
        return f"{self.op}-{self.id}"


def runs(ops: Limits, *codecs: Codec) -> bool:
    """Whether a backend stores these types (at a common head_dim; sizes are another matter)."""
    return all(ops.supports_kv(c, c, 64, 64) is None for c in codecs)


def seeded(name: str) -> np.random.Generator:
    """A generator that depends on the case's own name: adding a case changes no other."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> F32:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def poison(*shape: int) -> F32:
    """An output buffer full of NaN: a value that an operation forgets to write is seen."""
    return np.full(shape, np.nan, np.float32)


def weight(rng: np.random.Generator, kind: WeightType, rows: int, cols: int, gain: float = 1.0) -> QuantTensor:
    """A random matrix of any type whose products with unit-variance rows have variance near gain^2."""
    values, size = WEIGHT_BLOCK[kind]
    if kind in FLOATS:
        x = normal(rng, rows, cols, scale=gain / np.sqrt(cols))
        if kind == WeightType.F16:
            return QuantTensor(kind, x.astype("<f2").view(np.uint8), cols)
        if kind == WeightType.BF16:
            return QuantTensor(kind, (x.view("<u4") >> 16).astype("<u2").view(np.uint8), cols)
        return QuantTensor(kind, x.view(np.uint8), cols)
    blocks = rng.integers(0, 256, (rows, cols // values, size), dtype=np.uint8)

    def set_scales(d: np.ndarray) -> QuantTensor:
        # Random bytes in an fp16 scale would give infinities.
        for at in SCALE_AT[kind]:
            blocks[..., at : at + 2] = d.astype("<f2").view(np.uint8)
        return QuantTensor(kind, blocks.reshape(rows, -1), cols)

    spread = rng.uniform(0.5, 1.5, (rows, cols // values, 1))
    have = float(np.std(ref.dequantize(set_scales(spread))))
    return set_scales(spread * gain / (have * np.sqrt(cols)))


def vectors(name: str, codec: Codec, kind: str, *shape: int) -> F32:
    """Vectors [..., D] of one kind: what a codec must survive."""
    rng = seeded(f"{name}-{codec.name}-{kind}-{shape}")
    if kind == "student":
        return rng.standard_t(3, shape).astype(np.float32)
    x = normal(rng, *shape)
    if kind == "outlier":
        x[..., rng.integers(shape[-1])] *= 100
    elif kind == "huge":
        x *= np.float32(1e6)
        x[..., 0] = 3e9
    elif kind == "tiny":
        x *= np.float32(1e-12)
    elif kind == "zeros":
        x.reshape(-1, shape[-1])[::5] = 0
    elif kind == "constant":
        x[...] = x[..., :1]
    return x


def stored(name: str, codec: Codec, *shape: int) -> U8:
    """Exchange bytes of random vectors [..., D], some of them zero: the same codes for every backend."""
    return _stored(name, codec, shape).copy()


def packed(name: str, codec: Codec, *shape: int) -> U8:
    """The same vectors as packed bytes."""
    return _packed(name, codec, shape).copy()


# Every backend of a case asks for the same codes.
@lru_cache(maxsize=32)
def _stored(name: str, codec: Codec, shape: tuple[int, ...]) -> U8:
    return ref.encode(codec, vectors(name, codec, "zeros", *shape))


@lru_cache(maxsize=32)
def _packed(name: str, codec: Codec, shape: tuple[int, ...]) -> U8:
    x, group = vectors(name, codec, "zeros", *shape), codec.group(shape[-1])
    if codec.family == Family.TRELLIS:
        return random_paths(codec, x, group, seeded(f"paths-{name}-{codec.name}-{shape}"))
    return codecs.encode_groups(codec, x, group)


def random_paths(codec: Codec, x: F32, group: int, rng: np.random.Generator) -> U8:
    """Packed bytes of vectors as long as x whose paths are random: any stream is a path, and these need no search.
    (What encoders choose has cases of its own.)"""
    groups = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % group)]).reshape(*x.shape[:-1], -1, group)
    bits = rng.integers(0, 2, (*groups.shape[:-1], codec.prefix_bits + codec.bits * group), dtype=np.uint8)
    stream = np.packbits(bits, axis=-1, bitorder="little")
    states = trellis.window(stream, np.arange(group), codec.bits, codec.prefix_bits)
    chosen = np.array(codec.centroids, np.float32)[states]
    norm = rotation.stored_norm(codec, rotation.pairwise(groups), chosen, rotation.pairwise)
    return np.concatenate([norm.view(np.uint8), stream], axis=-1).reshape(*x.shape[:-1], -1)


def squared_error(codec: Codec, x: F32, data: U8, group: int) -> np.ndarray:
    """Per vector, in float64, in the space in which codes are chosen; data: exchange bytes (group is codec.block), or
    packed bytes in groups of `group`.

    For a rotated codec that is the padded, rotated space: a value on a threshold costs the same with either code there,
    but not after the padding has been cut off.
    """
    if data.shape[-1] == codec.exchange_bytes(x.shape[-1]) and group == codec.block:
        data = codecs.without_reserved(codec, data)
    y = codecs.decode_groups(codec, data, x.shape[-1], group).astype(np.float64)
    want = x.astype(np.float64)
    if codec.rotated:
        want = rotation.rotate_in(codec, want, group if codec.unit_norm else codec.turn(x.shape[-1]))
    return np.square(y - want).sum(axis=-1)
