"""What ran, what it took and what it shared: one plain dict for JSON, one set of tables for people.

Every number is measured: bytes are sums over the real arrays, tokens per second come from timed steps, and the counters
belong to the objects that do the work (runner, engine, pool, blocks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from polykv.page_cache import in_large_pages

if TYPE_CHECKING:
    from rich.console import RenderableType

    from polykv.llm import LLM

Report = dict[str, Any]
T = TypeVar("T")


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
            "vocab": llm.config.vocab,
            "file": str(llm.model.gguf.path),
            "fingerprint": llm.model.fingerprint,
            "notes": list(llm.notes),
        },
        "backend": llm.ops.name,
        "activations": llm.activations.name.lower(),
        "kv": llm.kv,
        "tables": tables(llm),
        "calibration": llm.cache.calibration.identity(),
        "key_bias": [asdict(check) for check in llm.key_checks],
        "screen": llm.unscreened or "on",
        "context": llm.context,
        "layers": [_layer(llm, i) for i in range(len(llm.config.layers))],
        "ops": dict(llm.ops.source),
        "calls": calls,
        "bytes": {
            "weights": llm.model.weight_bytes,
            "file_in_large_pages": in_large_pages(llm.model.gguf.path)[0],
            "kv_planned": plan.nbytes,
            "kv_allocated": cache.nbytes,
            "kv_used": cache.used_nbytes,
            "device": _device(llm),
        },
        "kernels": llm.ops.compiled(),
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


def _device(llm: LLM) -> dict[str, int] | None:
    """Bytes of the device, planned and taken, and how often K/V grew beyond what was planned; None without one."""
    if llm.device_plan is None:
        return None
    held = llm.ops.held(llm.model.weights, llm.engine.runner.transformer.stack)
    planned, free, total = llm.device_plan.nbytes, llm.device_plan.free, llm.device_plan.total
    taken = {"kv": llm.cache.nbytes, "kv_grown": llm.cache.counters["grown"], **held}
    return {"planned": planned, "before": total - free, "total": total, **taken}


def tables(llm: LLM) -> dict[str, str]:
    """Which table of levels, or which codebook, each type in use has: codebooks may come from files."""
    codecs = [c for t in llm.cache.tiers for c in (t.k, t.v)]
    return {c.name: c.table_id for c in codecs if c.table_id}


def _layer(llm: LLM, i: int) -> dict[str, Any]:
    layer, kv, attention, mlp = llm.config.layers[i], llm.cache.layer(i), llm.model.attention[i], llm.model.mlp[i]
    matrices = {"q": attention.wq, "k": attention.wk, "v": attention.wv, "o": attention.wo}
    matrices |= {"gate": mlp.gate, "up": mlp.up, "down": mlp.down}
    return {
        "layer": i,
        "attention": layer.mixer.value,
        "window": layer.window,
        "kv": str(llm.cache.tiers[i]),
        "kv_bytes_per_token": (kv.k.block_nbytes + kv.v.block_nbytes) / kv.k.block_size,
        "weights": {name: w.type.name for name, w in matrices.items()},
        "ops": {op: llm.ops.source[op] for op in ("layers", "attention_block", "mlp_block")},
    }


def render(report: Report) -> RenderableType:
    """The report as rich tables."""
    from rich.console import Group

    return Group(_summary(report), _layers(report), _operations(report))


def _summary(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("", "", title=f"{report['model']['name']} on {report['backend']}", show_header=False)
    engine = report["counters"]["engine"]
    for name, value in (
        ("K/V", report["kv"]),
        ("tables", ", ".join(f"{name}: {table}" for name, table in report["tables"].items()) or "none"),
        ("calibration", report["calibration"]),
        ("activations", report["activations"]),
        ("greedy tokens", _greedy(report)),
        ("context", f"{report['context']:,} tokens"),
        ("weights", megabytes(report["bytes"]["weights"])),
        ("model file in large pages", megabytes(report["bytes"]["file_in_large_pages"])),
        ("K/V planned for one full context", megabytes(report["bytes"]["kv_planned"])),
        ("K/V allocated", megabytes(report["bytes"]["kv_allocated"])),
        ("K/V in use", megabytes(report["bytes"]["kv_used"])),
        *_gpu(report["bytes"]["device"]),
        *_compiled(report["kernels"]),
        ("prompt tokens, of which from the cache", f"{report['prompt_n']:,}, {report['cache_n']:,}"),
        ("prefill", f"{report['timing']['prefill_tok_s']:,.1f} tokens/s"),
        ("decode, all sequences together", f"{report['timing']['decode_tok_s']:,.1f} tokens/s"),
        ("context shifts, tokens they dropped", f"{engine['shifts']:,}, {engine['shifted_cells']:,}"),
    ):
        table.add_row(name, str(value))
    for note in report["model"]["notes"]:
        table.add_row("note", note)
    return table


def _compiled(kernels: dict[str, float]) -> list[tuple[str, str]]:
    """A row about what compiling took, where that is counted."""
    if not kernels:
        return []
    took = f"{kernels['compiled']:,.0f} compiled in {kernels['seconds']:.1f} s, {kernels['from_disk']:,.0f} from disk"
    return [("kernels of this process", took)]


def _gpu(device: dict[str, int] | None) -> list[tuple[str, str]]:
    """Rows about the memory of a device."""
    if device is None:
        return []
    parts = ", ".join(f"{name} {megabytes(device[name])}" for name in ("weights", "kv", "steps", "graphs"))
    taken = device["driver"] - device["before"]
    return [
        ("GPU memory, planned", f"{megabytes(device['planned'])} beside {megabytes(device['before'])} taken before"),
        ("GPU memory, taken as the driver says", f"{megabytes(taken)}: {parts}, programs"),
    ]


def _greedy(report: Report) -> str:
    """How much of the output matrix greedy tokens took."""
    c = report["counters"]["runner"]
    if not c["screened_rows"]:
        why = "" if report["screen"] == "on" else f" ({report['screen']})"
        return f"{c['greedy_rows']:,}, from all logits{why}"
    part = c["exact_logits"] / c["screened_rows"] / report["model"]["vocab"]
    return f"{c['greedy_rows']:,}, {c['screened_rows']:,} of them screened, {part:.1%} of their logits computed exactly"


def _layers(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("layers", "attention", "K/V", "bytes/token", "weights", title="Layers")
    for layers, facts in runs(map(_facts, report["layers"])):
        table.add_row(layers, *facts)
    return table


def _facts(layer: dict[str, Any]) -> tuple[str, ...]:
    window = f"{layer['attention']} {layer['window']}" if layer["window"] else layer["attention"]
    weights = ", ".join(f"{name} {kind}" for name, kind in layer["weights"].items())
    return window, layer["kv"], f"{layer['kv_bytes_per_token']:g}", weights


def _operations(report: Report) -> RenderableType:
    from rich.table import Table

    table = Table("operation", "implementation", "calls", title="Operations")
    for op, where in report["ops"].items():
        if report["calls"].get(op):
            table.add_row(op, where, f"{report['calls'][op]:,}")
    return table


def runs(rows: Iterable[T]) -> list[tuple[str, T]]:
    """Equal neighbours as one, with their numbers.

    >>> runs(["a", "a", "b"])
    [('0-1', 'a'), ('2', 'b')]
    """
    found, first = [], 0
    for row, equal in groupby(rows):
        last = first + len(list(equal)) - 1
        found.append((str(first) if first == last else f"{first}-{last}", row))
        first = last + 1
    return found


def megabytes(n: float) -> str:
    """Bytes for people.

    >>> megabytes(1_234_567), megabytes(2048)
    ('1.23 MB', '2.0 kB')
    """
    if n < 1e5:
        return f"{n / 1e3:.1f} kB"
    return f"{n / 1e6:,.2f} MB" if n < 1e7 else f"{n / 1e6:,.1f} MB"
