"""`polykv inspect`: metadata, tensors and configuration of a GGUF file."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from polykv.commands.options import json_option, model_option
from polykv.commands.output import Output
from polykv.errors import FormatError, PolyKVError
from polykv.report import megabytes, runs

if TYPE_CHECKING:
    from polykv.config import LayerConfig, ModelConfig
    from polykv.model.gguf import GgufFile

LONGEST = 72


@click.command()
@click.argument("file", required=False)
@model_option
@click.option("--tensors", is_flag=True, help="List every tensor.")
@click.option("--check-tensors", is_flag=True, help="Read all weights; exit code 2 if any is NaN or infinite.")
@json_option
def command(file: str | None, model: str, tensors: bool, check_tensors: bool, as_json: bool) -> None:
    """Show what FILE (or -m MODEL) holds."""
    from polykv.catalogue import resolve
    from polykv.model.gguf import read_gguf
    from polykv.model.gguf_check import nonfinite
    from polykv.model.loader import load_model

    out = Output(as_json)
    path = resolve(file or model)
    gguf = read_gguf(path)
    _metadata(out, gguf)
    _types(out, gguf)
    if tensors:
        rows = [[t.name, t.type.name, "x".join(map(str, t.shape)), megabytes(t.nbytes)] for t in gguf.tensors.values()]
        out.table("tensors", ["name", "type", "shape", "bytes"], rows, text_columns=3)
    for note in gguf.notes:
        out.note(note)
    result: dict[str, Any] = {
        "path": str(path),
        "version": gguf.version,
        "metadata": {k: _plain(v) for k, v in gguf.metadata.items()},
        "tensors": {t.name: [t.type.name, list(t.shape)] for t in gguf.tensors.values()},
    }
    try:
        config = load_model(path).config
    except PolyKVError as e:
        # A file of an architecture that does not run here can still be looked at.
        out.note(f"this build cannot run it: {e}")
        result["error"] = str(e)
    else:
        _layers(out, config)
        result["config"] = {
            k: getattr(config, k) for k in ("arch", "name", "embd", "vocab", "context", "eps", "tied_head")
        }
        result["layers"] = len(config.layers)
    faults = [str(f) for f in nonfinite(gguf)] if check_tensors else []
    if check_tensors:
        out.text("\n".join(faults) or "all weights are finite")
        result["faults"] = faults
    out.json(result)
    if faults:
        raise FormatError(
            path, "", f"{len(faults)} of {len(gguf.tensors)} tensors hold NaN or infinite weights: get the file again"
        )


def _plain(value: object) -> object:
    """A value for JSON: numbers and texts as they are, arrays (a vocabulary) as their length."""
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no such numbers.
        return str(value)
    return value if isinstance(value, str | int | float) else _short(value)


def _short(value: object) -> str:
    """A value for people, on one line."""
    if isinstance(value, np.ndarray) or (isinstance(value, Sequence) and not isinstance(value, str)):
        return f"array of {len(value)}"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text):,} characters)"


def _metadata(out: Output, gguf: GgufFile) -> None:
    rows = [[key, _short(value)] for key, value in gguf.metadata.items()]
    out.table(f"{gguf.path.name}: GGUF version {gguf.version}", ["key", "value"], rows, text_columns=2)


def _types(out: Output, gguf: GgufFile) -> None:
    groups: dict[str, list[int]] = defaultdict(list)
    for t in gguf.tensors.values():
        groups[t.type.name].append(t.nbytes)
    rows = [[name, str(len(sizes)), megabytes(sum(sizes))] for name, sizes in sorted(groups.items())]
    total = [sum(len(s) for s in groups.values()), sum(sum(s) for s in groups.values())]
    out.table("tensors by type", ["type", "tensors", "bytes"], [*rows, ["all", str(total[0]), megabytes(total[1])]])


def _layers(out: Output, config: ModelConfig) -> None:
    """One row per run of equal layers."""
    rows = [[layers, *facts] for layers, facts in runs(map(_facts, config.layers))]
    title = f"{config.arch}: {config.name}, {config.embd} wide, vocabulary {config.vocab:,}, context {config.context:,}"
    columns = ["layers", "attention", "heads", "kv heads", "head_dim", "mlp", "rope base", "rope rule"]
    out.table(title, columns, rows, text_columns=2)


def _facts(layer: LayerConfig) -> list[str]:
    mixer = f"{layer.mixer.value} {layer.window}" if layer.window else layer.mixer.value
    rope = layer.rope
    rule = rope.scaling.value if rope.freq_factors is None else "freq factors"
    return [mixer, *map(str, (layer.n_heads, layer.n_kv, layer.head_dim, layer.ffn)), f"{rope.base:g}", rule]
