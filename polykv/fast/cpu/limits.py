"""What the kernels can store and multiply (twin of `polykv.ref.limits`); asked before a model is opened."""

from __future__ import annotations

from polykv.fast.cpu.kv_layout import codec_limit
from polykv.fast.cpu.linear_code import UNPACKERS
from polykv.types import Codec, MatrixType


def supports_kv(k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why K and V cannot be stored so. Any pair of types that are supported is."""
    return codec_limit(k, head_dim, block_size) or codec_limit(v, head_dim, block_size)


def supports_weight(kind: MatrixType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in UNPACKERS else f"no kernel for {kind.name}"
