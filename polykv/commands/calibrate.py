"""`polykv calibrate`: factors for the channels of K, from a text, for --calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from polykv.cache.equalize import Rule
from polykv.commands.ask import read_document
from polykv.commands.compiling import Compiling
from polykv.commands.numbers import Number
from polykv.commands.options import backend_option, json_option, model_option
from polykv.commands.output import Output
from polykv.whole_file import check_writable

if TYPE_CHECKING:
    from polykv.calibrator import Calibrated

RULES = [rule.value for rule in Rule]


@click.command()
@click.argument("text")
@model_option
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), help="File for the factors of K.")
@click.option("--values", type=click.Path(dir_okay=False), default=None, help="Also a file for the factors of V.")
@click.option("--rule", type=click.Choice(RULES), default=RULES[0], show_default=True, help="How factors are chosen.")
@click.option(
    "--strength", type=Number(0, 1, min_open=True), default=0.5, show_default=True, help="Of the rule innerq."
)
@click.option("--tokens", type=click.IntRange(min=1), default=4096, show_default=True, help="Tokens of TEXT to read.")
@backend_option
@json_option
def command(
    text: str,
    model: str,
    output: str,
    values: str | None,
    rule: str,
    strength: float,
    tokens: int,
    backend: str,
    as_json: bool,
) -> None:
    """Read TEXT (a file, or - for standard input) with a model and write factors for the channels of its keys.

    "balanced" weighs keys against queries and gives every kv head of every layer factors of its own (file TIQ3);
    "innerq" looks at keys alone, for all layers of one width together (files TIQ1 and TIQ2, which other programs read
    and write). Take a text like those that will be read, not the one that quality is measured with.
    """
    from polykv.cache.calibration_file import write_slots
    from polykv.calibrator import calibrate

    out = Output(as_json)
    for path in (output, *([] if values is None else [values])):
        check_writable(path)
    document = read_document(text)
    with Compiling(backend), out.progress("calibrating") as update:
        found = calibrate(
            model,
            document,
            rule=rule,
            strength=strength,
            values=values is not None,
            max_tokens=tokens,
            backend=backend,
            on_progress=lambda done, total: update(done, total, "calibrating"),
        )
    files = {"k": output} | ({} if values is None else {"v": values})
    sizes = {side: len(write_slots(path, getattr(found.calibration, side))) for side, path in files.items()}
    _show(out, found, files, sizes)
    out.json(
        {
            "rule": rule,
            "tokens": found.tokens,
            "calibration": found.calibration.identity(),
            "files": files,
            "bytes": sizes,
            "k_noise": found.k_noise,
            "v_noise": found.v_noise,
        }
    )


def _show(out: Output, found: Calibrated, files: dict[str, str], sizes: dict[str, int]) -> None:
    from polykv.report import runs

    for side, noise, what in (("k", found.k_noise, "scores"), ("v", found.v_noise, "outputs")):
        if side not in files:
            continue
        factors = [getattr(e, side) for e in found.equalizers]
        if all(f is None for f in factors):
            out.note(f"{side.upper()}: all channels are alike (within a factor of 1.2), every factor is 1")
        facts = [
            ("1" if f is None else f"{f.min():.2f} to {f.max():.2f}", f"{x:.2f}")
            for f, x in zip(factors, noise, strict=True)
        ]
        rows = [[layers, *row] for layers, row in runs(facts)]
        out.table(
            f"{side.upper()}: {files[side]}, {sizes[side]:,} bytes",
            ["layers", "factors", "error"],
            rows,
            f"error: predicted squared error of {what} with rotated types, relative to that without factors",
        )
    out.text(f"{found.tokens:,} tokens read; --calibration FILE uses it (polykv.load(..., calibration=FILE))")
