"""The plan of a cache against what a pool allocates and what sequences use."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import PlainOps, make_pool, model, step
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv.cache.codecs import parse_tiers
from polykv.cache.plan import MemoryPlan, plan_memory
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.errors import ConfigError


def reserve(plan: MemoryPlan, pool: KVPool) -> None:
    for g, group in enumerate(plan.groups):
        pool.reserve(g, group.blocks)


@pytest.mark.parametrize(
    "tier", ["f32", "q8_0/turbo3", "f16/q4_0,1=turbo3,-1=q8_0", "turbo3+c/q8_0,sink=4", "f16,1=q8_0,recent=70"]
)
@pytest.mark.parametrize("head_dim", [64, 80, 256])
@pytest.mark.parametrize("kw", [{"ctx": 1}, {"ctx": 200}, {"ctx": 400, "agents": 5, "shared": 330, "chunk": 100}])
def test_plan_is_what_a_pool_allocates(ops: Any, tier: str, head_dim: int, kw: dict[str, int]) -> None:
    config = model((0, 96, 0), head_dim=head_dim, n_kv=2)
    plan = plan_memory(config, parse_tiers(tier, 3), block_size=32, ops=ops, **kw)
    pool = make_pool(ops, config, tier=tier)
    reserve(plan, pool)
    assert plan.nbytes == pool.nbytes == sum(x.k_nbytes + x.v_nbytes for x in plan.layers)
    for x in plan.layers:
        kv = pool.layer(x.layer)
        exact = (0, 0) if kv.exact is None else (kv.exact.k.nbytes, kv.exact.v.nbytes)
        assert (x.k_nbytes, x.v_nbytes) == (kv.k.nbytes + exact[0], kv.v.nbytes + exact[1])
        assert x.token_nbytes * kv.k.n_blocks * kv.k.block_size == kv.k.nbytes + kv.v.nbytes
    assert plan.nbytes == plan.shared_nbytes + plan.agents * plan.private_nbytes + sum(
        g.step * g.block_nbytes for g in plan.groups
    )


@settings(max_examples=80, deadline=None)
@given(
    shared=st.integers(0, 400),
    more=st.integers(1, 300),
    agents=st.integers(1, 4),
    window=st.integers(1, 200),
    chunk=st.integers(1, 150),
    tier=st.sampled_from(["f32", "f32,sink=4", "f32,sink=40,recent=100", "f32,1=f32,recent=1"]),
)
def test_agents_never_use_more_than_planned(
    shared: int, more: int, agents: int, window: int, chunk: int, tier: str
) -> None:
    """Prefill a document, fork, let every agent fill its context: the planned blocks suffice, to the block where
    there is no window."""
    config = model((0, window))
    ctx = shared + more
    plan = plan_memory(
        config,
        parse_tiers(tier, 2),
        ctx=ctx,
        agents=agents,
        shared=shared,
        block_size=32,
        chunk=chunk,
        ops=PlainOps(),
    )
    pool = make_pool(PlainOps(), config, tier=tier, max_tokens=1 << 14)
    reserve(plan, pool)
    doc = Sequence(pool)
    for i in range(0, shared, chunk):
        step(doc, [1] * min(chunk, shared - i))
    forks = [doc.fork() for _ in range(agents)]
    for i in range(0, more, chunk):
        for k, f in enumerate(forks):
            step(f, [k] * min(chunk, more - i))
    assert pool.nbytes == plan.nbytes, "the pool had to grow beyond the plan"
    # The last agent to open the document's partly filled block may write in place only if the document is gone.
    assert pool.managers[0].n_used == plan.groups[0].blocks - plan.groups[0].step


def test_f16_equivalent_is_measured_from_f16_blocks(ops: Any) -> None:
    config = model((0, 96), n_kv=2)
    tiers = parse_tiers("q8_0/turbo3", 2)
    plan = plan_memory(config, tiers, ctx=400, agents=3, shared=300, block_size=32, ops=ops)
    half = make_pool(ops, config, tier="f16", block_size=32)
    half.reserve(0, 13)
    half.reserve(1, 4)
    assert plan.f16_agent_nbytes == half.nbytes and plan.f16_nbytes == 3 * half.nbytes
    assert [g.window for g in plan.groups] == [0, 96] and plan.groups[0].shared == 10


@pytest.mark.parametrize(
    "kw",
    [
        {"ctx": 0},
        {"ctx": 10, "agents": 0},
        {"ctx": 10, "shared": 11},
        {"ctx": 10, "shared": -1},
        {"ctx": 10, "chunk": 0},
        {"ctx": 10, "block_size": 44},
    ],
)
def test_contradictions_are_refused(kw: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        plan_memory(model(), parse_tiers("f32", 3), ops=PlainOps(), **kw)
    with pytest.raises(ConfigError, match="tiers"):
        plan_memory(model(), parse_tiers("f32", 2), ctx=1, ops=PlainOps())
