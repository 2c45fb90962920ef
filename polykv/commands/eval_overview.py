"""`polykv eval overview`: quality, speed and memory of several K/V types on one model, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.eval_campaign import campaign_options, carry_out, factors, whole_name
from polykv.commands.eval_options import (
    FILES,
    SHARE,
    SIZE,
    base_option,
    below,
    check_codebooks,
    check_files,
    conclude,
    describe_files,
    floor_option,
    model_options_for,
    out_option,
    read_floors,
    show,
    start_threads,
    threads_option,
)
from polykv.commands.eval_report import report_options, write_reports
from polykv.commands.eval_text import corpus_option, describe_corpus, read_corpus
from polykv.commands.numbers import Number
from polykv.commands.options import json_option
from polykv.commands.output import Output
from polykv.errors import ConfigError
from polykv.evals.corpora import CORPORA
from polykv.evals.overview_judge import CONTROL, Role, invalid, relative, remarks

if TYPE_CHECKING:
    from polykv.evals.campaign import Task
    from polykv.evals.result import Cell, Result

DEFAULT = ("q8_0", "q8_0/turbo3", "turbo4", "turbo4+c/turbo3,sink=4", "turbo3", "q4_0+r")
FLOORS = {
    **dict.fromkeys(("same_top", "real_frac", "mean_tv", "recall"), SHARE),
    **dict.fromkeys(("kld", "kld_p99", "decode_ratio", "prefill_ratio", "smaller"), SIZE),
}
HIGHER = frozenset({"same_top", "recall", "decode_ratio", "prefill_ratio", "smaller"})
COUNT = click.IntRange(min=1)


@click.command()
@model_options_for(DEFAULT)
@base_option
@corpus_option
@click.option("--ctx", "ctxs", type=click.IntRange(min=64), multiple=True, help="Depth, default 1024; repeat it.")
@click.option("--windows", type=COUNT, default=2, show_default=True, help="Windows of --ctx tokens for divergence.")
@click.option("--prompts", type=COUNT, default=6, show_default=True, help="Prompts of the gate.")
@click.option("--length", type=click.IntRange(min=64), default=500, show_default=True, help="Their tokens.")
@click.option("--tokens", type=COUNT, default=48, show_default=True, help="Tokens after each.")
@click.option("--bar", type=Number(0, 1), default=0.15, show_default=True, help="Of the gate.")
@click.option("--max-ppl", type=Number(min=1), default=100.0, show_default=True, help="See `eval kld`.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@floor_option(FLOORS)
@campaign_options
@threads_option
@report_options
@out_option
@json_option
def command(as_json: bool, out: Path | None, kvs: tuple[str, ...], floors: tuple[str, ...], **values: Any) -> None:
    """Quality, speed and memory of the types given with --kv, each in a process of its own.

    The campaign begins and ends with the exact types and has the control q8_0. It is void (exit code 3) when the two
    ends differ, when exact types differ from themselves, or when the control moves predictions. A --floor makes the
    exit code 1 when a type is worse.
    """
    output = Output(as_json)
    check_files(values, out=out, html=values["html"], markdown=values["markdown"], store=values["store"])
    limits = read_floors(floors, FLOORS)
    if values["corpus"] == "-":
        raise ConfigError("overview reads its text in several processes: --corpus takes a name or a file")
    text = read_corpus(values["corpus"])
    start_threads(values["backend"], values["threads"])
    asked, ctxs = tuple(dict.fromkeys(kvs or DEFAULT)), tuple(dict.fromkeys(values["ctxs"] or (1024,)))
    tasks = _tasks(values, asked, ctxs)
    cells = carry_out(tasks, values, output)
    result = _judge(cells, values | describe_corpus(values["corpus"], text) | describe_files(values), asked, limits)
    show(output, result)
    conclude(output, result, out, lambda: write_reports(result, values, output))


def _judge(cells: list[Cell], values: dict[str, Any], asked: tuple[str, ...], limits: dict[str, float]) -> Result:
    from polykv.evals.result import Result

    void: list[str] = []
    worse: list[str] = []
    judged: list[Cell] = []
    notes: list[str] = []
    for ctx in dict.fromkeys(c["ctx"] for c in cells):
        here = relative([c for c in cells if c["ctx"] == ctx])
        void += invalid(here, values["max_ppl"])
        arms = [c for c in here if c["kv"] in asked and c["role"] != Role.LAST and "error" not in c]
        worse += [f"{c['kv']} {c['nonsense']}" for c in arms if not c["coherent"]]
        worse += below(arms, limits, HIGHER)
        judged += here
        notes += remarks(here)
    stamps = [c.pop("stamp") for c in judged if "stamp" in c]
    names = ("base", "corpus", "text", *FILES, "windows", "prompts", "length", "tokens")
    settings = {name: values[name] for name in (*names, "bar", "max_ppl", "seed")} | {"kv": list(asked)}
    result = Result("overview", stamps[0] if stamps else {}, settings, judged).judge(void, worse)
    result.notes = list(dict.fromkeys(notes))
    return result


def _tasks(values: dict[str, Any], asked: tuple[str, ...], ctxs: tuple[int, ...]) -> list[Task]:
    """All cells in order. Raises a PolyKVError for what no process could do, before any is started."""
    from polykv.evals.campaign import Task
    from polykv.evals.cell_inputs import identity, open_arm
    from polykv.evals.overview import open_inputs

    base = values["base"]
    arms = [(kv, Role.ARM) for kv in asked if kv != base]
    control = [] if CONTROL in (*asked, base) else [(CONTROL, Role.CONTROL)]
    found = []
    for ctx in ctxs:
        shared = _shared(values) | {"ctx": ctx}
        inputs = open_inputs(shared)
        layers = len(inputs.setting.model.config.layers)
        if ctx == ctxs[0] and values["codebooks"]:
            check_codebooks(asked, layers)
        for kv, role in [(base, Role.FIRST), *control, *arms, (base, Role.LAST)]:
            settings = {**shared, "kv": kv, "role": role, **factors(values, kv, layers)}
            open_arm(inputs.setting, settings)
            found.append(Task("overview", settings | {"identity": identity(inputs.setting, settings, inputs.text)}))
    return found


def _shared(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of every cell; files by their whole names, for a process may have another current folder."""
    names = ("backend", "threads", "base", "windows", "prompts", "length", "tokens", "bar", "seed")
    shared = {name: values[name] for name in names}
    shared["model"] = whole_name(values["model"])
    # As for `read_corpus`: the name of a shipped text means that text.
    shared["corpus"] = values["corpus"] if values["corpus"] in CORPORA else str(Path(values["corpus"]).absolute())
    return shared
