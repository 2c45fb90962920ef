"""Attention of rows that share segments (kernels/attend_shared.cu): the kernel's launch, for one layer of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.compile import kernel, kernel_of, launch
from polykv.fast.cuda.lift import levels_there
from polykv.fast.cuda.shared_config import SharedConfig
from polykv.types import F32, KVArena

LOG2E = 1.4426950408889634
ARCH = "sm_90a"


@dataclass(frozen=True, eq=False)
class SharedStep:
    """Items of shared segments on the device; first: partial results of others that lie before theirs."""

    made: SharedConfig
    items: Any
    first: int


@dataclass(frozen=True, eq=False)
class Places:
    """What both ways of a step read and write: rows, positions and blocks of segments, partial results; and
    the first cell that is seen."""

    rows: Any
    positions: Any
    blocks: Any
    sums: Any
    weights: Any
    seen_from: int


def run_shared(
    step: SharedStep, at: Places, q: F32, k: KVArena, v: KVArena, *, scale: float, window: int, softcap: float
) -> None:
    """Partial results of queries [R, H, D'] in the space of the keys."""
    made, heads = step.made, q.shape[1]
    defines = made.defines()
    compiled = (
        kernel_of(ARCH, "attend_shared.cu", "attend_shared", **defines)
        if made.wgmma
        else kernel("attend_shared.cu", "attend_shared", **defines)
    )
    data = k.fields["data"], v.fields["data"]
    arguments = (
        *(q, step.items, at.rows, at.positions, at.blocks, *data),
        *(np.int64(d.strides[0]) for d in data),
        *(np.int64(d.strides[1]) for d in data),
        *(k.block_size.bit_length() - 1, heads, heads // k.n_kv),
        *map(levels_there, (k, v)),
        *(scale * LOG2E, softcap, window, at.seen_from, at.sums[step.first :], at.weights[step.first :]),
    )
    launch(compiled, (len(step.items), k.n_kv, 1), (made.threads,), arguments, shared=made.shared)
