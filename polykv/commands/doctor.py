"""`polykv doctor`: what works here, and why not."""

from __future__ import annotations

import click

from polykv.commands.options import json_option
from polykv.commands.output import Output
from polykv.errors import UnsupportedError


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Examine this machine. Exit code 2 when something that polykv needs does not work."""
    from polykv.doctor import State, examine

    out = Output(as_json)
    with out.status("looking"):
        checks = examine()
    out.table("", ["check", "", "what was found"], [[c.name, c.state.value, c.text] for c in checks], text_columns=3)
    out.json({"checks": [{"name": c.name, "state": c.state.value, "text": c.text} for c in checks]})
    bad = [c.name for c in checks if c.state is State.BAD]
    if bad:
        raise UnsupportedError(f"polykv cannot run here: {', '.join(bad)}; see the table")
