"""`polykv eval logits`: does a run with compressed K/V choose the tokens of an exact one."""

from __future__ import annotations

from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.eval_options import (
    base_option,
    check_files,
    conclude,
    counting,
    describe_files,
    model_options,
    open_arms,
    run_options,
    show,
    start_threads,
)
from polykv.commands.eval_store import open_store, store_option
from polykv.commands.eval_text import corpus_option, describe_corpus, read_corpus
from polykv.commands.numbers import Number
from polykv.commands.output import Output

if TYPE_CHECKING:
    from polykv.evals.arms import Arm, Setting
    from polykv.evals.gate_run import Damage, GatePrompt, Recorded
    from polykv.evals.kept import Kept
    from polykv.evals.result import Cell
    from polykv.types import Activations

# Share of prompts with a real disagreement that passes, of types that lose something.
LOSSY_BAR = 0.15


@click.command()
@model_options
@base_option
@corpus_option
@store_option
@click.option("--prompts", "file", type=click.Path(dir_okay=False, path_type=Path), help="JSON list of prompts.")
@click.option("--n", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts that are made.")
@click.option("--length", type=click.IntRange(min=64), default=700, show_default=True, help="Their tokens.")
@click.option("--tokens", type=click.IntRange(min=1), default=48, show_default=True, help="Tokens after each.")
@click.option("--free", is_flag=True, help="Both runs go their own way (mode F); else led along the exact one.")
@click.option("--bar", type=Number(0, 1), default=LOSSY_BAR, show_default=True, help="See above.")
@click.option("--equal", is_flag=True, help="The runs should be equal: bar 0, and total variation below 0.002.")
@click.option("--margin", type=Number(min=0), default=0.7, show_default=True, help="Nats of a tie.")
@click.option("--self-test", is_flag=True, help="Also damage the cache on purpose; the gate must refuse that.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@run_options
def command(as_json: bool, out: Path | None, kvs: tuple[str, ...], base: str, **values: Any) -> None:
    """Does a run with compressed K/V choose the tokens of a run with exact K/V?

    Prompts are passages with a number hidden in them and a question for it, or those of --prompts FILE, a JSON list of
    {"prompt": text, "answer": text}. A type passes when at most --bar of the prompts have a real disagreement (not a
    tie, not after the answer), no answer is lost, and the distributions stay close (total variation below 0.3). The
    exact run is made twice first; if it does not repeat, the result is void (exit code 3).
    """
    from polykv.evals.arms import make_arm, never_coded
    from polykv.evals.damage import check_exact
    from polykv.evals.gate import cut_off
    from polykv.evals.kept import Kept
    from polykv.evals.overview_judge import NO_RECALL
    from polykv.evals.result import Result
    from polykv.evals.stamp import stamp
    from polykv.llm import choose_activations

    output = Output(as_json)
    check_files(values, out=out, store=values["store"])
    start_threads(values["backend"], values["threads"])
    activations = choose_activations(values["backend"], values["activations"])
    setting, prompts, text = _open(values, activations)
    arms, exact = open_arms(setting, kvs, values), make_arm(setting, base)
    if values["self_test"]:
        check_exact(exact.tiers)
    with open_store(values["store"], output) as store:
        bench = _Bench(setting, exact, prompts, values, output, Kept.of("logits", setting, store))
        cells = [bench.judge(arm.name, arm, equal=values["equal"]) for arm in arms]
        tests = bench.self_test() if values["self_test"] else []
    invalid = [] if bench.repeats else [f"two runs with {base} differ: nothing that differs from them means anything"]
    # The last token of a prompt's run is predicted, not read.
    longest = max(len(p.ids) for p in prompts) + values["tokens"] - 1
    invalid += never_coded(setting.model.config, arms, longest)
    cells += tests
    invalid += [f"the gate passes a run with {c['kv']}" for c in tests if c["passes"]]
    names = ("length", "tokens", "free", "bar", "equal", "margin", "seed")
    settings = {"base": base, "prompts": len(prompts), "recall": bench.recall, **text, **{n: values[n] for n in names}}
    made = stamp(setting.model, backend=setting.ops.name, activations=activations, threads=values["threads"])
    below = [f"{c['kv']} fails" for c in cells if not c["passes"] and not c["self_test"]]
    result = Result("logits", made, settings, cells).judge(invalid, below)
    if bench.recall == 0:
        result.notes.append(NO_RECALL)
    result.notes += cut_off(c for c in cells if not c["self_test"])
    show(output, result)
    conclude(output, result, out)


class _Bench:
    """The exact run, and candidates against it."""

    def __init__(
        self,
        setting: Setting,
        exact: Arm,
        prompts: list[GatePrompt],
        values: dict[str, Any],
        output: Output,
        kept: Kept,
    ) -> None:
        from polykv.evals.arms import cache_identity
        from polykv.evals.ids import ids_digest

        self._setting, self._exact, self._prompts, self._values, self._output = setting, exact, prompts, values, output
        self._kept, self._identity = kept, partial(cache_identity, setting)
        answers = [list(p.answer.encode()) for p in prompts]
        self._shared = {
            "base": self._identity(exact),
            "prompts": ids_digest([*(p.ids for p in prompts), *answers]),
            "tokens": values["tokens"],
        }
        known = kept.get(**self._shared)
        if known is None:
            known = self._repeat()
            kept.add(known, **self._shared)
        self.repeats: bool = known["repeats"]
        # Of the prompts that have an answer, how many the exact run answers; None if none has.
        self.recall: float | None = known["recall"]

    @cached_property
    def _reference(self) -> Recorded:
        return self._record(self._exact, None, None)

    def _repeat(self) -> dict[str, Any]:
        """What is known of the exact run, from two of them."""
        first = self._reference
        asked = [(p.answer, r.text) for p, r in zip(self._prompts, first.runs, strict=True) if p.answer]
        recall = sum(answer in text for answer, text in asked) / len(asked) if asked else None
        return {"repeats": first.equals(self._record(self._exact, None, None)), "recall": recall}

    def judge(self, name: str, arm: Arm, *, equal: bool, damage: Damage | None = None) -> Cell:
        """The figures of one candidate. equal: it should differ by rounding at most."""
        from polykv.evals.gate import EQUAL_TV, MAX_TV

        bar, max_tv = (0.0, EQUAL_TV) if equal else (self._values["bar"], MAX_TV)
        limits = {"free": self._values["free"], "margin": self._values["margin"], "bar": bar, "max_tv": max_tv}
        own = {**self._shared, **limits, "kv": name, "cache": self._identity(arm), "self_test": damage is not None}
        cell = self._kept.get(**own)
        if cell is None:
            cell = self._measure(name, arm, bar, max_tv, damage)
            self._kept.add(cell, **own)
        return cell

    def _measure(self, name: str, arm: Arm, bar: float, max_tv: float, damage: Damage | None) -> Cell:
        from polykv.evals.gate import compare, summary

        free, margin = self._values["free"], self._values["margin"]
        mine = self._record(arm, None if free else self._reference, damage)
        pairs = zip(self._reference.runs, mine.runs, self._prompts, strict=True)
        found = [compare(r, c, p.answer, forced=not free, margin=margin) for r, c, p in pairs]
        return {"kv": name, "self_test": damage is not None, **summary(found, bar, max_tv)}

    def self_test(self) -> list[Cell]:
        """Candidates that must not pass for equal: the exact types, and a damage each."""
        from polykv.evals.damage import DAMAGES

        return [self.judge(name, self._exact, equal=True, damage=damage) for name, damage in DAMAGES.items()]

    def _record(self, arm: Arm, lead: Recorded | None, damage: Damage | None) -> Recorded:
        from polykv.evals.gate_run import record

        with Compiling(self._setting.ops.name), self._output.progress(arm.name) as update:
            return record(
                self._setting,
                arm,
                self._prompts,
                self._values["tokens"],
                lead=lead,
                damage=damage,
                on_progress=counting(update, arm.name),
            )


def _open(values: dict[str, Any], activations: Activations) -> tuple[Setting, list[GatePrompt], dict[str, Any]]:
    """The model for the longest prompt, the prompts, and what was read, for the settings of the result."""
    from polykv.errors import ConfigError
    from polykv.evals.arms import open_setting
    from polykv.evals.gate_prompts import needle_prompts, read_prompts
    from polykv.prompt import Prompts
    from polykv.text.chat import ChatTemplate
    from polykv.text.tokenizer import Tokenizer

    def opened(ctx: int) -> Setting:
        return open_setting(values["model"], backend=values["backend"], activations=activations, ctx=ctx)

    # The length of prompts from a file is not known before the model's tokenizer is.
    setting = opened(2 if values["file"] else values["length"] + values["tokens"])
    metadata = setting.model.gguf.metadata
    tokenizer = Tokenizer.from_gguf(metadata)
    prompts = Prompts(tokenizer, ChatTemplate.from_gguf(metadata, tokenizer))
    if values["file"] is None:
        text = read_corpus(values["corpus"])
        made = needle_prompts(prompts, text, values["n"], values["length"], values["seed"])
        return setting, made, describe_corpus(values["corpus"], text) | describe_files(values)
    found = read_prompts(prompts, values["file"])
    longest, limit = max(len(p.ids) for p in found) + values["tokens"], setting.model.config.context
    if longest > limit:
        raise ConfigError(f"{values['file']}: the longest prompt needs {longest:,} tokens, the model has {limit:,}")
    content = values["file"].read_text(encoding="utf-8")
    return opened(longest), found, describe_corpus(str(values["file"]), content) | describe_files(values)
