"""Rows of the embedding matrix (twin of `polykv.ref.composites.embed`)."""

from __future__ import annotations

from polykv.fast.cuda.dequantize import scaled_rows
from polykv.types import F32, I32, QuantTensor


def embed(w: QuantTensor, ids: I32, scale: float) -> F32:
    """Rows `ids` of the embedding matrix times scale, [R, E]. A row that W does not have is NaN."""
    return scaled_rows(w, ids, scale, None)
