"""What the kernels can multiply (twin of `polykv.ref.limits`); asked before a model is opened."""

from __future__ import annotations

from polykv.fast.cuda.weights import FIELDS, FLOATS
from polykv.types import MatrixType


def supports_weight(kind: MatrixType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in FIELDS or kind in FLOATS else f"no kernel for {kind.name}"
