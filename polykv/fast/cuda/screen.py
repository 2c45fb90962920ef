"""greedy, prepare_head (twins of `polykv.ref.screen`). There is no screen: all logits are computed, and searched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.head import head
from polykv.types import F32, Activations, Greedy, HeadWeights


def greedy(h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
    """The lowest id with the largest logit of every row h [R, E]. room [R, V]: memory of the device
    for the logits; that of the host is not used."""
    cp = cupy()
    there = None if isinstance(room, np.ndarray) else room
    logits = head(h, w, activations=activations, out=there)
    rows, vocabulary = logits.shape
    found = cp.empty((2, rows), np.int32)
    launch(kernel("greedy.cu", "greedy"), (rows,), (1024,), (found[0], found[1], logits, vocabulary))
    return Greedy(found[0], found[1].view(np.float32), np.full(rows, vocabulary, np.int32))


def prepare_head(w: HeadWeights, inverse: F32, *, converted: Callable[[int], None]) -> HeadWeights:
    """The head as it is: nothing is prepared, nothing converted."""
    return w
