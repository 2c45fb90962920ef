"""`polykv tiers`: names of K/V types, real bits per value at a head_dim, and bytes per token of a model."""

from __future__ import annotations

from typing import Any

import click

from polykv.cache.codecs import CODECS, parse_tiers
from polykv.commands.options import backend_option, json_option
from polykv.commands.output import Output
from polykv.report import megabytes
from polykv.types import Codec


@click.command()
@click.option("-m", "--model", default=None, help="Also give bytes per token for this model.")
@click.option(
    "--head-dim", type=click.IntRange(min=1), default=None, help="Values of a head; default 128, or the model's."
)
@backend_option
@json_option
def command(model: str | None, head_dim: int | None, backend: str, as_json: bool) -> None:
    """List K/V types. Any of them may hold K, any may hold V: --kv K/V.

    Bits per value count everything that memory holds for a vector of --head-dim values: codes, scales, and padding
    where a type needs it. The last column says which backends run the type.
    """
    out = Output(as_json)
    names = [name for name in CODECS if name != "f32"]
    per_token, dim = (_bytes_per_token(model, names, backend)) if model else ({}, 128)
    dim = head_dim or dim
    runs = {name: _backends(CODECS[name], dim) for name in names}
    columns = ["type", "bits per value", "code bits", "values per scale", "backends"]
    rows = []
    for name in names:
        c = CODECS[name]
        scales = "none" if c.block == 1 else str(c.group(dim))
        row = [name, f"{bits(c, dim):.4g}", str(c.bits), scales, ", ".join(runs[name])]
        rows.append([*row, megabytes(per_token[name]) if name in per_token else "-"] if model else row)
    title = f"K/V types at head_dim {dim} (f32 exists for tests)"
    out.table(title, [*columns, "K and V, per token"] if model else columns, rows)
    if model:
        out.text(f"bytes per token: all layers of {model}, from arrays that the backend {backend} allocates")
        if len(per_token) < len(names):
            out.text(f"-: the backend {backend} does not run the type; --backend {_other(runs, names, backend)} does")
    tiers = [_as_dict(name, dim, runs[name], per_token) for name in names]
    out.json({"tiers": tiers, "head_dim": dim, "model": model, "backend": backend})


def bits(c: Codec, head_dim: int) -> float:
    """Bits in memory per value of a head, everything counted."""
    return 8 * c.packed_bytes(head_dim) / head_dim


def _as_dict(name: str, head_dim: int, backends: list[str], per_token: dict[str, float]) -> dict[str, Any]:
    c = CODECS[name]
    return {
        "name": name,
        "code_bits": c.bits,
        "bits_per_value": bits(c, head_dim),
        "group": c.group(head_dim),
        "exchange_block": c.block,
        "exchange_block_bytes": c.block_bytes,
        "backends": backends,
        "bytes_per_token": per_token.get(name),
    }


def _backends(c: Codec, head_dim: int) -> list[str]:
    """Backends that store and read K and V of this type."""
    from polykv.config import CacheConfig
    from polykv.ops import BACKENDS, load

    return [b for b in BACKENDS if load(b).supports_kv(c, c, head_dim, CacheConfig.block_size) is None]


def _other(runs: dict[str, list[str]], names: list[str], backend: str) -> str:
    return next(b for name in names for b in runs[name] if b != backend)


def _bytes_per_token(model: str, names: list[str], backend: str) -> tuple[dict[str, float], int]:
    """Bytes per token of the types that the backend runs, and the model's (first) head_dim.

    Raises UnsupportedError when it runs none.
    """
    from polykv.cache.plan import plan_memory
    from polykv.catalogue import resolve
    from polykv.errors import UnsupportedError
    from polykv.model.loader import load_model
    from polykv.ops import load

    config, ops = load_model(resolve(model)).config, load(backend)
    result: dict[str, float] = {}
    refusal: UnsupportedError | None = None
    for name in names:
        try:
            plan = plan_memory(config, parse_tiers(name, len(config.layers)), ctx=1, ops=ops)
        except UnsupportedError as e:
            refusal = refusal or e
            continue
        result[name] = sum(layer.token_nbytes for layer in plan.layers)
    if refusal is not None and not result:
        raise refusal
    return result, config.layers[0].head_dim
