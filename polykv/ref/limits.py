"""What this backend can store and multiply: almost everything, since it only has to be right.

Asked before a model is opened, so that a refusal comes before any memory is taken (`polykv.ops.Limits`).
"""

from __future__ import annotations

from polykv.ref.lloyd_max import BITS
from polykv.ref.weights import DECODERS
from polykv.types import Codec, Family, MatrixType


def supports_kv(k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why K and V cannot be stored so."""
    for codec in (k, v):
        if codec.family == Family.LLOYD_MAX and codec.bits not in BITS:
            return f"{codec.name}: rotated types have {', '.join(map(str, BITS))} bits per value, not {codec.bits}"
    return None


def supports_weight(kind: MatrixType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in DECODERS else f"no decoder for {kind.name}"
