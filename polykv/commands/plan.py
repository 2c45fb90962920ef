"""`polykv plan`: what a cache will take, per layer and for N agents, before anything is loaded."""

from __future__ import annotations

import dataclasses

import click

from polykv.cache.codecs import parse_tiers
from polykv.commands.options import backend_option, json_option, kv_option, model_option
from polykv.commands.output import Output
from polykv.report import megabytes, runs


@click.command()
@model_option
@kv_option
@click.option("--ctx", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens per agent, in all.")
@click.option("--shared", type=click.IntRange(min=0), default=None, help="Of these, tokens of the shared document.")
@click.option("--agents", type=click.IntRange(min=1), default=8, show_default=True)
@backend_option
@json_option
def command(model: str, kv: str, ctx: int, shared: int | None, agents: int, backend: str, as_json: bool) -> None:
    """Plan the memory of AGENTS agents over one document.

    Without --shared all but 256 tokens are the document. Bytes come from arrays that the backend allocates for one
    block; the model's weights are mapped from the file and not loaded. What the backend cannot run is refused.
    """
    from polykv.cache.plan import plan_memory
    from polykv.catalogue import resolve
    from polykv.config import CacheConfig
    from polykv.model.loader import load_model
    from polykv.model.support import check_model
    from polykv.ops import load

    out = Output(as_json)
    loaded = load_model(resolve(model))
    if shared is None:
        shared = max(0, ctx - 256)
    ops, tiers = load(backend), parse_tiers(kv, len(loaded.config.layers))
    check_model(ops, loaded, CacheConfig(tiers))
    plan = plan_memory(loaded.config, tiers, ctx=ctx, agents=agents, shared=shared, ops=ops)
    if ctx > loaded.config.context:
        out.note(f"the model itself ends at {loaded.config.context:,} tokens")
    layers = [
        (p.tier, str(p.window or "all"), f"{p.token_nbytes:g}", megabytes(p.k_nbytes), megabytes(p.v_nbytes))
        for p in plan.layers
    ]
    rows = [[numbers, *layer] for numbers, layer in runs(layers)]
    columns = ["layers", "K/V", "window", "bytes/token", "K", "V"]
    out.table(f"cache of {loaded.config.name}, each layer", columns, rows, text_columns=2)
    out.table(
        f"{agents} agents of {ctx:,} tokens, {shared:,} of them shared",
        ["", "bytes"],
        [
            ["weights, mapped from the file", megabytes(loaded.weight_bytes)],
            ["document, once", megabytes(plan.shared_nbytes)],
            ["each agent", megabytes(plan.private_nbytes)],
            ["K/V in all", megabytes(plan.nbytes)],
            [f"{agents} separate f16 caches", megabytes(plan.f16_nbytes)],
            ["ratio", f"{plan.f16_nbytes / plan.nbytes:.1f}x"],
        ],
    )
    out.json(
        {
            **{f: getattr(plan, f) for f in ("ctx", "agents", "shared", "block_size", "nbytes", "f16_nbytes")},
            "shared_nbytes": plan.shared_nbytes,
            "private_nbytes": plan.private_nbytes,
            "weight_bytes": loaded.weight_bytes,
            "layers": [dataclasses.asdict(p) for p in plan.layers],
        }
    )
