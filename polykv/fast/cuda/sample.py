"""Choosing tokens (twin of `polykv.ref.sampling`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.arrays import asarray, check, output
from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.types import F32, I32

THREADS = 256


def penalize(logits: F32, recent: list[I32], penalty: F32, *, out: F32 | None = None) -> F32:
    """Logits [R, V] of the ids in recent[r], arrays of the host or the device, are divided by penalty[r] when positive,
    multiplied when negative."""
    cp = cupy()
    rows, vocabulary = check("logits", logits, np.float32, -1, -1).shape
    check("penalty", penalty, np.float32, rows)
    y: F32 = output(out, logits.shape)
    lengths = [len(ids) for ids in recent]
    count = sum(lengths)
    if count == 0:
        _copy(y, logits)
        return y
    # Which row an id belongs to is known on the host: lengths are.
    row_of = asarray(np.repeat(np.arange(rows, dtype=np.int32), lengths))
    ids = cp.concatenate([cp.asarray(i, np.int32) for i in recent])
    values = cp.empty(count, np.float32)
    grid = (-(-count // THREADS),)
    arguments: tuple[Any, ...] = (values, logits, ids, row_of, penalty, count, vocabulary)
    launch(kernel("penalize.cu", "penalized"), grid, (THREADS,), arguments)
    _copy(y, logits)
    launch(kernel("scatter.cu", "scatter"), grid, (THREADS,), (y, values, ids, row_of, count, vocabulary))
    return y


def _copy(y: Any, x: Any) -> None:
    """x to y, unless it is there already."""
    if y is not x:
        y[...] = x


def sample(logits: F32, temperature: F32, top_k: I32, top_p: F32, min_p: F32, u: npt.NDArray[np.float64]) -> I32:
    """One token id per row of logits [R, V]; temperature 0 takes the largest logit (lowest id on ties).

    The token of a row with NaN is the first id that has it.
    """
    rows, vocabulary = check("logits", logits, np.float32, -1, -1).shape
    tokens: I32 = cupy().empty(rows, np.int32)
    arguments = (
        check("temperature", temperature, np.float32, rows),
        check("top_k", top_k, np.int32, rows),
        check("top_p", top_p, np.float32, rows),
        check("min_p", min_p, np.float32, rows),
        check("u", u, np.float64, rows),
    )
    launch(kernel("sample.cu", "sample"), (rows,), (1024,), (tokens, logits, *arguments, vocabulary))
    return tokens
