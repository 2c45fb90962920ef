"""greedy, prepare_head (twins of `polykv.ref.screen`). There is no screen: all logits are computed, and searched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.head import head
from polykv.types import F32, Activations, Greedy, HeadWeights


def greedy(h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
    """The lowest id with the largest logit of every row h [R, E]. room [R, V]: memory for the logits."""
    cp = cupy()
    logits = head(h, w, activations=activations, out=room)
    rows, vocabulary = logits.shape
    ids, best = cp.empty(rows, np.int32), cp.empty(rows, np.float32)
    launch(kernel("greedy.cu", "greedy"), (rows,), (1024,), (ids, best, logits, vocabulary))
    return Greedy(ids, best, cp.full(rows, vocabulary, np.int32))


def prepare_head(w: HeadWeights, inverse: F32, *, converted: Callable[[int], None]) -> HeadWeights:
    """The head as it is: nothing is prepared, nothing converted."""
    return w
