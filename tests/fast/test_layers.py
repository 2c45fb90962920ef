"""All layers in one job equal their blocks one by one, bit for bit, while arenas grow and stacks come and go."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import numpy as np
import pytest
from case_attention import Plan, Seq
from case_base import normal, seeded
from case_model import GEMMA, angles_of, stack_of
from interrupts import interrupt_at

from polykv.fast.cpu import attention_block, kv_alloc, kv_grow, kv_pack, layers, mlp_block
from polykv.fast.cpu.layers import _PLANS
from polykv.fast.cpu.team import set_threads, threads
from polykv.ops import load
from polykv.types import Activations, Stack

PLANS = (
    Plan((Seq(100, 1),)),
    Plan((Seq(129, 1), Seq(150, 1), Seq(190, 5)), shared=128),
    Plan((Seq(90, 32),)),
    Plan((Seq(90, 33),)),
)
TIERS = "q8_0/turbo3", "f16"
IDS = [f"{p.n_rows} rows" for p in PLANS]


class Step:
    """What a step of two cache groups passes to its layers."""

    def __init__(self, plan: Plan, seed: str) -> None:
        built = [plan.build(f"{seed}{group}") for group in range(2)]
        self.segments, self.slots = [b[0] for b in built], [b[1] for b in built]
        self.n_blocks = built[0][2], built[1][2]
        self.h = normal(seeded(seed), plan.n_rows, GEMMA.embd)
        self.angles = [angles_of(self.segments[0].positions * (1 + 2 * rope), GEMMA) for rope in range(2)]

    def together(self, stack: Stack, activations: Activations) -> np.ndarray:
        h = self.h.copy()
        layers(h, stack, self.angles, self.segments, self.slots, activations=activations)
        return h

    def one_by_one(self, stack: Stack, activations: Activations) -> np.ndarray:
        h = self.h.copy()
        for layer in stack.layers:
            g = layer.group
            where = self.angles[layer.rope], self.segments[g], self.slots[g]
            attention_block(h, layer.attention, layer.kv, *where, activations=activations)
            mlp_block(h, layer.mlp, activations=activations)
        return h


def codes(stack: Stack) -> list[bytes]:
    """What all arenas hold."""
    arenas = [a for layer in stack.layers for a in (layer.kv.k, layer.kv.v)]
    return [kv_pack(a, np.arange(a.n_blocks, dtype=np.int32)).tobytes() for a in arenas]


@pytest.mark.parametrize("activations", Activations)
@pytest.mark.parametrize("plan", PLANS, ids=IDS)
def test_equals_the_blocks(plan: Plan, activations: Activations) -> None:
    step, ops = Step(plan, "blocks"), load("cpu")
    ours, theirs = (stack_of(ops, step.n_blocks, plan.size, TIERS) for _ in range(2))
    before = threads()
    try:
        for n in (before, 1):
            set_threads(n)
            # Again and again: what was prepared for the stack must serve later steps.
            for _ in range(3):
                got, want = step.together(ours, activations), step.one_by_one(theirs, activations)
                assert np.array_equal(got, want) and not np.array_equal(got, step.h)
                assert codes(ours) == codes(theirs)
    finally:
        set_threads(before)


def test_sees_arenas_that_have_grown() -> None:
    plan, ops = PLANS[0], load("cpu")
    small, large = Step(plan, "a"), Step(Plan((Seq(700, 2),)), "b")
    ours, theirs = (stack_of(ops, small.n_blocks, plan.size, TIERS) for _ in range(2))
    small.together(ours, Activations.Q8)
    old = [weakref.ref(layer.kv.k.fields["data"]) for layer in ours.layers]
    for stack in (ours, theirs):
        for layer in stack.layers:
            for arena in (layer.kv.k, layer.kv.v):
                wanted = large.n_blocks[layer.group]
                arena.fields.update(kv_alloc(arena.codec, wanted, arena.n_kv, arena.head_dim, plan.size).fields)
    gc.collect()
    assert all(r() is None for r in old)
    assert np.array_equal(large.together(ours, Activations.Q8), large.one_by_one(theirs, Activations.Q8))


def test_sees_arenas_that_have_grown_after_ctrl_c_at_any_line() -> None:
    plan, ops = PLANS[0], load("cpu")
    small, large = Step(plan, "a"), Step(Plan((Seq(700, 2),)), "b")

    def grown() -> tuple[Stack, list[np.ndarray]]:
        """A stack that was in use before, and its old arrays, empty; they are kept, so that a step that still goes
        there is wrong and does not crash."""
        stack = stack_of(ops, small.n_blocks, plan.size, TIERS)
        small.together(stack, Activations.Q8)
        old = [arena.fields["data"] for layer in stack.layers for arena in (layer.kv.k, layer.kv.v)]
        for data in old:
            data[:] = 0
        for layer in stack.layers:
            kv_grow([layer.kv.k, layer.kv.v], large.n_blocks[layer.group])
        return stack, old

    want, n = large.one_by_one(grown()[0], Activations.Q8), 0
    while True:
        stack, old = grown()
        if not interrupt_at(n, partial(large.together, stack, Activations.Q8), ("/fast/cpu/layers.py",)):
            break
        got = large.together(stack, Activations.Q8)
        assert not any(data.any() for data in old), n
        assert np.array_equal(got, want), n
        n += 1
    assert n > 4 * len(stack.layers)


def test_forgets_stacks_that_are_gone() -> None:
    step = Step(PLANS[0], "gone")
    stack = stack_of(load("cpu"), step.n_blocks, 64, TIERS)
    step.together(stack, Activations.Q8)
    arena, count = weakref.ref(stack.layers[0].kv.k), len(_PLANS)
    del stack
    gc.collect()
    assert arena() is None and len(_PLANS) < count


def test_refuses_rows_that_it_cannot_change() -> None:
    step = Step(PLANS[0], "refused")
    stack = stack_of(load("cpu"), step.n_blocks, 64, TIERS)
    step.h = step.h.astype(np.float64)
    with pytest.raises(TypeError, match="in place"):
        step.together(stack, Activations.Q8)


def test_no_layers_change_nothing() -> None:
    step = Step(PLANS[0], "none")
    assert np.array_equal(step.together(Stack(()), Activations.Q8), step.h)
