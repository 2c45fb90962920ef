"""A group of commands that are imported when they are used."""

from __future__ import annotations

import importlib
from typing import ClassVar

import click

# module in polykv.commands, name of the command in it, one line for --help
Entry = tuple[str, str, str]


class LazyGroup(click.Group):
    """Its commands are those of `entries`, in this order; `title` stands above them in --help."""

    title: ClassVar[str]
    entries: ClassVar[dict[str, Entry]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.entries:
            return None
        module, attribute, _ = self.entries[name]
        command = importlib.import_module(f"polykv.commands.{module}").__dict__[attribute]
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self.title):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.entries.items()])
