"""`polykv doctor`: what works here, and why not."""

from __future__ import annotations

import click

from polykv.commands.options import calibration_option, calibration_v_option, json_option
from polykv.commands.output import Output
from polykv.errors import UnsupportedError


@click.command()
@calibration_option
@calibration_v_option
@json_option
def command(calibration: str | None, calibration_v: str | None, as_json: bool) -> None:
    """Examine this machine, and calibration files that are given. Exit code 2 when something does not work that polykv
    needs."""
    from polykv.doctor import State, examine

    out = Output(as_json)
    with out.status("looking"):
        checks = examine({"K": calibration, "V": calibration_v})
    out.table("", ["check", "", "what was found"], [[c.name, c.state.value, c.text] for c in checks], text_columns=3)
    out.json({"checks": [{"name": c.name, "state": c.state.value, "text": c.text} for c in checks]})
    bad = [c.name for c in checks if c.state is State.BAD]
    if bad:
        raise UnsupportedError(f"polykv cannot run here: {', '.join(bad)}; see the table")
