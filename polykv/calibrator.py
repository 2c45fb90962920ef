"""`polykv.calibrate`: choose the factors of K's channels (and of V's) for one model from a text.

    calibration = polykv.calibrate("smollm2", open("book.txt").read())
    write_slots("smollm2.tiq", calibration.k)
    llm = polykv.load("smollm2", kv="turbo3/turbo3", calibration="smollm2.tiq")

The text should be like what the model will read, and not the text that quality is measured with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polykv import ops as operations
from polykv.arguments import check_path
from polykv.cache.calibration import ANY, EVERY_LAYER, Calibration, Slot
from polykv.cache.codecs import parse_tiers
from polykv.cache.equalize import STRENGTH, Rule, balanced, innerq, noise
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config
from polykv.catalogue import resolve
from polykv.errors import ConfigError, PromptError
from polykv.model.channels import F64, ChannelSquares
from polykv.model.loader import Model, load_model
from polykv.model.runner import Logits, Runner
from polykv.model.support import check_model
from polykv.text.tokenizer import Tokenizer
from polykv.types import F32, Activations, Equalizer

DEFAULT_TOKENS = 4096
# The text is read in pieces of this length, so that it costs no more memory than this.
WINDOW = 1024
CHUNK = 256


@dataclass(frozen=True)
class Calibrated:
    """What a calibration found. tokens: how much of the text was read. equalizers: the factors of each layer. k_noise,
    v_noise: by layer, the squared error of scores (outputs) of a rotated type with these factors relative to that
    without, predicted from the mean squares; v_noise is empty when V is not scaled."""

    calibration: Calibration
    tokens: int
    equalizers: tuple[Equalizer, ...]
    k_noise: tuple[float, ...]
    v_noise: tuple[float, ...] = ()


def calibrate(
    model: str | Path,
    text: str,
    *,
    rule: Rule | str = Rule.BALANCED,
    strength: float = STRENGTH,
    values: bool = False,
    max_tokens: int = DEFAULT_TOKENS,
    backend: str = "cpu",
    on_progress: Callable[[int, int], None] | None = None,
) -> Calibrated:
    """Read the text (its first max_tokens tokens) with K and V in float32 and choose factors.

    model: as in `polykv.load`. strength: of the rule "innerq". values: also factors of V (always by layer and kv head).
    on_progress(done, total): in tokens.

    Raises a PolyKVError for anything wrong with the file or the arguments.
    """
    check_path("model", model)
    rule = _rule(rule)
    if not isinstance(text, str) or not text.strip():
        raise PromptError("the text to calibrate with is empty")
    if max_tokens < 1:
        raise ConfigError(f"cannot calibrate with {max_tokens} tokens")
    loaded = load_model(resolve(str(model)))
    ids = Tokenizer.from_gguf(loaded.gguf.metadata).encode(text)[:max_tokens]
    squares = observe(loaded, ids, backend=backend, on_progress=on_progress)
    layers = range(len(loaded.config.layers))
    k = _by_width(loaded, squares, strength) if rule is Rule.INNERQ else _by_layer(loaded, squares)
    columns = [squares.columns(i) for i in layers] if values else []
    v = tuple(_slot(balanced(c, squares.rms(i)[2]), _width(loaded, i), i) for i, c in enumerate(columns))
    found = Calibration(k, v)
    factors = found.equalizers(loaded.config)
    k_noise = (_noise(*squares.rms(i)[:2], factors[i].k) for i in layers)
    v_noise = (_noise(c, squares.rms(i)[2], factors[i].v) for i, c in enumerate(columns))
    return Calibrated(found, len(ids), factors, tuple(k_noise), tuple(v_noise))


def _rule(rule: Rule | str) -> Rule:
    try:
        return Rule(rule)
    except ValueError:
        raise ConfigError(f"unknown rule {rule!r}; known: {', '.join(r.value for r in Rule)}") from None


def observe(
    model: Model, ids: list[int], *, backend: str = "cpu", on_progress: Callable[[int, int], None] | None = None
) -> ChannelSquares:
    """Mean squares of all channels while the model reads `ids` in pieces, each from position 0 on."""
    ops = operations.load(backend)
    stored = cache_config(ops, parse_tiers("f32", len(model.config.layers)))
    check_model(ops, model, stored)
    window = min(WINDOW, model.config.context)
    squares = ChannelSquares(ops, model)
    pool = KVPool(ops, model.config, stored, fingerprint=model.fingerprint, max_tokens=window)
    runner = Runner(ops, model, pool, Activations.F32, observer=squares)
    for a in range(0, len(ids), window):
        piece, sequence = ids[a : a + window], Sequence(pool)
        for b in range(0, len(piece), CHUNK):
            runner.step([(sequence, piece[b : b + CHUNK])], Logits.NONE)
            if on_progress is not None:
                on_progress(squares.rows, len(ids))
        sequence.free()
    return squares


def _width(model: Model, layer: int) -> int:
    config = model.config.layers[layer]
    return config.n_kv * config.head_dim


def _slot(factors: F32, width: int, layer: int = EVERY_LAYER) -> Slot:
    return Slot(np.float32(1) / factors, width, layer)


def _by_layer(model: Model, squares: ChannelSquares) -> tuple[Slot, ...]:
    rms = map(squares.rms, range(len(model.config.layers)))
    return tuple(_slot(balanced(q, k), _width(model, i), i) for i, (q, k, _) in enumerate(rms))


def _by_width(model: Model, squares: ChannelSquares, strength: float) -> tuple[Slot, ...]:
    """One slot for the layers of each width and head_dim, heads and layers folded into one."""
    kinds: dict[tuple[int, int], list[int]] = {}
    for i, layer in enumerate(model.config.layers):
        kinds.setdefault((_width(model, i), layer.head_dim), []).append(i)
    slots = []
    for (width, head_dim), layers in kinds.items():
        rms = np.sqrt(np.concatenate([squares.rms(i)[1] ** 2 for i in layers]).mean(axis=0))
        factors, used = innerq(rms, strength)
        factors = factors if used else np.ones(head_dim, np.float32)
        slots.append(_slot(factors[None], width if len(kinds) > 1 else ANY))
    return tuple(slots)


def _noise(weight: F64, rms: F64, factors: F32 | None) -> float:
    """Of a layer, kv heads weighed by the error they have without factors."""
    if factors is None:
        return 1.0
    plain = (weight**2).sum(axis=1) * (rms**2).sum(axis=1)
    return float((noise(weight, rms, factors) * plain).sum() / max(plain.sum(), 1e-300))
