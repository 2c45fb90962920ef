"""`polykv eval shift`: does a model go on counting when its context is full and half of it is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.eval_campaign import campaign_options, carry_out, factors, whole_name
from polykv.commands.eval_options import (
    DEFAULT_ARMS,
    base_option,
    check_codebooks,
    check_files,
    conclude,
    describe_files,
    model_options,
    run_options,
    show,
    start_threads,
)
from polykv.commands.eval_report import report_options, write_reports
from polykv.commands.output import Output
from polykv.errors import ConfigError

if TYPE_CHECKING:
    from polykv.evals.arms import Setting
    from polykv.evals.campaign import Task
    from polykv.evals.result import Cell, Result

COUNT = click.IntRange(min=1)


@click.command()
@model_options
@base_option
@click.option("--ctx", type=click.IntRange(min=64), default=None, help="Default 8192, or what the model has.")
@click.option(
    "--keep", type=click.IntRange(min=0), default=4, show_default=True, help="Tokens kept from the beginning."
)
@click.option("--count-to", type=COUNT, default=None, help="The prompt counts to it; default: 60 % of --ctx.")
@click.option("--tokens", type=COUNT, default=None, help="To count on for; default: 6000 of 8192, in proportion.")
@click.option(
    "--self-test", is_flag=True, help="Also shift with wrong positions on purpose; the gate must refuse that."
)
@campaign_options
@run_options
@report_options
def command(as_json: bool, out: Path | None, kvs: tuple[str, ...], **values: Any) -> None:
    """Does a model go on counting when its context is full and half of it is dropped (`generate --shift`)?

    A prompt counts to a number, the answer overflows the context. A type passes when the first number is the next one,
    each is one more than the one before, and all after the shift is as after a fresh prompt of the kept tokens. The
    result is void (exit code 3) when no shift happens or the exact types cannot count across one.
    """
    output = Output(as_json)
    check_files(values, out=out, html=values["html"], markdown=values["markdown"], store=values["store"])
    start_threads(values["backend"], values["threads"])
    setting, shared = _open(values)
    asked = tuple(dict.fromkeys(kvs or DEFAULT_ARMS))
    tasks = _tasks(setting, shared, values, asked)
    cells = carry_out(tasks, values, output)
    result = _judge(cells, {**shared, "kv": list(asked), "base": values["base"], **describe_files(values)})
    show(output, result)
    conclude(output, result, out, lambda: write_reports(result, values, output))


def _open(values: dict[str, Any]) -> tuple[Setting, dict[str, Any]]:
    """The model, and the settings of every cell. Raises ConfigError for sizes that do not fit together."""
    from polykv.evals.arms import open_setting
    from polykv.evals.shift import ANSWER, CONTEXT, count_text, fitted
    from polykv.llm import choose_activations
    from polykv.prompt import Prompts
    from polykv.text.tokenizer import Tokenizer

    activations = choose_activations(values["backend"], values["activations"])

    def opened(ctx: int) -> Setting:
        return open_setting(values["model"], backend=values["backend"], activations=activations, ctx=ctx)

    ctx = values["ctx"] or min(CONTEXT, opened(2).model.config.context)
    if values["keep"] > ctx // 2:
        raise ConfigError(f"--keep {values['keep']}: the gate keeps at most half of its context of {ctx:,} tokens")
    setting = opened(ctx)
    prompts = Prompts(Tokenizer.from_gguf(setting.model.gguf.metadata), None)

    def tokens(text: str) -> int:
        return len(prompts.text(text))

    last = values["count_to"] or fitted(ctx, tokens)
    if not last or tokens(count_text(last)) >= ctx:
        raise ConfigError(f"counting to {last} does not fit into a context of {ctx:,} tokens (--count-to, --ctx)")
    names = ("backend", "threads", "activations", "keep")
    sizes = {"ctx": ctx, "last": last, "tokens": values["tokens"] or round(ANSWER * ctx)}
    return setting, {"model": whole_name(values["model"]), **{name: values[name] for name in names}, **sizes}


def _tasks(setting: Setting, shared: dict[str, Any], values: dict[str, Any], asked: tuple[str, ...]) -> list[Task]:
    """The control, the types to compare, and what must not pass. Raises a PolyKVError for what no process could do."""
    from polykv.evals.campaign import Task
    from polykv.evals.cell_inputs import identity, open_arm
    from polykv.evals.damage import check_exact
    from polykv.evals.overview_judge import Role
    from polykv.evals.shift_run import DAMAGES

    base, layers = values["base"], len(setting.model.config.layers)
    if values["codebooks"]:
        check_codebooks(asked, layers)
    found = []
    damages = list(DAMAGES) if values["self_test"] else []
    plain = [(base, Role.ARM if base in asked else Role.CONTROL), *((kv, Role.ARM) for kv in asked if kv != base)]
    for kv, role, damage in [*((*a, None) for a in plain), *((base, Role.ARM, d) for d in damages)]:
        settings = {**shared, "kv": kv, "role": role, "damage": damage, **factors(values, kv, layers)}
        arm = open_arm(setting, settings)
        if damage is not None:
            check_exact(arm.tiers)
        found.append(Task("shift", settings | {"identity": identity(setting, settings)}))
    return found


def _judge(cells: list[Cell], settings: dict[str, Any]) -> Result:
    from polykv.evals.result import Result
    from polykv.evals.shift import below, invalid

    stamps = [c.pop("stamp") for c in cells if "stamp" in c]
    # These are in the stamp, the model without folders.
    stamped = ("model", "backend", "threads", "activations")
    kept = {name: value for name, value in settings.items() if name not in stamped}
    return Result("shift", stamps[0] if stamps else {}, kept, cells).judge(invalid(cells), below(cells))
