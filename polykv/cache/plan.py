"""What a cache will cost, before anything is loaded.

Block bytes are measured: the backend allocates one block of every layer and the arrays are summed. A pool that
reserves `GroupPlan.blocks` blocks per group therefore allocates exactly `MemoryPlan.nbytes`.

    cells = ceil(P/B) B + N (ceil(C/B) - floor(P/B)) B     P shared tokens, N agents of C tokens each, blocks of B

and with a sliding window of w the same, cut at the blocks that w cells can touch.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.cache.codecs import codec
from polykv.cache.pool import CacheGroup, make_groups
from polykv.cache.support import check_kv
from polykv.config import CacheConfig, ModelConfig, Tier
from polykv.errors import ConfigError
from polykv.ops import LoadedOps, Ops, load


@dataclass(frozen=True)
class LayerPlan:
    """One layer: bytes of K and of V over all blocks of its group, and per token of one block."""

    layer: int
    tier: str
    window: int
    k_nbytes: int
    v_nbytes: int
    token_nbytes: float


@dataclass(frozen=True)
class GroupPlan:
    """Blocks of one cache group. shared: of the common prefix; private: of every agent; step: for cells of one step
    that a sliding window lets go of right afterwards."""

    window: int
    layers: tuple[int, ...]
    block_nbytes: int
    shared: int
    private: int
    step: int
    agents: int

    @property
    def blocks(self) -> int:
        return self.shared + self.agents * self.private + self.step

    @property
    def nbytes(self) -> int:
        return self.blocks * self.block_nbytes


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a cache for `agents` agents of `ctx` tokens, the first `shared` tokens common to all.

    f16_nbytes: what the same agents need in float16 with nothing shared; f16_agent_nbytes: one of them.
    """

    ctx: int
    agents: int
    shared: int
    block_size: int
    groups: tuple[GroupPlan, ...]
    layers: tuple[LayerPlan, ...]
    f16_agent_nbytes: int

    @property
    def nbytes(self) -> int:
        return sum(g.nbytes for g in self.groups)

    @property
    def shared_nbytes(self) -> int:
        return sum(g.shared * g.block_nbytes for g in self.groups)

    @property
    def private_nbytes(self) -> int:
        """Of one agent."""
        return sum(g.private * g.block_nbytes for g in self.groups)

    @property
    def f16_nbytes(self) -> int:
        return self.agents * self.f16_agent_nbytes


def plan_memory(
    model: ModelConfig,
    tiers: tuple[Tier, ...],
    *,
    ctx: int,
    agents: int = 1,
    shared: int = 0,
    block_size: int = CacheConfig.block_size,
    chunk: int = 1,
    ops: LoadedOps | None = None,
) -> MemoryPlan:
    """Plan a cache; `chunk` is the largest number of tokens that one step adds to a sequence. ops: the backend whose
    arrays are measured (default: cpu).

    Raises ConfigError when the numbers contradict each other, UnsupportedError for what the backend cannot store.
    """
    if len(tiers) != len(model.layers):
        raise ConfigError(f"{len(tiers)} tiers for a model of {len(model.layers)} layers")
    if ctx < 1 or agents < 1 or chunk < 1:
        raise ConfigError(f"cannot plan {agents} agents of {ctx} tokens in steps of {chunk}: all must be at least 1")
    if not 0 <= shared <= ctx:
        raise ConfigError(f"{shared} shared tokens do not fit into {ctx} tokens per agent")
    if block_size < 8 or block_size % 8:
        raise ConfigError(f"block size {block_size} is not a multiple of 8")
    ops = load("cpu") if ops is None else ops
    check_kv(ops, model, tiers, block_size)
    sides = [_block_bytes(ops, model, i, t, block_size) for i, t in enumerate(tiers)]
    half = Tier(codec("f16"), codec("f16"))
    half_sides = [_block_bytes(ops, model, i, half, block_size) for i in range(len(tiers))]

    groups, f16 = [], 0
    for g in make_groups(model):
        blocks = _group_blocks(g, ctx, agents, shared, block_size, chunk)
        groups.append(GroupPlan(g.window, g.layers, sum(sum(sides[i]) for i in g.layers), *blocks, agents))
        alone = sum(_group_blocks(g, ctx, 1, 0, block_size, 1))
        f16 += alone * sum(sum(half_sides[i]) for i in g.layers)
    of = {i: g for g in groups for i in g.layers}
    layers = tuple(
        LayerPlan(i, str(tiers[i]), of[i].window, k * of[i].blocks, v * of[i].blocks, (k + v) / block_size)
        for i, (k, v) in enumerate(sides)
    )
    return MemoryPlan(ctx, agents, shared, block_size, tuple(groups), layers, f16)


def _block_bytes(ops: Ops, model: ModelConfig, i: int, tier: Tier, block_size: int) -> tuple[int, int]:
    """Real bytes of one block of K and of V of layer i."""
    layer = model.layers[i]
    k, v = (ops.kv_alloc(c, 1, layer.n_kv, layer.head_dim, block_size) for c in (tier.k, tier.v))
    return k.nbytes, v.nbytes


def _group_blocks(g: CacheGroup, ctx: int, agents: int, shared: int, size: int, chunk: int) -> tuple[int, int, int]:
    """(shared, private per agent, step) blocks of one group."""
    prefix = -(-shared // size)
    # An agent copies the last, partly filled block of the prefix before it writes there.
    private = -(-ctx // size) - shared // size
    if not g.window:
        return prefix, private, 0
    # w consecutive cells touch this many blocks at most, wherever they start.
    most = (g.window - 2) // size + 2 if g.window > 1 else 1
    held, own = min(prefix, most), min(private, most)
    # While a step writes, the window before it is held as well; short contexts never get that far.
    step = min(-(-(chunk - 1) // size), -(-ctx // size) - max(held, own))
    return held, own, max(0, step)
