"""--store: cells of a campaign are kept as they are done, and not measured again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polykv.commands.output import Output

if TYPE_CHECKING:
    from polykv.evals.store import Store

store_option = click.option(
    "--store",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep cells here as they are done; what is there is not measured again.",
)


@contextmanager
def open_store(path: Path | None, output: Output) -> Iterator[Store | None]:
    """The store of a file, for this campaign alone; None without one. Damage is noted.

    Raises ConfigError when another campaign has it or it cannot be read, FormatError for another file.
    """
    from polykv.evals.store import Store, alone

    if path is None:
        yield None
        return
    with alone(path):
        store = Store(path)
        if store.damaged:
            lines = ", ".join(map(str, store.damaged[:5])) + ", ..." * (len(store.damaged) > 5)
            where = f"line{'s' * (len(store.damaged) > 1)} {lines}"
            output.note(f"{path}: damaged at {where}: what was kept there is measured again")
        yield store
