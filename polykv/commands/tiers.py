"""`polykv tiers`: names of K/V types, bits per value, and bytes per token of a model."""

from __future__ import annotations

from typing import Any

import click

from polykv.cache.codecs import CODECS, parse_tiers
from polykv.commands.options import json_option
from polykv.commands.output import Output
from polykv.report import megabytes


@click.command()
@click.option("-m", "--model", default=None, help="Also give bytes per token for this model.")
@json_option
def command(model: str | None, as_json: bool) -> None:
    """List K/V types. Any of them may hold K, any may hold V: --kv K/V."""
    out = Output(as_json)
    names = [name for name in CODECS if name != "f32"]
    columns = ["type", "code bits", "bits per value", "values per scale"]
    per_token = _bytes_per_token(model, names) if model else {}
    rows = []
    for name in names:
        c = CODECS[name]
        bits = 8 * c.block_bytes / c.block
        row = [name, str(c.bits), f"{bits:g}", "none" if c.block == 1 else str(c.block)]
        rows.append([*row, megabytes(per_token[name])] if model else row)
    title = "K/V types (f32 exists for tests)"
    out.table(title, [*columns, "K and V, per token"] if model else columns, rows)
    if model:
        out.text(f"bytes per token: all layers of {model}, from arrays that the cpu backend allocates")
    out.json({"tiers": [_as_dict(name, per_token) for name in names], "model": model})


def _as_dict(name: str, per_token: dict[str, float]) -> dict[str, Any]:
    c = CODECS[name]
    return {
        "name": name,
        "code_bits": c.bits,
        "bits_per_value": 8 * c.block_bytes / c.block,
        "block": c.block,
        "block_bytes": c.block_bytes,
        "bytes_per_token": per_token.get(name),
    }


def _bytes_per_token(model: str, names: list[str]) -> dict[str, float]:
    from polykv.cache.plan import plan_memory
    from polykv.catalogue import resolve
    from polykv.model.loader import load_model

    config = load_model(resolve(model)).config
    result = {}
    for name in names:
        plan = plan_memory(config, parse_tiers(name, len(config.layers)), ctx=1)
        result[name] = sum(layer.token_nbytes for layer in plan.layers)
    return result
