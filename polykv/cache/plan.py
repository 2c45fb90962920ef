"""What a cache will cost, before anything is loaded.

Block bytes are measured: the backend allocates one block of every layer and the arrays are summed. A pool that
reserves `GroupPlan.blocks` blocks per group therefore allocates exactly `MemoryPlan.nbytes`.

    cells = ceil(P/B) B + N (ceil(C/B) - floor(P/B)) B     P shared tokens, N agents of C tokens each, blocks of B

and with a sliding window of w the same, cut at the blocks that w cells can touch. Where cells are exact first and coded
in units of 64 (docs/CENTERED.md), coded units count as blocks of 64 that are never partly filled, and exact cells like
those of a window.
"""

from __future__ import annotations

from dataclasses import dataclass

from polykv.arguments import check_whole
from polykv.cache.codecs import codec
from polykv.cache.group import CacheGroup, Stage, make_groups
from polykv.cache.pool import exact_of, layer_kv
from polykv.cache.support import check_kv
from polykv.config import ModelConfig, Tier
from polykv.errors import ConfigError
from polykv.ops import LoadedOps, load
from polykv.types import UNIT, LayerKV


@dataclass(frozen=True)
class LayerPlan:
    """One layer: bytes of K and of V over all blocks of its groups, and per token of one block of codes."""

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
    block_size: int | None = None,
    chunk: int = 1,
    ops: LoadedOps | None = None,
) -> MemoryPlan:
    """Plan a cache; `chunk` is the largest number of tokens that one step adds to a sequence. ops: the backend whose
    arrays are measured (default: cpu). block_size: as the backend likes it when None.

    Raises ConfigError when the numbers contradict each other, UnsupportedError for what the backend cannot store.
    """
    if len(tiers) != len(model.layers):
        raise ConfigError(f"{len(tiers)} tiers for a model of {len(model.layers)} layers")
    check_whole(ctx=ctx, agents=agents, shared=shared, chunk=chunk)
    if ctx < 1 or agents < 1 or chunk < 1:
        raise ConfigError(f"cannot plan {agents} agents of {ctx} tokens in steps of {chunk}: all must be at least 1")
    if not 0 <= shared <= ctx:
        raise ConfigError(f"{shared} shared tokens do not fit into {ctx} tokens per agent")
    ops = load("cpu") if ops is None else ops
    block_size = ops.preferred_block() if block_size is None else block_size
    if block_size < 8 or block_size % 8:
        raise ConfigError(f"block size {block_size} is not a multiple of 8")
    check_kv(ops, model, tiers, block_size)
    stored = [layer_kv(ops, model, i, t, block_size) for i, t in enumerate(tiers)]
    groups = []
    nbytes = [[0, 0] for _ in tiers]
    for g in make_groups(model, tiers, block_size):
        sides = {i: _block_bytes(stored[i] if g.stage is not Stage.EXACT else exact_of(stored[i])) for i in g.layers}
        blocks = _group_blocks(g, ctx, shared, chunk)
        groups.append(GroupPlan(g.window, g.layers, sum(map(sum, sides.values())), *blocks, agents))
        for i, (k, v) in sides.items():
            nbytes[i][0] += k * groups[-1].blocks
            nbytes[i][1] += v * groups[-1].blocks
    layers = tuple(
        LayerPlan(
            i,
            str(t),
            model.layers[i].window,
            nbytes[i][0],
            nbytes[i][1],
            sum(_block_bytes(stored[i])) / stored[i].k.block_size,
        )
        for i, t in enumerate(tiers)
    )
    return MemoryPlan(ctx, agents, shared, block_size, tuple(groups), layers, _f16_nbytes(ops, model, ctx, block_size))


def _f16_nbytes(ops: LoadedOps, model: ModelConfig, ctx: int, block_size: int) -> int:
    """Bytes of a float16 cache of `ctx` tokens."""
    half = (Tier(codec("f16"), codec("f16")),) * len(model.layers)
    total = 0
    for g in make_groups(model, half, block_size):
        block = sum(sum(_block_bytes(layer_kv(ops, model, i, half[i], block_size))) for i in g.layers)
        total += sum(_group_blocks(g, ctx, 0, 1)) * block
    return total


def _block_bytes(kv: LayerKV) -> tuple[int, int]:
    """Real bytes of one block of K and of V."""
    return kv.k.block_nbytes, kv.v.block_nbytes


def _group_blocks(g: CacheGroup, ctx: int, shared: int, chunk: int) -> tuple[int, int, int]:
    """(shared, private per agent, step) blocks of one group."""
    size = g.size
    if g.stage is Stage.CODED:
        prefix, private = g.n_blocks(shared), g.n_blocks(ctx) - g.n_blocks(shared)
    else:
        # An agent copies the last, partly filled block of the prefix before it writes there.
        prefix, private = -(-shared // size), -(-ctx // size) - shared // size
    if g.stage is Stage.EXACT:
        # From the start of a unit on: whole units, and the one that is being filled.
        most = g.lead + (-(-max(0, g.recent - 1) // UNIT) + 1) * UNIT // size
    elif g.window:
        # w consecutive cells touch this many blocks at most, wherever they start.
        most = (g.window - 2) // size + 2 if g.window > 1 else 1
    else:
        # A pool begins with one block in every group.
        return prefix, private, max(0, 1 - prefix - private)
    held, own = min(prefix, most), min(private, most)
    # While a step writes, what was held before it is held as well; short contexts never get that far.
    step = min(-(-(chunk - 1) // size), g.n_blocks(ctx) - max(held, own))
    return held, own, max(0, step, 1 - held - own)
