"""What the kernels can store and multiply (twin of `polykv.ref.limits`); asked before a model is opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.arrays import asnumpy
from polykv.fast.cuda.device import cupy, problem
from polykv.fast.cuda.layout import BLOCK, codec_limit
from polykv.fast.cuda.weights import FIELDS, FLOATS
from polykv.types import Codec, MatrixType


def supports_kv(k: Codec, v: Codec, head_dim: int, block_size: int) -> str | None:
    """None, or why K and V cannot be stored so. Any pair of types that are supported is."""
    return codec_limit(k, head_dim, block_size) or codec_limit(v, head_dim, block_size)


def supports_weight(kind: MatrixType) -> str | None:
    """None, or why matrices of this type cannot be multiplied."""
    return None if kind in FIELDS or kind in FLOATS else f"no kernel for {kind.name}"


def unusable() -> str | None:
    """None, or what CuPy, driver or GPU lack on this machine."""
    return problem()


def preferred_block() -> int:
    """Cells of a block: two tiles, which attention takes at a time."""
    return BLOCK


def supports_stages() -> str | None:
    """None: cells may be exact first and coded in whole units later."""
    return None


def fetch(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy on the host; waits for the kernels that write x. An array of the host as it is."""
    return x if isinstance(x, np.ndarray) else asnumpy(x)


def wait() -> None:
    """Until the kernels that were started are done."""
    cupy().cuda.get_current_stream().synchronize()


def runs_ahead() -> bool:
    """Yes: kernels are started, not waited for."""
    return True
