"""All layers of a step: one job of the team where rows are few (twin of `polykv.ref.composites`).

Between two jobs Python needs some 10 us, twice per layer: at batch 1 a tenth of a step of a small model, in which the
other workers wait. So a step of few rows is one job, whose layers follow each other like phases. A step of many rows
stays a job per block: Python does not show there, and Ctrl-C need not wait for the whole step. So does a step over
layers with exact cells (docs/CENTERED.md).

    counters   every layer has its own, so that none is set back during the job
    memory     one part for attention and one for the MLP, so that a worker that comes late to one of them, with its
               copy of rows to norm, writes into nothing that the next one uses
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend import TILE
from polykv.fast.cpu.attend_job import SIZE
from polykv.fast.cpu.attend_views import longs
from polykv.fast.cpu.attention_block import attention_block, block_phases, memory_of, place, prepared, step_of
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.kv_layout import I64
from polykv.fast.cpu.kv_memory import heads, own
from polykv.fast.cpu.linear import address
from polykv.fast.cpu.lines import LINE
from polykv.fast.cpu.mlp import MEMORY, N, mlp_block, mlp_phases
from polykv.fast.cpu.mlp import H as MLP_H
from polykv.fast.cpu.mlp import memory_of as mlp_memory
from polykv.fast.cpu.mlp import prepared as prepared_mlp
from polykv.fast.cpu.simd import addr
from polykv.fast.cpu.team import TEAM
from polykv.types import F32, Activations, Angles, Layer, Segments, Slots, Stack

# Phases of the two blocks, and bytes of a layer's counters.
OF_ATTENTION, OF_MLP = 9, 4
COUNTERS = 2 * LINE * (OF_ATTENTION + OF_MLP)
# The integers of a job, and what is known of a layer beforehand: addresses of the four arrays of attention's weights,
# of the MLP's job, of the arrays of K and V (each followed by the bytes from head to head), and which of the step's
# jobs of attention is its own.
COUNT, JOBS, MLPS, ATTENTION, MLP = range(5)
WEIGHTS, MLP_JOB, K_AT, V_AT, KIND, FACTS = 0, 4, 5, 7, 9, 10


@kernel()
def _body(job_at: int, desk: int, worker: int, workers: int) -> None:
    job = longs(job_at, 5)
    mlps = longs(job[MLPS], job[COUNT])
    for i in range(job[COUNT]):
        at = desk + COUNTERS * i
        invoke(job[ATTENTION], (job[JOBS] + 8 * SIZE * i, at, worker, workers))
        invoke(job[MLP], (mlps[i], at + 2 * LINE * OF_ATTENTION, worker, workers))


@kernel()
def _assemble(facts: Any, bases: Any, jobs: Any, mlps: Any, h: Any, memory: int, for_mlp: int, workers: int) -> None:
    """Jobs [layers, SIZE] of the attention blocks, and the addresses [layers] of those of the MLPs, completed."""
    for i in range(facts.shape[0]):
        jobs[i] = longs(bases[facts[i, KIND]], SIZE)
        k, v = (facts[i, K_AT], facts[i, K_AT + 1]), (facts[i, V_AT], facts[i, V_AT + 1])
        place(jobs[i], addr(h), k, v, facts[i], memory, workers)
        mlps[i] = facts[i, MLP_JOB]
        mlp = longs(mlps[i], MEMORY + 1)
        mlp[MLP_H], mlp[N], mlp[MEMORY] = addr(h), h.shape[0], for_mlp


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """What stays the same from step to step: the facts of the layers; for each kind of attention its first layer; the
    arrays of K and V that the facts have addresses of; jobs to fill; and the widest Wo and MLP."""

    facts: I64
    kinds: tuple[Layer, ...]
    data: list[Any]
    jobs: I64
    mlps: I64
    wide: int
    hidden: int
    kept: tuple[Any, ...]


# Of stacks in use: a memo, gone with the stack. Its jobs are written and run under the team's lock.
_PLANS: WeakKeyDictionary[Stack, dict[Activations, _Plan]] = WeakKeyDictionary()


def _kind(layer: Layer) -> tuple[Any, ...]:
    """What decides a layer's job but weights and arrays."""
    w, kv = layer.attention, layer.kv
    return layer.group, layer.rope, w.n_heads, w.n_kv, w.head_dim, w.window, id(own(kv.k).geom), id(own(kv.v).geom)


def _plan(stack: Stack, activations: Activations) -> _Plan:
    found = _PLANS.get(stack)
    if found is None:
        found = _PLANS[stack] = {}
    if activations not in found:
        n, kinds = len(stack.layers), {_kind(layer): layer for layer in reversed(stack.layers)}
        which = {kind: i for i, kind in enumerate(kinds)}
        attention = [prepared(layer.attention, activations) for layer in stack.layers]
        mlp = [prepared_mlp(layer.mlp, activations) for layer in stack.layers]
        facts = np.zeros((n, FACTS), np.int64)
        for i, layer in enumerate(stack.layers):
            facts[i, :MLP_JOB] = attention[i][0]
            facts[i, MLP_JOB], facts[i, KIND] = mlp[i].address, which[_kind(layer)]
        wide = max(layer.attention.wo.cols for layer in stack.layers)
        hidden = max(layer.mlp.down.cols for layer in stack.layers)
        jobs, mlps = np.zeros((n, SIZE), np.int64), np.zeros(n, np.int64)
        kept = attention, mlp
        found[activations] = _Plan(facts, tuple(kinds.values()), [_gone] * 2 * n, jobs, mlps, wide, hidden, kept)
    return found[activations]


def _gone() -> None:
    """Like a reference to an array that is no more."""


def _refresh(plan: _Plan, stack: Stack) -> None:
    """Take the addresses of arrays that have been replaced: a pool that grows puts larger ones into its arenas."""
    for i, layer in enumerate(stack.layers):
        for side, arena in enumerate((layer.kv.k, layer.kv.v)):
            data = arena.fields["data"]
            if plan.data[2 * i + side]() is not data:
                at = K_AT + 2 * side
                plan.facts[i, at : at + 2] = address(heads(own(arena))), data.strides[1]
                # Last: after Ctrl-C between these lines the next step takes the address again.
                plan.data[2 * i + side] = ref(data)


def layers(
    h: F32,
    stack: Stack,
    angles: Sequence[Angles],
    segments: Sequence[Segments],
    slots: Sequence[Slots],
    *,
    activations: Activations,
) -> None:
    """Both blocks of all layers in order, h [R, E] in place."""
    n, width = h.shape
    # Layers with exact cells have two jobs each, which this one does not carry.
    if n > TILE or not stack.layers or any(layer.kv.exact is not None for layer in stack.layers):
        for layer in stack.layers:
            g = layer.group
            attention_block(
                h, layer.attention, layer.kv, angles[layer.rope], segments[g], slots[g], activations=activations
            )
            mlp_block(h, layer.mlp, activations=activations)
        return
    if h.dtype != np.float32 or not h.flags.c_contiguous:
        raise TypeError("layers add to h in place: it must be C-contiguous float32")
    team = TEAM
    with team.lock:
        plan, workers = _plan(stack, activations), team.workers
        _refresh(plan, stack)
        steps = []
        for layer in plan.kinds:
            g, w = layer.group, layer.attention
            shape = n, width, w.n_heads, w.n_kv, w.head_dim, w.window
            steps.append(step_of(segments[g], slots[g], angles[layer.rope], layer.kv, shape))
        bases = np.array([step.address for step in steps], np.int64)
        first = max(memory_of(step, plan.wide, workers) for step in steps)
        # In whole cache lines, as `memory` begins.
        first = -(-first // LINE) * LINE
        memory = team.memory(first + mlp_memory(n, width, plan.hidden, workers))
        _assemble(plan.facts, bases, plan.jobs, plan.mlps, h, memory, memory + first, workers)
        at = address(plan.jobs), address(plan.mlps), entry(block_phases, 4), entry(mlp_phases, 4)
        job = np.array((len(stack.layers), *at), np.int64)
        team.run(entry(_body, 4), address(job), len(stack.layers) * (OF_ATTENTION + OF_MLP))
