"""The `polykv` command: a table of subcommands, and what happens to their errors.

A subcommand is `polykv.commands.<module>`, imported when it is used, so that `polykv --help` is instant. Environment
variables are read here only: POLYKV_MODEL and POLYKV_BACKEND are defaults of -m and --backend. Exit codes: 0, 1 (a
floor of `eval`), 2 (a PolyKVError or a wrong option), 3 (--strict; `eval`: void), 130 (Ctrl-C).
"""

from __future__ import annotations

import errno
import os
import sys
from typing import ClassVar

import click

from polykv import __version__
from polykv.commands import streams
from polykv.commands.lazy import Entry, LazyGroup
from polykv.errors import PolyKVError

# subcommand -> (module in polykv.commands, one line for --help)
COMMANDS: dict[str, tuple[str, str]] = {
    "ask": ("ask", "Several agents answer questions about one document."),
    "generate": ("generate", "Continue or answer one prompt."),
    "chat": ("chat", "Talk; the history stays in the cache, turns can be edited and retried."),
    "inspect": ("inspect", "What a GGUF file holds."),
    "plan": ("plan", "Memory of a cache before anything is loaded."),
    "eval": ("eval", "What compressing K/V does to predictions and answers."),
    "calibrate": ("calibrate", "Factors for the channels of K, which make low-bit types better."),
    "tiers": ("tiers", "Names of K/V types and what they cost."),
    "train-codebook": ("train_codebook", "A codebook for a trellis type, if there is a better one."),
    "doctor": ("doctor", "What works on this machine, and why not."),
    "pull": ("pull", "Bring a catalogue model into the cache."),
}
ENVIRONMENT = {"POLYKV_MODEL": "model", "POLYKV_BACKEND": "backend"}


class Table(LazyGroup):
    """The subcommands of the table above."""

    title = "Commands"
    entries: ClassVar[dict[str, Entry]] = {name: (module, "command", line) for name, (module, line) in COMMANDS.items()}


@click.command(cls=Table, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="polykv")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Many agents read one long document; its K/V is held once, compressed."""
    defaults = {option: os.environ[name] for name, option in ENVIRONMENT.items() if os.environ.get(name)}
    ctx.default_map = dict.fromkeys(COMMANDS, defaults)


def main() -> None:
    """Run the command line and exit."""
    streams.prepare()
    streams.leave(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run the command line; the exit code. No traceback for anything that a user can cause."""
    try:
        with group.make_context("polykv", args) as ctx:
            group.invoke(ctx)
    except click.exceptions.Exit as e:
        return e.exit_code
    except PolyKVError as e:
        streams.error(e)
        return e.exit_code
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return 0
    except click.ClickException as e:
        hint = f" (see {e.ctx.command_path} --help)" if isinstance(e, click.UsageError) and e.ctx else ""
        streams.error(f"{e.format_message()}{hint}")
        return 2
    except MemoryError as e:
        streams.error(f"not enough memory: {str(e) or 'the system gives no more'}")
        return 2
    except (KeyboardInterrupt, click.Abort):
        streams.say("\npolykv: interrupted")
        return 130
    except BrokenPipeError:
        # The reader of a pipe left (`polykv ask | head`).
        streams.drop(sys.stdout)
    except OSError as e:
        if e.errno != errno.ENOSPC:
            raise
        streams.drop(sys.stdout)
        streams.error(f"the output cannot be written: {e.strerror}")
        return 2
    return 0
