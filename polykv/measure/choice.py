"""Which pairs of K/V types are worth their bytes on a model, and what can be said for choosing one.

All pairs of n types are too many to measure. What a type costs as K alone and as V alone takes 2 n runs, and the sum of
the two is close to what the pair costs; pairs that would be worth their bytes by that estimate are then measured.
Advice rests on measured pairs only.
"""

from __future__ import annotations

import numpy as np

from polykv.measure.quality import Quality

# Divergences (nats) below this are all the same to a reader, so only the fewest bytes count there; a pair above the
# other figure is no longer the same model.
INDISTINCT, USELESS = 1e-4, 2.0
# Pairs that are measured at most; of more, so many evenly spread over the bytes.
MOST = 16
# Budgets that advice is given for: mean KL in nats, and bytes as a share of float16.
LIMITS = (0.001, 0.01, 0.03, 0.1, 0.3)
SHARES = (0.5, 0.33, 0.25, 0.2)
# Pairs that others are measured against at equal bytes: what is usual at 8 bits, and at 4 with a rotation first, which
# is the fair comparison for types that rotate.
USUAL = ("q8_0/q8_0", "q4_0+r/q4_0+r", "q4_0/q4_0")


def frontier(points: dict[str, tuple[float, float]]) -> list[str]:
    """Names of points (bytes, KL) that no other beats, by ascending bytes.

    >>> frontier({"a": (4, 0.5), "b": (5, 0.7), "c": (6, 0.1), "d": (9, 1e-5), "e": (10, 0)})
    ['a', 'c', 'd']
    """
    kept: list[str] = []
    best = USELESS
    for name, (_, kl) in sorted(points.items(), key=lambda item: item[1]):
        kl = max(kl, INDISTINCT)
        if kl < best:
            kept.append(name)
            best = kl
    return kept


def worth_measuring(
    k_bytes: dict[str, float], v_bytes: dict[str, float], k_kl: dict[str, float], v_kl: dict[str, float]
) -> list[str]:
    """Pairs that may be worth their bytes, from what each type costs on one side alone; ascending bytes."""
    guess = {f"{k}/{v}": (k_bytes[k] + v_bytes[v], k_kl[k] + v_kl[v]) for k in k_kl for v in v_kl}
    found = frontier(guess)
    if len(found) <= MOST:
        return found
    return [found[i] for i in np.linspace(0, len(found) - 1, MOST).round().astype(int)]


def advise(found: dict[str, Quality], f16_bytes: float) -> list[str]:
    """What to take for a budget of quality or of bytes, and how the pairs of `USUAL` compare; one sentence each."""
    lines = []
    for limit in LIMITS:
        fit = [kv for kv, q in found.items() if q.kl_mean <= limit]
        if fit:
            kv = min(fit, key=lambda kv: found[kv].bytes_per_token)
            lines.append(f"smallest that stays under {limit:g} nats: {_facts(kv, found[kv], f16_bytes)}")
    for share in SHARES:
        fit = [kv for kv, q in found.items() if q.bytes_per_token <= share * f16_bytes]
        if fit:
            kv = min(fit, key=lambda kv: found[kv].kl_mean)
            lines.append(f"best within {share:.0%} of f16: {_facts(kv, found[kv], f16_bytes)}")
    return [*lines, *(at_equal_bytes(kv, found, f16_bytes) for kv in USUAL if kv in found)]


def at_equal_bytes(usual: str, found: dict[str, Quality], f16_bytes: float) -> str:
    """The best measured pair that takes no more bytes than `usual`, and whether the difference is more than chance."""
    base = found[usual]
    fit = {kv: q for kv, q in found.items() if q.bytes_per_token <= base.bytes_per_token and kv != usual}
    head = f"at the bytes of {_facts(usual, base, f16_bytes)}"
    if not fit:
        return f"{head}: nothing smaller was measured"
    kv = min(fit, key=lambda kv: fit[kv].kl_mean)
    return f"{head}: {_facts(kv, fit[kv], f16_bytes)} is {verdict(base, fit[kv])}"


def verdict(base: Quality, other: Quality) -> str:
    """Whether the other's divergence is lower, higher, or cannot be told from the base's, by position.

    Two standard errors of the mean difference decide. Neighbouring positions are not independent, so a difference that
    just passes is not certain either.
    """
    d = other.kl - base.kl
    if abs(d.mean()) <= 2 * d.std() / np.sqrt(len(d)):
        return f"as good, as far as {len(d)} positions can show"
    return "better" if d.mean() < 0 else "the best other, and worse"


def _facts(kv: str, q: Quality, f16_bytes: float) -> str:
    size = f"{q.bytes_per_token:,.0f} bytes per token, {q.bytes_per_token / f16_bytes:.0%} of f16"
    return f"{kv} ({size}, KL {q.kl_mean:.2g})"
