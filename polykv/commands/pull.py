"""`polykv pull`: bring a catalogue model into the user's cache."""

from __future__ import annotations

import click

from polykv.commands.options import json_option
from polykv.commands.output import Output
from polykv.errors import DownloadError
from polykv.report import megabytes


@click.command()
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """Download NAME once, check its sha256 and keep it. Without NAME, list what there is."""
    from polykv.catalogue import CATALOGUE, model_dir, pull

    out = Output(as_json)
    if name is None:
        rows = [
            [
                e.name,
                e.about,
                e.licence,
                megabytes(e.size),
                "yes" if (model_dir() / f"{e.name}.gguf").is_file() else "no",
            ]
            for e in CATALOGUE.values()
        ]
        out.table("catalogue", ["name", "what", "licence", "size", "here"], rows, text_columns=3)
        out.json({"models": [{"name": e.name, "size": e.size, "sha256": e.sha256} for e in CATALOGUE.values()]})
        return
    if name.startswith("hf:"):
        raise DownloadError(f"{name}: pull is for catalogue models; -m {name} downloads it at first use")
    if name in CATALOGUE:
        out.note(f"{name}: {CATALOGUE[name].about}; licence: {CATALOGUE[name].licence}")
    with out.progress(f"pulling {name}", size=True) as update:
        path = pull(name, update)
    out.text(str(path))
    out.json({"name": name, "path": str(path), "bytes": path.stat().st_size})
