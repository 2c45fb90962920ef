"""Does a session fit a device that has memory of its own? Asked before anything large is allocated.

What is planned is what is taken: weights as they lie there, K/V at its full size, memory of steps and of programs. A
session that does not fit is refused with what would: a shorter context, a tier of fewer bits, fewer agents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polykv.cache.codecs import parse_tiers
from polykv.cache.plan import MemoryPlan, plan_memory
from polykv.cache.pool import KVPool
from polykv.cache.support import kv_reasons
from polykv.config import Tier
from polykv.errors import CapacityError
from polykv.model.loader import Model
from polykv.ops import LoadedOps
from polykv.report import megabytes
from polykv.types import Activations

# What is offered in place of a tier that does not fit, from the most bits to the fewest.
TIERS = ("f16", "q8_0", "q8_0/turbo3", "q4_0", "turbo4", "turbo3", "turbo2")


@dataclass(frozen=True)
class Session:
    """What a session is asked to hold: `agents` sequences of `ctx` tokens, the first `shared` of them common to all.
    rows: most rows of a step beside those of prompts, which get logits; chunk: tokens of prompts in a step."""

    ops: LoadedOps
    model: Model
    tiers: tuple[Tier, ...]
    ctx: int
    agents: int
    shared: int = 0
    chunk: int = 512
    rows: int = 64
    activations: Activations = Activations.Q8

    def memory(self) -> MemoryPlan:
        """Its K/V."""
        sizes = {"ctx": self.ctx, "agents": self.agents, "shared": self.shared, "chunk": self.chunk}
        return plan_memory(self.model.config, self.tiers, ops=self.ops, **sizes)


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of a device by what takes them ("weights", "K/V", "steps", "programs"), those that are free now, and all.
    What is taken already (the context of the driver, other processes) is what the driver says."""

    parts: dict[str, int]
    free: int
    total: int

    @property
    def nbytes(self) -> int:
        """Of the session."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.nbytes <= self.free

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {"parts": self.parts, "nbytes": self.nbytes, "free": self.free, "total": self.total, "fits": self.fits}

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {megabytes(n)}" for name, n in self.parts.items())
        return f"{megabytes(self.nbytes)} ({parts}), and {megabytes(self.free)} of {megabytes(self.total)} are free"


def plan_device(s: Session) -> DevicePlan | None:
    """The memory of a session on the backend's device; None where there is none."""
    memory = s.ops.memory()
    if memory is None:
        return None
    parts = s.ops.footprint(
        s.model.weights,
        [(t.k, t.v) for t in s.tiers],
        rows=s.chunk + s.rows,
        logits=s.rows,
        cells=s.agents * s.ctx,
        activations=s.activations,
    )
    kv = {"weights": parts.pop("weights"), "K/V": s.memory().nbytes}
    return DevicePlan({**kv, **parts}, *memory)


def check_fits(s: Session, plan: DevicePlan | None) -> None:
    """Raise CapacityError, with what would fit, for a session that does not."""
    if plan is not None and not plan.fits:
        found = what_fits(s)
        advice = f"what fits is {', or '.join(found)}" if found else "no context fits beside the weights of this model"
        raise CapacityError(f"this session takes {plan} on the GPU: {advice}")


def settled(s: Session, *, fewer: bool) -> tuple[Session, DevicePlan | None]:
    """The session on its device, weights and memory of steps taken there, and the plan; as it is, with None, where
    there is no device. fewer: take fewer sequences where that fits.

    Raises CapacityError with what would fit.
    """
    plan = plan_device(s)
    if plan is None:
        return s, None
    while not plan.fits and fewer and s.agents > 1:
        s = replace(s, agents=s.agents - 1)
        plan = plan_device(s)
        assert plan is not None
    check_fits(s, plan)
    s.ops.settle(s.model.weights, plan.parts["steps"])
    return s, plan


def reserve(pool: KVPool, s: Session, plan: DevicePlan | None) -> None:
    """Have all blocks of a planned session from the start: growing would copy arrays, and end the graphs of steps."""
    if plan is None:
        return
    for g, group in enumerate(s.memory().groups):
        pool.reserve(g, min(pool.max_blocks(g), group.blocks))


def what_fits(s: Session) -> list[str]:
    """The longest context, the tier of most bits and the most agents that fit, everything else as it is."""

    def fits(changed: Session) -> bool:
        plan = plan_device(changed)
        return plan is None or plan.fits

    own = s.ctx - s.shared
    found = []
    ctx = _most(s.ctx, lambda n: fits(replace(s, ctx=n, shared=max(0, n - own) if s.shared else 0)))
    if ctx:
        found.append(f"a context of {ctx:,} tokens (--ctx {ctx})")
    for name in TIERS:
        tiers = parse_tiers(name, len(s.tiers))
        fewer = replace(s, tiers=tiers)
        if not kv_reasons(s.ops, s.model.config, tiers, s.ops.preferred_block()) and fits(fewer):
            found.append(f"--kv {name}")
            break
    agents = _most(s.agents, lambda n: fits(replace(s, agents=n)))
    if agents:
        found.append(f"{agents} in place of {s.agents} {'agents' if s.shared else 'sequences of this length'}")
    return found


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number below `limit` that fits; 0 when none does."""
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
