"""What the kernels can store and multiply (twin of `polykv.ref.limits`); asked before a model is opened."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from polykv.fast.cpu.kv_layout import codec_limit
from polykv.fast.cpu.linear_code import UNPACKERS
from polykv.types import Codec, MatrixType


def supports_kv(k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why K and V cannot be stored so. Any pair of types that are supported is."""
    return codec_limit(k, head_dim, block_size) or codec_limit(v, head_dim, block_size)


def supports_weight(kind: MatrixType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in UNPACKERS else f"no kernel for {kind.name}"


def unusable() -> str | None:
    """None: it runs wherever Python does."""
    return None


def preferred_block() -> int:
    """Cells of a block: few, so that agents share better (`polykv.config.CacheConfig`)."""
    return 8


def supports_stages() -> str | None:
    """None: cells may be exact first and coded in whole units later."""
    return None


def fetch(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as it is: all are NumPy's."""
    return x


def wait() -> None:
    """Nothing: operations return when they are done."""
