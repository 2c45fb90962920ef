"""Which segments of a step are attended to in which way, and the items of both.

A segment that many queries of a K/V head share is lifted once for up to 128 of them (kernels/attend_shared.cu); others
are read for every eight (kernels/attend.cu). Partial results lie one after the other, and one kernel joins them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.fast.cuda.attend_config import Config
from polykv.fast.cuda.attend_plan import QUERIES as SET
from polykv.fast.cuda.attend_plan import Plan, Which, joined, plan
from polykv.fast.cuda.device import device
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.shared_config import QUERIES, SharedConfig, shared_config
from polykv.types import I32, Codec, Segments

# Queries of a segment that share a K/V head, and its cells, from which on it is lifted; more of trellis types, whose
# lifting takes longer than all products.
LEAST_QUERIES, LEAST_OF_PATHS, LEAST_CELLS = 32, 72, 1024
# The one compute capability with products of warpgroups.
WARPGROUPS = (9, 0)


@dataclass(frozen=True, eq=False)
class Shared:
    """How kernels are compiled for segments that are lifted, and which these are."""

    made: SharedConfig
    which: Which


@dataclass(frozen=True, eq=False)
class Plans:
    """Items of segments that are read for every eight queries, and of those that are lifted, if there are any."""

    few: Plan
    shared: Plan | None

    def lists(self, base: int) -> tuple[I32, I32]:
        """ptr and parts of all partial results; those of shared segments begin at `base`."""
        if self.shared is None:
            return self.few.ptr, self.few.parts
        return joined(self.few.cut, self.shared.cut, base)


def shared_of(
    segments: Segments, k: Codec, v: Codec, heads: int, n_kv: int, head_dim: int, softcap: bool
) -> Shared | None:
    """Segments that are lifted; None if no segment is."""
    group, kinds = heads // n_kv, (kind_of(k), kind_of(v))
    least = LEAST_OF_PATHS if any(kind.path for kind in kinds) else LEAST_QUERIES
    which = (np.diff(segments.row_ptr) * group >= least) & (segments.length >= LEAST_CELLS)
    if k.centered or not which.any() or group > QUERIES:
        return None
    found = device()
    made = shared_config(
        *(*kinds, head_dim),
        softcap=softcap,
        limit=found.shared,
        one_table=same_table(k, v),
        wgmma=found.capability == WARPGROUPS,
    )
    return None if made is None else Shared(made, which)


def plans(
    segments: Segments,
    made: Config,
    shared: Shared | None,
    heads: int,
    n_kv: int,
    window: int,
    slots: int | None = None,
) -> Plans:
    """The items of a step; slots: blocks of the kernel for few queries that run at once, if not as many as fit."""
    slots = device().processors * made.ctas if slots is None else slots
    how = {"sets": made.sets, "turn": made.turn, "slots": slots, "teams": made.teams}
    if shared is None:
        return Plans(plan(segments, heads, n_kv, window, **how), None)  # type: ignore[arg-type]
    few = plan(segments, heads, n_kv, window, **how, only=~shared.which)
    turn, processors = shared.made.turn, device().processors
    of = {"sets": QUERIES // SET, "turn": turn, "slots": processors, "teams": 1, "only": shared.which}
    return Plans(few, plan(segments, heads, n_kv, window, **of))  # type: ignore[arg-type]
