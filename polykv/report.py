"""What ran, what it took and what it shared: one plain dict for JSON, one set of tables for people.

Every number is measured: bytes are sums over the real arrays, tokens per second come from timed steps, and the counters
belong to the objects that do the work (runner, engine, pool, blocks).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from polykv.llm import LLM

Report = dict[str, Any]


def make_report(llm: LLM) -> Report:
    """The report of one `LLM` up to now; JSON-serialisable."""
    engine, cache = llm.engine, llm.cache
    engine.sweep()
    c = engine.counters
    # Before planning, which allocates sample blocks itself.
    calls = dict(llm.ops.calls)
    plan = llm.plan()
    return {
        "model": {
            "name": llm.config.name,
            "arch": llm.config.arch,
            "file": str(llm.model.gguf.path),
            "fingerprint": llm.model.fingerprint,
            "notes": list(llm.notes),
        },
        "backend": llm.ops.name,
        "activations": llm.activations.name.lower(),
        "kv": llm.kv,
        "context": llm.context,
        "layers": [_layer(llm, i) for i in range(len(llm.config.layers))],
        "ops": dict(llm.ops.source),
        "calls": calls,
        "bytes": {
            "weights": llm.model.weight_bytes,
            "kv_planned": plan.nbytes,
            "kv_allocated": cache.nbytes,
            "kv_used": cache.used_nbytes,
        },
        "timing": {
            "prefill_tok_s": c.prefill_rows / c.prefill_s if c.prefill_s else 0.0,
            "decode_tok_s": c.decode_rows / c.decode_s if c.decode_s else 0.0,
        },
        "prompt_n": c.prompt_n,
        "cache_n": c.cache_n,
        "counters": {
            "runner": asdict(engine.runner.counters),
            "engine": asdict(c),
            "pool": dict(cache.counters),
            "blocks": [dict(m.counters) for m in cache.managers],
        },
    }


def _layer(llm: LLM, i: int) -> dict[str, Any]:
    layer, kv, attention, mlp = llm.config.layers[i], llm.cache.layer(i), llm.model.attention[i], llm.model.mlp[i]
    matrices = {"q": attention.wq, "k": attention.wk, "v": attention.wv, "o": attention.wo}
    matrices |= {"gate": mlp.gate, "up": mlp.up, "down": mlp.down}
    return {
        "layer": i,
        "attention": layer.mixer.value,
        "window": layer.window,
        "kv": f"{kv.k.codec.name}/{kv.v.codec.name}",
        "kv_bytes_per_token": (kv.k.block_nbytes + kv.v.block_nbytes) / llm.cache.block_size,
        "weights": {name: w.type.name for name, w in matrices.items()},
        "ops": {op: llm.ops.source[op] for op in ("attention_block", "mlp_block")},
    }


def render(report: Report) -> RenderableType:
    """The report as rich tables."""
    from rich.console import Group

    return Group(_summary(report), _layers(report), _operations(report))


def _summary(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("", "", title=f"{report['model']['name']} on {report['backend']}", show_header=False)
    for name, value in (
        ("K/V", report["kv"]),
        ("activations", report["activations"]),
        ("context", f"{report['context']:,} tokens"),
        ("weights", _mib(report["bytes"]["weights"])),
        ("K/V planned for one full context", _mib(report["bytes"]["kv_planned"])),
        ("K/V allocated", _mib(report["bytes"]["kv_allocated"])),
        ("K/V in use", _mib(report["bytes"]["kv_used"])),
        ("prompt tokens, of which from the cache", f"{report['prompt_n']:,}, {report['cache_n']:,}"),
        ("prefill", f"{report['timing']['prefill_tok_s']:,.1f} tokens/s"),
        ("decode, all sequences together", f"{report['timing']['decode_tok_s']:,.1f} tokens/s"),
    ):
        table.add_row(name, str(value))
    for note in report["model"]["notes"]:
        table.add_row("note", note)
    return table


def _layers(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("layers", "attention", "K/V", "bytes/token", "weights", title="Layers")
    runs: list[tuple[int, int, tuple[str, ...]]] = []
    for layer in report["layers"]:
        window = f"{layer['attention']} {layer['window']}" if layer["window"] else layer["attention"]
        weights = ", ".join(f"{name} {kind}" for name, kind in layer["weights"].items())
        facts: tuple[str, ...] = (window, layer["kv"], f"{layer['kv_bytes_per_token']:g}", weights)
        # Equal neighbours become one row.
        if runs and runs[-1][2] == facts:
            runs[-1] = (runs[-1][0], layer["layer"], facts)
        else:
            runs.append((layer["layer"], layer["layer"], facts))
    for first, last, facts in runs:
        table.add_row(str(first) if first == last else f"{first}-{last}", *facts)
    return table


def _operations(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("operation", "implementation", "calls", title="Operations")
    for op, where in report["ops"].items():
        if report["calls"].get(op):
            table.add_row(op, where, f"{report['calls'][op]:,}")
    return table


def _mib(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
