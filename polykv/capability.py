"""What every backend can store: K/V types by head_dim, found by asking `supports_kv` for each, never written by hand.

    for c in capabilities():
        print(c.backend, c.dims("turbo3"))

docs/CAPABILITIES.md is `markdown()`; `polykv tiers --capabilities` prints it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from polykv.cache.codecs import CODECS, VARIANTS, codec
from polykv.ops import BACKENDS, Limits, load

TYPES = (*CODECS, *VARIANTS)
# Sizes of attention heads in published models.
HEAD_DIMS = (32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256, 320, 512, 576)


@dataclass(frozen=True)
class Capability:
    """The answers of one backend. reasons: (K type, V type, head_dim) -> why not, None = yes; for all TYPES and
    HEAD_DIMS."""

    backend: str
    reasons: dict[tuple[str, str, int], str | None]

    def dims(self, name: str) -> list[int]:
        """Sizes of heads whose K and V may both have this type."""
        return [d for d in HEAD_DIMS if self.reasons[name, name, d] is None]

    def types(self) -> list[str]:
        """Types that run at some size of a head."""
        return [name for name in TYPES if self.dims(name)]

    def refused_pairs(self) -> list[str]:
        """K/V pairs that do not run at some size at which both their types do."""
        own = {name: set(self.dims(name)) for name in TYPES}
        bad = {(k, v): d for (k, v, d), reason in self.reasons.items() if reason and d in own[k] & own[v]}
        return [f"{k}/{v}" for k, v in bad]

    def refusals(self) -> list[str]:
        """The different reasons that the backend gives."""
        return list(dict.fromkeys(r for r in self.reasons.values() if r is not None))


def capability(backend: str, limits: Limits) -> Capability:
    """Ask one backend about every pair of types at every size."""
    size = limits.preferred_block()
    return Capability(
        backend,
        {
            (k.name, v.name, d): limits.supports_kv(k, v, d, size)
            for k in map(codec, TYPES)
            for v in map(codec, TYPES)
            for d in HEAD_DIMS
        },
    )


def capabilities() -> list[Capability]:
    """Ask all backends."""
    return [capability(name, load(name)) for name in BACKENDS]


def markdown() -> str:
    """The table of docs/CAPABILITIES.md: types that every backend treats alike share a row."""
    found = capabilities()
    lines = [f"| K/V types | {' | '.join(f'`{c.backend}`' for c in found)} |", f"|---|{'---|' * len(found)}"]
    for cells, names in groupby(TYPES, key=lambda name: tuple(_cell(c.dims(name)) for c in found)):
        lines.append(f"| {', '.join(f'`{n}`' for n in names)} | {' | '.join(cells)} |")
    lines.append("")
    for c in found:
        pairs = ", ".join(f"`{p}`" for p in c.refused_pairs())
        lines.append(f"* `{c.backend}`: any pair of its types" + (f" but {pairs}" if pairs else ""))
        lines += [f"  * refuses: {reason}" for reason in c.refusals()]
    return "\n".join(lines)


def _cell(dims: list[int]) -> str:
    """Sizes for people.

    >>> _cell([]), _cell([64, 128]), _cell([d for d in HEAD_DIMS if d != 40])
    ('no', '64, 128', 'all but 40')
    """
    missing = [d for d in HEAD_DIMS if d not in dims]
    if not missing:
        return "all"
    if 2 * len(missing) < len(HEAD_DIMS):
        return f"all but {', '.join(map(str, missing))}"
    return ", ".join(map(str, dims)) or "no"
