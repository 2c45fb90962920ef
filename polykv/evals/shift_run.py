"""Running the gate of context shift: one pair of K/V types at one context, in one process.

The request that shifts and a fresh prompt of what the shift kept run in caches of their own, through the library's own
engine; the prediction after either was read is compared, and then all tokens up to the next shift.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.engine_options import make_request
from polykv.engine_request import Request
from polykv.engine_shift import Past
from polykv.evals.arms import Arm, Setting, never_coded, open_setting
from polykv.evals.cell_inputs import check_identity, identity, open_arm
from polykv.evals.damage import keys_left_behind
from polykv.evals.result import Cell
from polykv.evals.session import session
from polykv.evals.shift import count_text, counted, numbers
from polykv.evals.stamp import stamp
from polykv.llm import LLM, choose_activations, set_threads
from polykv.model.runner import Logits
from polykv.types import F32

# What is done to a cache after a shift: (pool, sequence, keep, dropped).
Damage = Callable[[KVPool, Sequence, int, int], None]
DAMAGES: dict[str, Damage] = {
    "keys not turned": keys_left_behind,
    "keys one off": lambda pool, sequence, keep, dropped: keys_left_behind(pool, sequence, keep, 1),
}


def measure(settings: dict[str, Any]) -> Cell:
    """All figures of one pair. settings: model, backend, threads, activations, kv, ctx, keep, last (what the prompt
    counts to), tokens, codebooks, calibration and calibration_v (None: without), damage (a name of DAMAGES or None),
    role; `identity` where it is known.

    Raises a PolyKVError for anything that is wrong with them.
    """
    began = time.perf_counter()
    set_threads(settings["backend"], settings["threads"])
    activations = choose_activations(settings["backend"], settings["activations"])
    setting = open_setting(settings["model"], backend=settings["backend"], activations=activations, ctx=settings["ctx"])
    check_identity(settings, identity(setting, settings))
    arm, damage = open_arm(setting, settings), settings["damage"]
    cell: Cell = {
        "kv": settings["kv"] if damage is None else damage,
        "role": settings["role"],
        "self_test": damage is not None,
        "backend": setting.ops.name,
        "ctx": settings["ctx"],
        "exact": never_coded(setting.model.config, [arm], settings["ctx"]),
        **_compared(setting, arm, settings),
    }
    made = stamp(setting.model, backend=setting.ops.name, activations=activations, threads=settings["threads"])
    return cell | {"seconds": time.perf_counter() - began, "stamp": made}


def _compared(setting: Setting, arm: Arm, settings: dict[str, Any]) -> Cell:
    """The request that shifts, beside a fresh prompt of what it kept."""
    ctx, keep, last = settings["ctx"], settings["keep"], settings["last"]
    llm = session(setting, arm, context=ctx, sequences=2)
    ids = llm.prompts.text(count_text(last))
    request = make_request(ids, max_tokens=settings["tokens"], ignore_eog=True, shift=keep)
    damage = None if settings["damage"] is None else partial(_harm, DAMAGES[settings["damage"]])
    mine = _follow(llm, request, lambda r: r.past.shifts > 0, damage)
    generation = request.result()
    written = llm.tokenizer.decode(generation.tokens[: ctx - len(ids)])
    cell: Cell = {
        "prompt": len(ids),
        "generated": len(generation.tokens),
        "shifts": generation.stats.shifts,
        "shifted_cells": generation.stats.shifted_cells,
        # Numbers that were whole when the context was full.
        "before": len(numbers(written)),
        **counted(generation.text, last),
        "text": generation.text,
    }
    if mine is None:
        return cell | {"fresh": None, "fresh_tokens": 0, "gap": None, "moved": None}
    # The first shift; the second one comes as many tokens later as it dropped.
    past = Past().again(keep, ctx)
    after = request.ids[ctx : ctx + past.dropped]
    other = session(setting, arm, context=ctx, sequences=2)
    again = make_request(past.cells(request.ids[:ctx]), max_tokens=len(after), ignore_eog=True)
    theirs = _follow(other, again, lambda r: r.n_generated > 0)
    assert theirs is not None
    tokens, moved = list(again.result().tokens), float(np.abs(mine - theirs).max())
    gap = _gap(other, past.cells(request.ids[:ctx]), tokens, after)
    return cell | {"fresh": tokens == after, "fresh_tokens": len(after), "gap": gap, "moved": moved}


def _gap(llm: LLM, prompt: list[int], tokens: list[int], others: list[int]) -> float | None:
    """How much more likely the first of `tokens` that is another one is after the prompt than that of `others`, as a
    difference of logits; 0 when they are the same, None when one list only ends sooner."""
    at = next((i for i, (a, b) in enumerate(zip(tokens, others, strict=False)) if a != b), None)
    if at is None:
        return 0.0 if len(tokens) == len(others) else None
    ids, sequence, chunk = prompt + tokens[:at], Sequence(llm.cache), llm.engine.chunk
    try:
        for i in range(0, len(ids), chunk):
            found = llm.engine.runner.step([(sequence, ids[i : i + chunk])], Logits.LAST)
    finally:
        sequence.free()
    return float(abs(found[0, tokens[at]] - found[0, others[at]]))


def _follow(
    llm: LLM, request: Request, ready: Callable[[Request], bool], damage: Callable[[Request], None] | None = None
) -> F32 | None:
    """Run a request to its end. Returns logits [V] of the prediction after the first step at whose end it is `ready`
    and has one token to read, and None when it ended before. damage: done to its cache then."""
    engine, found = llm.engine, None
    engine.submit(request)
    try:
        while not engine.tell([request]):
            engine.step()
            sequence = request.sequence
            if found is None and sequence is not None and ready(request) and sequence.length == request.n_cells - 1:
                if damage is not None:
                    damage(request)
                twin = sequence.fork()
                found = engine.runner.step([(twin, request.ids[-1:])], Logits.LAST)[0]
                twin.free()
    except BaseException:
        engine.drop([request])
        raise
    return found


def _harm(damage: Damage, request: Request) -> None:
    assert request.sequence is not None
    damage(request.sequence.pool, request.sequence, request.past.keep, request.past.dropped)
