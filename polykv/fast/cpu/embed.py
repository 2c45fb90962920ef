"""Token embeddings: rows of the packed embedding matrix (twin of `polykv.ref.composites.embed`)."""

from __future__ import annotations

from polykv.fast.cpu.dequantize import scaled_rows
from polykv.fast.cpu.lines import aligned_floats
from polykv.types import F32, I32, QuantTensor


def embed(w: QuantTensor, ids: I32, scale: float) -> F32:
    """Rows `ids` of the embedding matrix times scale, [R, E]."""
    return scaled_rows(w, ids, scale, aligned_floats(len(ids), w.cols))
