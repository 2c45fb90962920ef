"""The slow half of `polykv tiers`: time of every type, and what it costs on a model of the user's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from polykv.cache.calibration import NONE
from polykv.cache.codecs import codec, parse_tier, parse_tiers
from polykv.commands.compiling import Compiling
from polykv.commands.output import Output
from polykv.types import UNIT

if TYPE_CHECKING:
    from polykv.cache.calibration import Calibration
    from polykv.measure.quality import Quality
    from polykv.measure.speed import Shape, Speed
    from polykv.model.loader import Model
    from polykv.ops import LoadedOps
    from polykv.types import Codec

CONTROL, HALF = "f16", "f16/f16"
# Cells that a decode row reads, and the seconds per type and task: by ref only to be complete, by cuda so many that it
# is not starting kernels that is timed.
DEPTH = {"ref": 256, "cpu": 4096, "cuda": 65_536}
BUDGET = 0.1
SINKS = 4
# Pairs that are shown whether they are worth their bytes or not: the default, and what others are compared with.
ALWAYS = (HALF, "q8_0/q8_0", "q8_0/turbo3", "q4_0/q4_0", "q4_0+r/q4_0+r", "turbo3/turbo3", "turbo4+c/turbo3")


def show_speed(out: Output, chosen: list[Codec], dim: int, model: Model | None, ops: LoadedOps) -> dict[str, Any]:
    """Ratios to f16 in this run, of the types that the backend runs."""
    from polykv.measure.known import for_values, runs

    here = [c for c in chosen if ops.name in runs(c, dim)]
    left = [c.name for c in chosen if c not in here]
    shape = layer_shape(model, dim)
    found = timed(out, {c.name: (c, for_values(c)) for c in here}, CONTROL, shape, ops)
    rows = [
        [name, f"{s.encode_ratio:.2f}x", f"{s.attend_ratio:.2f}x", f"{1e6 * s.encode_s:.2f}", f"{1e3 * s.attend_s:.3f}"]
        for name, s in found.items()
    ]
    title = f"speed against {CONTROL} on {ops.name}: {shape.n_heads} heads, {shape.n_kv} kv heads, head_dim {dim}"
    cells = f"{DEPTH[ops.name]:,} cells"
    out.table(title, ["type", "encode", "attend", "encode, µs per token", f"attend, ms per row, {cells}"], rows)
    out.text("above 1x is faster than f16; one layer, other work on the machine disturbs these numbers")
    if left:
        out.text(f"not timed, {ops.name} does not run them: {', '.join(left)}")
    return {
        "shape": dataclasses.asdict(shape),
        "depth": DEPTH[ops.name],
        "control": CONTROL,
        "types": {name: dataclasses.asdict(s) for name, s in found.items()},
    }


def layer_shape(model: Model | None, dim: int) -> Shape:
    """Of the model's first layer, or a usual one."""
    from polykv.measure.speed import Shape

    first = model.config.layers[0] if model else None
    return Shape(first.n_heads, first.n_kv, dim) if first else Shape(8, 2, dim)


def timed(
    out: Output, pairs: dict[str, tuple[Codec, Codec]], control: str, shape: Shape, ops: LoadedOps
) -> dict[str, Speed]:
    """Speeds of the pairs, against f16 for both, which has the name `control` and is timed whether asked for or not."""
    from polykv.measure.speed import measure

    half = codec(CONTROL)
    with Compiling(ops.name), out.progress("timing", unit="measurement") as update:
        found = measure(
            ops,
            {control: (half, half), **pairs},
            control,
            shape,
            depth=DEPTH[ops.name],
            budget=BUDGET,
            on_progress=lambda done, total: update(done, total, "timing"),
        )
    return {name: found[name] for name in pairs}


def show_quality(
    out: Output,
    model: Model,
    ids: list[int],
    chosen: list[Codec],
    ops: LoadedOps,
    speed: bool,
    calibration: Calibration,
) -> dict[str, Any]:
    """What every type costs on one side alone, the pairs that are worth their bytes, and advice. speed: time them.
    calibration: factors that everything but f16 for both sides is stored with."""
    from polykv.measure.choice import advise

    sides = {c.name: (f"{c.name}/{CONTROL}", f"{CONTROL}/{c.name}") for c in chosen if c.name != CONTROL}
    usable = [kv for pair in sides.values() for kv in pair if _runs(ops, model, kv)]
    if not usable:
        out.text(f"no quality: {ops.name} runs none of these types on this model")
        return {}
    alone = _compare(out, "each side alone", model, ids, [HALF, *usable], ops, calibration)
    _show_sides(out, sides, alone)
    pairs = [kv for kv in _candidates(alone, chosen) if _runs(ops, model, kv)]
    found = _compare(out, "pairs", model, ids, pairs, ops, calibration)
    speeds: dict[str, Speed] = {}
    if speed:
        both = {kv: (tier.k, tier.v) for kv, tier in zip(found, map(parse_tier, found), strict=True)}
        speeds = timed(out, both, HALF, layer_shape(model, model.config.layers[0].head_dim), ops)
    f16_bytes = alone[HALF].bytes_per_token
    _show_pairs(out, found, f16_bytes, speeds)
    advice, scored, used = advise(found, f16_bytes), len(alone[HALF].kl), calibration.identity()
    for line in [*advice, *_remarks(chosen, scored, len(ids), used)]:
        out.text(line)
    as_json = {kv: _as_dict(q, speeds.get(kv)) for kv, q in {**alone, **found}.items()}
    counts = {"tokens": len(ids), "scored": scored}
    return {**counts, "calibration": used, "truth": CONTROL, "pairs": as_json, "advice": advice}


def _candidates(alone: dict[str, Quality], chosen: list[Codec]) -> list[str]:
    """Pairs to measure: what may be worth its bytes, what is usual, and centered keys also with exact sinks."""
    asked = {c.name for c in chosen} | {CONTROL}
    usual = [kv for kv in ALWAYS if set(kv.split("/")) <= asked]
    pairs = list(dict.fromkeys([*_worth_measuring(alone), *usual]))
    # Centered keys live in units that are exact until they are complete; keeping the sinks exact as well costs nothing.
    return [*pairs, *(f"{kv},sink={SINKS}" for kv in pairs if parse_tier(kv).k.centered)]


def _remarks(chosen: list[Codec], scored: int, tokens: int, calibration: str) -> list[str]:
    """What has to be known about the figures."""
    lines = [f"measured on the last {scored} of {tokens} tokens of one text; others give other numbers"]
    if any(c.centered for c in chosen):
        lines.append(f"types with +c keep the newest 1 to {UNIT} tokens exact, which flatters them on a short text;")
        lines.append("these cells and those of sinks are not among the bytes per token (docs/CENTERED.md)")
    if calibration != NONE:
        lines.append(f"with the calibration {calibration}: leave --calibration out to see what it changes")
    return lines


def _compare(
    out: Output,
    what: str,
    model: Model,
    ids: list[int],
    pairs: list[str],
    ops: LoadedOps,
    calibration: Calibration,
) -> dict[str, Quality]:
    from polykv.measure.quality import compare

    with Compiling(ops.name), out.progress(what) as update:
        return compare(
            model,
            ids,
            pairs,
            ops=ops,
            truth=HALF,
            calibration=calibration,
            # The first unit is exact for types with +c whatever they are, so it tells nothing about them.
            skip=UNIT if len(ids) > 2 * UNIT else 0,
            on_progress=lambda done, total: update(done, total, what),
        )


def _worth_measuring(alone: dict[str, Quality]) -> list[str]:
    """Pairs of types that were measured on one side alone; K and V of f16 take the same bytes."""
    from polykv.measure.choice import worth_measuring

    k = {kv.split("/")[0]: q for kv, q in alone.items() if kv.endswith(f"/{CONTROL}")}
    v = {kv.split("/")[1]: q for kv, q in alone.items() if kv.startswith(f"{CONTROL}/")}
    other = alone[HALF].bytes_per_token / 2
    k_bytes, v_bytes = ({name: q.bytes_per_token - other for name, q in side.items()} for side in (k, v))
    k_kl, v_kl = ({name: q.kl_mean for name, q in side.items()} for side in (k, v))
    return worth_measuring(k_bytes, v_bytes, k_kl, v_kl)


def _runs(ops: LoadedOps, model: Model, kv: str) -> bool:
    from polykv.cache.support import kv_reasons
    from polykv.errors import ConfigError

    try:
        tiers = parse_tiers(kv, len(model.config.layers))
    except ConfigError:
        # One of ALWAYS whose type this build does not have.
        return False
    return not kv_reasons(ops, model.config, tiers, ops.preferred_block())


def _show_sides(out: Output, sides: dict[str, tuple[str, str]], alone: dict[str, Quality]) -> None:
    rows = []
    for name, pair in sides.items():
        if set(pair) & set(alone):
            k, v = ([f"{q.kl_mean:.2g}", f"{q.same_top:.1%}"] if q else ["-", "-"] for q in map(alone.get, pair))
            rows.append([name, *k, *v])
    out.table(
        f"one side in the type, the other in {CONTROL}: mean KL in nats",
        ["type", "K alone", "same top token", "V alone", "same top token"],
        rows,
    )
    left = [name for name, pair in sides.items() if not set(pair) & set(alone)]
    if left:
        out.text(f"not measured, this backend does not run them: {', '.join(left)}")


def _show_pairs(out: Output, found: dict[str, Quality], f16_bytes: float, speeds: dict[str, Speed]) -> None:
    columns = ["K/V", "bytes per token", "f16 / this", "mean KL", "99 % KL", "same top token"]
    rows = []
    for kv, q in sorted(found.items(), key=lambda item: -item[1].bytes_per_token):
        size = [f"{q.bytes_per_token:,.0f}", f"{f16_bytes / q.bytes_per_token:.2f}"]
        rows.append([kv, *size, f"{q.kl_mean:.2g}", f"{q.kl_p99:.2g}", f"{q.same_top:.1%}"])
        if speeds:
            rows[-1].append(f"{speeds[kv].attend_ratio:.2f}x")
    out.table("pairs that are worth their bytes, and usual ones", [*columns, "attend"] if speeds else columns, rows)


def _as_dict(q: Quality, speed: Speed | None) -> dict[str, float]:
    keys = ("bytes_per_token", "kl_mean", "kl_p99", "same_top")
    timing = {"encode_ratio": speed.encode_ratio, "attend_ratio": speed.attend_ratio} if speed else {}
    return {key: getattr(q, key) for key in keys} | timing
