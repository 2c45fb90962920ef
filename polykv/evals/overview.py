"""One pair of K/V types on one model at one context: quality, speed and memory, in one process.

    quality   the gate on prompts with a hidden number, and divergence over windows; activations in float32
    speed     tokens/s of reading a text of `ctx` tokens and of decoding after it, as the program runs by default
    memory    bytes that the cache held at that depth

The exact run is made anew in every process, so no task needs another, and tasks that name the same types must give the
same figures to the bit (`trace` is a hash of all that was predicted).
"""

from __future__ import annotations

import hashlib
import statistics
import time
from dataclasses import dataclass
from typing import Any

from polykv.evals.arms import Arm, Setting, make_arm, never_coded, open_setting
from polykv.evals.cell_inputs import check_identity, identity, open_arm
from polykv.evals.corpora import read_text
from polykv.evals.divergence import figures, perplexity
from polykv.evals.gate import compare, summary
from polykv.evals.gate_prompts import needle_prompts
from polykv.evals.gate_run import GatePrompt, Recorded, record
from polykv.evals.loops import repeated
from polykv.evals.perplexity import compare as compare_windows
from polykv.evals.perplexity import score
from polykv.evals.result import Cell
from polykv.evals.stamp import load_average, stamp
from polykv.evals.windows import Window, text_windows
from polykv.llm import LLM, choose_activations, load, set_threads
from polykv.prompt import Prompts
from polykv.text.chat import ChatTemplate
from polykv.text.tokenizer import Tokenizer

# Tokens decoded to be timed, how often, and before that.
TIMED, REPEATS, WARM = 32, 3, 8


@dataclass(frozen=True)
class Inputs:
    """What a task reads. windows, prompts: of its text."""

    setting: Setting
    windows: list[Window]
    prompts: list[GatePrompt]
    text: str


def open_inputs(settings: dict[str, Any]) -> Inputs:
    """Model and text of a task. Raises a PolyKVError for anything that is wrong with them."""
    setting = open_setting(
        settings["model"],
        backend=settings["backend"],
        activations=choose_activations(settings["backend"], "f32"),
        ctx=max(settings["ctx"] + TIMED + WARM, settings["length"] + settings["tokens"]),
    )
    metadata, text = setting.model.gguf.metadata, read_text(settings["corpus"])
    tokenizer = Tokenizer.from_gguf(metadata)
    windows = text_windows(tokenizer, text, settings["ctx"], settings["windows"])
    makes = Prompts(tokenizer, ChatTemplate.from_gguf(metadata, tokenizer))
    prompts = needle_prompts(makes, text, settings["prompts"], settings["length"], settings["seed"])
    return Inputs(setting, windows, prompts, text)


def measure(settings: dict[str, Any]) -> Cell:
    """All figures of one pair. settings: model, backend, threads, kv, base, ctx, corpus (a name or a path), windows,
    prompts, length, tokens, bar, seed, codebooks, calibration and calibration_v (None: without), role; `identity` where
    it is known.

    Raises a PolyKVError for anything that is wrong with them.
    """
    began = time.perf_counter()
    set_threads(settings["backend"], settings["threads"])
    inputs = open_inputs(settings)
    setting = inputs.setting
    base, arm = make_arm(setting, settings["base"]), open_arm(setting, settings)
    check_identity(settings, identity(setting, settings, inputs.text))
    cell: Cell = {"kv": settings["kv"], "ctx": settings["ctx"], "role": settings["role"]}
    # Shortest of what is measured: a type that codes nothing there is not measured there.
    cell["exact"] = never_coded(
        setting.model.config, [arm], min(settings["ctx"], max(len(p.ids) for p in inputs.prompts))
    )
    cell |= _divergence(inputs, base, arm)
    cell |= _gate(inputs, base, arm, settings)
    cell |= _run(inputs, base, arm, settings)
    made = stamp(setting.model, backend=setting.ops.name, activations=setting.activations, threads=settings["threads"])
    return cell | {"seconds": time.perf_counter() - began, "load_average": load_average(), "stamp": made}


def _divergence(inputs: Inputs, base: Arm, arm: Arm) -> Cell:
    found = compare_windows(inputs.windows, base, [arm], inputs.setting)[arm.name]
    cell = figures(found.positions)
    base_ppl, _ = perplexity(found.positions.base_nll)
    names = ("kld", "kld_error", "kld_max", "same_top", "delta_p", "ppl", "ln_ppl_ratio")
    return {
        **{name: cell[name] for name in names},
        "kld_p99": cell["kld_quantiles"]["p99"],
        "kld_positions": cell["positions"],
        "base_ppl": base_ppl,
        "bits": found.bits,
        "bits_held": found.bits_held,
        "kv_bytes": found.held,
        "f16_bytes": found.f16_bytes,
    }


def _gate(inputs: Inputs, base: Arm, arm: Arm, settings: dict[str, Any]) -> Cell:
    setting, prompts = inputs.setting, inputs.prompts
    reference = record(setting, base, prompts, settings["tokens"])
    mine = record(setting, arm, prompts, settings["tokens"], lead=reference)
    pairs = list(zip(reference.runs, mine.runs, prompts, strict=True))
    cell = summary([compare(r, c, p.answer, forced=True) for r, c, p in pairs], settings["bar"])
    found = [p.answer in c.text for _, c, p in pairs]
    base_found = [p.answer in r.text for r, _, p in pairs]
    return {
        **cell,
        "recall": sum(found) / len(found),
        "base_recall": sum(base_found) / len(base_found),
        "trace": _trace(mine),
        "base_trace": _trace(reference),
    }


def _trace(recorded: Recorded) -> str:
    h = hashlib.blake2b(digest_size=8)
    for run in recorded.runs:
        for step in run.steps:
            if step is not None:
                h.update(step.ids.tobytes() + step.logs.tobytes())
    return h.hexdigest()


def _run(inputs: Inputs, base: Arm, arm: Arm, settings: dict[str, Any]) -> Cell:
    """The pair as a user runs it."""
    llm = load(
        settings["model"],
        backend=settings["backend"],
        kv=settings["kv"],
        codebooks=settings["codebooks"],
        calibration=settings["calibration"],
        calibration_v=settings["calibration_v"],
        ctx=settings["ctx"] + TIMED + WARM,
    )
    ids = llm.tokenizer.encode(inputs.text, add_bos=None)[: settings["ctx"]]
    # Every shape of step once, on other tokens, so that nothing of the text is in the cache.
    llm.generate(ids[::-1], max_tokens=2, ignore_eog=True)
    first = llm.generate(ids, max_tokens=WARM, ignore_eog=True)
    timed = [llm.generate(ids, max_tokens=TIMED, ignore_eog=True) for _ in range(REPEATS)]
    said = list(timed[0].tokens)
    # The exact run reads what the pair wrote, after the same text.
    ppl, _ = perplexity(score([Window((*ids, *said), len(ids) - 1)], base, inputs.setting))
    counters = llm.ops.calls
    return {
        "prefill_tok_s": first.stats.prefill_tok_s,
        "decode_tok_s": statistics.median(g.stats.decode_tok_s for g in timed),
        "decode_runs": [g.stats.decode_tok_s for g in timed],
        "text_ppl": ppl,
        "repeats": repeated(said),
        "text": llm.tokenizer.decode(said),
        "engaged": _engaged(llm, arm, len(ids)) and counters["layers"] > 0,
        "calls": dict(counters),
        "tiers": sorted({str(t) for t in llm.cache.tiers}),
        "notes": list(llm.notes),
        "run_activations": llm.activations.name.lower(),
    }


def _engaged(llm: LLM, arm: Arm, tokens: int) -> bool:
    """Whether steps wrote to and read from a cache of the types that were asked for."""
    counters = llm.engine.runner.counters
    stored = all(
        llm.cache.layer(i).k.codec == t.k and llm.cache.layer(i).v.codec == t.v for i, t in enumerate(arm.tiers)
    )
    return stored and llm.cache.tiers == arm.tiers and counters.rows >= tokens and counters.steps >= TIMED
