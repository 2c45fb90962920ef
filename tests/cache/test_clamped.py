"""Clamped vectors are found in what the cache holds, whatever the type, and told."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_llm import tiny_llm

from polykv.cache.clamped import at_limit
from polykv.cache.sequence import Sequence
from polykv.types import Slots

TYPES = ["f16", "q8_0", "q6_0", "q5_1", "q4_0", "turbo8", "turbo4", "turbo3", "turbo2_tcq", "q4_0+r", "iq4_nl"]


@pytest.mark.parametrize("backend", ["ref", "cpu"])
@pytest.mark.parametrize("kv", TYPES)
def test_clamped_vectors_are_counted(kv: str, backend: str) -> None:
    llm = tiny_llm(kv=kv, backend=backend)
    assert at_limit(llm.cache) == {"K": 0, "V": 0}
    llm.generate([5, 6, 7, 8, 9], max_tokens=2)
    assert at_limit(llm.cache) == {"K": 0, "V": 0} and not any("clamped" in n for n in llm.notes)
    arena = llm.cache.layer(1).v
    x = np.ones((3, arena.n_kv, arena.head_dim), np.float32)
    # Two vectors of one token each; of one of them a single head. Beyond what the coarsest scale can reach.
    x[0] *= 1e9
    x[2, 0] = -1e9
    sequence = Sequence(llm.cache)
    slots = sequence.extend([1, 2, 3])[llm.cache.group_of(1)]
    llm.ops.kv_append(arena, x, Slots(slots.blocks, slots.offsets))
    assert at_limit(llm.cache) == {"K": 0, "V": arena.n_kv + 1}
    assert any(n.startswith(f"V: {arena.n_kv + 1} stored vectors are at the limit") for n in llm.notes)


@pytest.mark.parametrize("kv", ["f32", "bf16"])
def test_wide_floats_have_no_limit(kv: str) -> None:
    llm = tiny_llm(kv=kv)
    arena = llm.cache.layer(0).k
    slots = Sequence(llm.cache).extend([1])[llm.cache.group_of(0)]
    llm.ops.kv_append(arena, np.full((1, arena.n_kv, arena.head_dim), 1e9, np.float32), slots)
    assert at_limit(llm.cache) == {"K": 0, "V": 0}
