"""What this backend can store and multiply: almost everything, since it only has to be right.

Asked before a model is opened, so that a refusal comes before any memory is taken (`polykv.ops.Limits`).
"""

from __future__ import annotations

from polykv.ref.weights import DECODERS
from polykv.types import Codec, WeightType


def supports_kv(k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why K and V cannot be stored so."""
    for codec in (k, v):
        if codec.rotated and codec.bits != 3:
            return f"{codec.name}: rotated types have 3 bits per value, not {codec.bits}"
    return None


def supports_weight(kind: WeightType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in DECODERS else f"no decoder for {kind.name}"
