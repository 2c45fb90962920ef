"""--corpus: the text that an instrument reads, one that comes with polykv or the user's own."""

from __future__ import annotations

from pathlib import Path

import click

from polykv.commands.ask import read_document
from polykv.evals.corpora import CORPORA, corpus, text_digest

corpus_option = click.option(
    "--corpus",
    default="opticks",
    show_default=True,
    metavar="NAME|FILE",
    help=f"Text to read: {', '.join(CORPORA)}, a file, or - for standard input.",
)


def describe_corpus(name: str, text: str) -> dict[str, str]:
    """For the settings of a result: the name without folders, for results are passed on, and what tells the text from
    others of that name."""
    return {"corpus": name if name in CORPORA else Path(name).name, "text": text_digest(text.encode())}


def read_corpus(name: str) -> str:
    """The text; a file in the current folder that has the name of a shipped text is written ./NAME."""
    return corpus(name) if name in CORPORA else read_document(name)
