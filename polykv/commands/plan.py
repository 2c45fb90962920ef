"""`polykv plan`: what a cache will take, per layer and for N agents, before anything is loaded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from polykv.commands.options import (
    backend_option,
    calibration_option,
    calibration_v_option,
    json_option,
    kv_option,
    model_option,
)
from polykv.commands.output import Output
from polykv.report import megabytes, runs
from polykv.types import Equalizer

if TYPE_CHECKING:
    from polykv.device_plan import DevicePlan
    from polykv.model.key_bias import KeyCheck


@click.command()
@model_option
@kv_option
@click.option("--ctx", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens per agent, in all.")
@click.option("--shared", type=click.IntRange(min=0), default=None, help="Of these, tokens of the shared document.")
@click.option("--agents", type=click.IntRange(min=1), default=8, show_default=True)
@calibration_option
@calibration_v_option
@backend_option
@json_option
def command(
    model: str,
    kv: str,
    ctx: int,
    shared: int | None,
    agents: int,
    calibration: str | None,
    calibration_v: str | None,
    backend: str,
    as_json: bool,
) -> None:
    """Plan the memory of AGENTS agents over one document.

    Without --shared all but 256 tokens are the document. Bytes come from arrays that the backend allocates for one
    block; the model's weights are mapped from the file and not loaded. What the backend cannot run is refused, and what
    does not fit the memory of a GPU, with what would.
    """
    from polykv.cache.calibration_file import read_calibration
    from polykv.cache.plan import plan_memory
    from polykv.cache.support import cache_config
    from polykv.catalogue import resolve
    from polykv.device_plan import Session, check_fits, plan_device
    from polykv.llm import choose_activations
    from polykv.model.key_bias import asked_tiers, protect_keys
    from polykv.model.loader import load_model
    from polykv.model.support import check_model
    from polykv.ops import load

    out = Output(as_json)
    loaded = load_model(resolve(model))
    if shared is None:
        shared = max(0, ctx - 256)
    ops, (asked, free) = load(backend), asked_tiers(kv, len(loaded.config.layers))
    check_model(ops, loaded, cache_config(ops, asked))
    tiers, checks = protect_keys(ops, loaded, asked, free, ops.preferred_block())
    scales = read_calibration(calibration, calibration_v)
    equalizers = scales.equalizers(loaded.config)
    plan = plan_memory(loaded.config, tiers, ctx=ctx, agents=agents, shared=shared, ops=ops)
    if ctx > loaded.config.context:
        out.note(f"the model itself ends at {loaded.config.context:,} tokens")
    _bias(out, checks)
    layers = [
        (p.tier, _scaled(e), str(p.window or "all"), f"{p.token_nbytes:g}", *map(megabytes, (p.k_nbytes, p.v_nbytes)))
        for p, e in zip(plan.layers, equalizers, strict=True)
    ]
    rows = [[numbers, *layer] for numbers, layer in runs(layers)]
    columns = ["layers", "K/V", "calibrated", "window", "bytes/token", "K", "V"]
    out.table(f"cache of {loaded.config.name}, each layer", columns, rows, text_columns=3)
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
    session = Session(ops, loaded, tiers, ctx, agents, shared, activations=choose_activations(backend, None))
    device = plan_device(session)
    if device is not None:
        _device(out, device)
    out.json(
        {
            "device": None if device is None else device.as_dict(),
            **{f: getattr(plan, f) for f in ("ctx", "agents", "shared", "block_size", "nbytes", "f16_nbytes")},
            "shared_nbytes": plan.shared_nbytes,
            "private_nbytes": plan.private_nbytes,
            "weight_bytes": loaded.weight_bytes,
            "calibration": scales.identity(),
            "key_bias": [dataclasses.asdict(check) for check in checks],
            "layers": [dataclasses.asdict(p) for p in plan.layers],
        }
    )
    check_fits(session, device)


def _device(out: Output, plan: DevicePlan) -> None:
    """The memory of a GPU."""
    taken = plan.total - plan.free
    rows = [
        ["taken already: driver, other processes", megabytes(taken)],
        *([name, megabytes(nbytes)] for name, nbytes in plan.parts.items()),
        ["in all", megabytes(taken + plan.nbytes)],
        ["of", megabytes(plan.total)],
    ]
    out.table("memory of the GPU", ["", "bytes"], rows)


def _bias(out: Output, checks: tuple[KeyCheck, ...]) -> None:
    """What key biases do to the asked types, and what is used because of that; nothing for models without biases."""
    if not checks:
        return
    columns = ["layers", "asked", "used", "bias", "error", "used", "harmless"]
    facts = [
        (c.asked, c.tier, f"{c.ratio:.1f}x", *(f"{x:.2g}" for x in (c.error, c.error_used, c.allowed))) for c in checks
    ]
    caption = "bias: its length against the rest of a key. error: squared, of K as asked and as used, against that rest"
    out.table("keys with a bias", columns, [[n, *f] for n, f in runs(facts)], caption, text_columns=3)
    for check in checks:
        if check.lost:
            out.note(str(check))


def _scaled(e: Equalizer) -> str:
    """The sides whose channels a calibration multiplies."""
    return ", ".join(side for side, factors in (("K", e.k), ("V", e.v)) if factors is not None) or "-"
