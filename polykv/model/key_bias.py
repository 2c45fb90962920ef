"""Key biases that a type of few bits cannot hold beside the rest of a key; `--kv auto` gives K more bits there.

Qwen2 and Qwen2.5 add a bias to their keys, and in some layers, the first and the last above all, it is tens of times
longer than what the token contributes. It is the same for all tokens, so it says nothing, but it takes the range of the
codes: keys of 3 or 4 bits ruin such models (perplexity 7.5 becomes thousands) while they do little harm to others.

No text is needed to see it: keys are made from random inputs of the size that the norm gives them, with the layer's own
Wk, bias and rope, stored as the type in question, read back and compared. The error is told relative to what the keys
would be without the bias, kv head by kv head, and the worst head counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from polykv.cache.codecs import DEFAULT_KV, codec, parse_tiers
from polykv.config import LayerConfig, Tier
from polykv.model.loader import Model
from polykv.model.rope import angles
from polykv.ops import LoadedOps
from polykv.types import F32, UNIT, Activations, AttentionWeights, Codec, Seals, Slots

AUTO = "auto"
# Types for K that `auto` may turn to, in this order.
LADDER = ("q8_0", "f16")
# Squared error relative to the token's own part of a key. Below ENOUGH a key costs less than values of 3 bits do
# (docs/RESULTS.md); a type whose error without the bias is larger may have MORE times that.
ENOUGH, MORE = 1e-3, 2.0
UNITS, SEED = 64, 20260607


@dataclass(frozen=True)
class KeyCheck:
    """One layer whose keys have a bias.

    ratio: length of the bias relative to the rest of a key, in the kv head where it is largest. asked, tier: what was
    asked for and what is used. error: of the asked type of K; error_used: of the used one; allowed: the limit for both.
    """

    layer: int
    ratio: float
    asked: str
    tier: str
    error: float
    error_used: float
    allowed: float

    @property
    def lost(self) -> bool:
        """Whether the type in use cannot hold the keys."""
        return self.error_used > self.allowed

    def __str__(self) -> str:
        text = (
            f"layer {self.layer}: the key bias is {self.ratio:.1f} times as long as the rest of a key; as {self.asked}"
            f" keys have an error of {self.error:.2g} of that rest, {self.allowed:.2g} are harmless"
        )
        if self.tier != self.asked:
            return f"{text}; as {self.tier} it is {self.error_used:.2g}"
        return f"{text}: --kv auto gives K more bits there" if self.lost else text


def asked_tiers(kv: str, n: int) -> tuple[tuple[Tier, ...], frozenset[int]]:
    """What a text asks for in n layers, and the layers in which K may get more bits than that.

    kv: as for `parse_tiers`, or `auto[:K/V][,LAYERS=TIER...]`, the pair K/V (default q8_0/turbo3) as the least to be
    used. Layers that an override names are as it says.

    >>> tiers, free = asked_tiers("auto,0=f16", 3)
    >>> [str(t) for t in tiers], sorted(free)
    (['f16/f16', 'q8_0/turbo3', 'q8_0/turbo3'], [1, 2])

    Raises ConfigError for anything else.
    """
    first, comma, overrides = kv.partition(",")
    word, colon, pair = first.partition(":")
    if word.strip() != AUTO:
        return parse_tiers(kv, n), frozenset()
    base = pair.strip() if colon else DEFAULT_KV
    # A layer that an override names has the same tier whatever stands in front.
    one, other = (parse_tiers(f"{name}{comma}{overrides}", n) for name in ("f16", "f32"))
    free = frozenset(i for i in range(n) if one[i] != other[i])
    return parse_tiers(f"{base}{comma}{overrides}", n), free


def protect_keys(
    ops: LoadedOps, model: Model, asked: tuple[Tier, ...], free: frozenset[int], block_size: int
) -> tuple[tuple[Tier, ...], tuple[KeyCheck, ...]]:
    """The tier of every layer, and a check of each layer whose keys have a bias.

    In the layers `free`, K becomes the first type of LADDER that holds the keys and has as many bits as V, when the
    asked one does not; where none of them does, the last. To hold keys is to do no worse than the asked type would
    without a bias, so q8_0 is enough where turbo3 was asked for. The backend must be able to run the model as asked.
    """
    used, checks = list(asked), []
    for i, (w, layer) in enumerate(zip(model.attention, model.config.layers, strict=True)):
        keys = None if w.k_bias is None else sample_keys(ops, w, layer)
        if i in free:
            used[i] = _enough(ops, layer, asked[i], keys, block_size)
        if keys is not None:
            checks.append(_check(ops, i, w, keys, asked[i], used[i]))
    return tuple(used), tuple(checks)


def _enough(ops: LoadedOps, layer: LayerConfig, asked: Tier, keys: Keys | None, block_size: int) -> Tier:
    limit = 0.0 if keys is None else allowed(ops, asked.k, keys)
    best, size = asked, UNIT if asked.staged else block_size
    for k in (asked.k, *(codec(name) for name in LADDER)):
        if k.bits < asked.k.bits or ops.supports_kv(k, asked.v, layer.head_dim, size) is not None:
            continue
        best = replace(asked, k=k)
        if k.bits >= asked.v.bits and (keys is None or error(ops, k, keys) <= limit):
            break
    return best


def _check(ops: LoadedOps, i: int, w: AttentionWeights, keys: Keys, asked: Tier, used: Tier) -> KeyCheck:
    assert w.k_bias is not None
    rest = (keys.plain.astype(np.float64) ** 2).sum(axis=2).mean(axis=0)
    ratio = np.sqrt((w.k_bias.reshape(w.n_kv, -1) ** 2).sum(axis=1) / rest).max()
    before, after = (error(ops, tier.k, keys) for tier in (asked, used))
    return KeyCheck(i, float(ratio), str(asked), str(used), before, after, allowed(ops, asked.k, keys))


@dataclass(frozen=True, eq=False)
class Keys:
    """Sampled keys of one layer [UNIT, G, D], with their bias and without."""

    biased: F32
    plain: F32


def sample_keys(ops: LoadedOps, w: AttentionWeights, layer: LayerConfig) -> Keys:
    """Keys of random inputs at the positions of a unit, somewhere among the first UNITS: rope turns the bias of each
    by another angle, but not by just any, so types with `+c` have the mean that they would have in a text."""
    rng = np.random.default_rng(SEED)
    inputs = ops.rms_norm(rng.standard_normal((UNIT, w.wk.cols), np.float32), w.norm, w.eps)
    plain = ops.fetch(ops.linear(inputs, w.wk, activations=Activations.F32))
    positions = UNIT * rng.integers(1, UNITS) + np.arange(UNIT)
    turn = angles(layer.rope, positions.astype(np.int32))
    shape = (UNIT, w.n_kv, w.head_dim)
    biased = plain if w.k_bias is None else plain + w.k_bias
    return Keys(*(ops.fetch(ops.rope(x.reshape(shape), turn)) for x in (biased, plain)))


def error(ops: LoadedOps, k: Codec, keys: Keys) -> float:
    """Squared error of the keys stored as `k`, relative to their squared length without the bias; of the worst head."""
    return _error(ops, k, keys.biased, keys.plain)


def allowed(ops: LoadedOps, k: Codec, keys: Keys) -> float:
    """The largest error that keys asked to be stored as `k` may have."""
    return max(ENOUGH, MORE * _error(ops, k, keys.plain, keys.plain))


def _error(ops: LoadedOps, k: Codec, keys: F32, plain: F32) -> float:
    n, n_kv, head_dim = keys.shape
    arena = ops.kv_alloc(k, 1, n_kv, head_dim, n)
    cells, block = Slots(np.zeros(n, np.int32), np.arange(n, dtype=np.int32)), np.zeros(1, np.int32)
    if k.centered:
        exact = ops.kv_alloc(codec("f16"), 1, n_kv, head_dim, n)
        ops.kv_append(exact, keys, cells)
        ops.kv_seal(arena, exact, Seals(block[:, None], block, block))
    else:
        ops.kv_append(arena, keys, cells)
    back = ops.fetch(ops.kv_read(arena, np.zeros(1, np.int32)))[0].astype(np.float64)
    squares = ((back - keys) ** 2).sum(axis=(0, 2)) / (plain.astype(np.float64) ** 2).sum(axis=(0, 2))
    return float(squares.max())
