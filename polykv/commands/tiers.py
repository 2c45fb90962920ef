"""`polykv tiers`: names of K/V types, real bits per value, what they keep, and which to choose for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from polykv.cache.calibration_file import read_calibration
from polykv.cache.codecs import codec
from polykv.commands.options import backend_option, calibration_option, calibration_v_option, json_option
from polykv.commands.output import Output
from polykv.errors import ConfigError, PromptError
from polykv.report import megabytes

if TYPE_CHECKING:
    from polykv.measure.roundtrip import Loss
    from polykv.measure.samples import Sample
    from polykv.model.loader import Model
    from polykv.ops import LoadedOps
    from polykv.types import Codec

# A text of fewer says nothing about types.
LEAST_TOKENS = 16


@click.command()
@click.option("-m", "--model", default=None, help="Also give bytes per token for this model.")
@click.option("--text", default=None, metavar="FILE", help="Measure with -m what each type costs on this text.")
@click.option("--tokens", type=click.IntRange(min=LEAST_TOKENS), default=384, show_default=True, help="Of the text.")
@click.option(
    "--head-dim", type=click.IntRange(min=1), default=None, help="Values of a head; default 128, or the model's."
)
@click.option("--types", default=None, metavar="A,B,...", help="Only these types.")
@click.option("--speed/--no-speed", default=None, help="Time to encode and attend, against f16; default with --text.")
@click.option("--plot", default=None, metavar="FILE", help="Draw error against bits (.png, .svg, .pdf).")
@click.option("--capabilities", is_flag=True, help="Only which backend runs which type at which head_dim.")
@calibration_option
@calibration_v_option
@backend_option
@json_option
def command(
    model: str | None,
    text: str | None,
    tokens: int,
    head_dim: int | None,
    types: str | None,
    speed: bool | None,
    plot: str | None,
    capabilities: bool,
    calibration: str | None,
    calibration_v: str | None,
    backend: str,
    as_json: bool,
) -> None:
    """List K/V types and measure them. Any of them may hold K, any may hold V: --kv K/V.

    Bits per value count everything that memory holds for a vector of --head-dim values: codes, scales, and padding
    where a type needs it. NMSE is the mean squared error of a vector that was stored and read, relative to its squared
    length. To choose for a model of yours: polykv tiers -m MODEL --text FILE, with a text like those it will read.
    """
    out = Output(as_json)
    if capabilities:
        show_capabilities(out)
        return
    chosen = choose(types)
    if plot is not None:
        from polykv.measure.plot import check

        check(plot, chosen)
    if text is not None and model is None:
        raise ConfigError("--text measures on a model: add -m MODEL")
    if text is None and (calibration or calibration_v) is not None:
        raise ConfigError("--calibration is measured on a model and a text: add -m MODEL --text FILE")
    factors = read_calibration(calibration, calibration_v)
    loaded = open_model(model) if model else None
    dim = head_dim or (loaded.config.layers[0].head_dim if loaded else 128)
    if text is not None and loaded is not None and dim != loaded.config.layers[0].head_dim:
        raise ConfigError(f"--head-dim {dim} is not the model's: leave it out with --text")
    ids = tokenized(loaded, text, tokens) if loaded and text is not None else []
    from polykv.cache.support import check_usable
    from polykv.ops import load

    ops = load(backend)
    check_usable(ops)
    result = show_list(out, chosen, dim, loaded, model, ops)
    samples = gather(out, dim, loaded, ids, ops)
    losses = show_losses(out, chosen, samples, ops)
    for tier in result["tiers"]:
        tier["round_trip"] = {s.name: vars(losses[tier["name"], s.name]) for s in samples}
    timing = bool(ids) if speed is None else speed
    if timing:
        from polykv.commands.tiers_model import show_speed

        result["speed"] = show_speed(out, chosen, dim, loaded, ops)
    if loaded and ids:
        from polykv.commands.tiers_model import show_quality

        result |= show_quality(out, loaded, ids, chosen, ops, timing, factors)
    elif loaded:
        out.text("add --text FILE (a text like those it will read) to measure what each type costs on this model")
    if plot is not None:
        draw(out, plot, chosen, dim, samples, losses, model)
    out.json(result)


def choose(types: str | None) -> list[Codec]:
    """The types that --types names, all without it. f32 exists for tests: it is taken when named."""
    from polykv.measure.known import known

    if types is None:
        return known()
    return list({name: codec(name) for name in types.split(",")}.values())


def open_model(name: str) -> Model:
    """Configuration and mapped weights."""
    from polykv.catalogue import resolve
    from polykv.model.loader import load_model

    return load_model(resolve(name))


def tokenized(model: Model, text: str, tokens: int) -> list[int]:
    """The first tokens of a file. Raises PromptError when it has too few to say anything."""
    from polykv.commands.ask import read_document
    from polykv.text.tokenizer import Tokenizer

    ids = Tokenizer.from_gguf(model.gguf.metadata).encode(read_document(text))
    if len(ids) < LEAST_TOKENS:
        raise PromptError(f"{text}: {len(ids)} tokens are too few to measure with, {LEAST_TOKENS} are the least")
    return ids[: min(tokens, model.config.context)]


def show_capabilities(out: Output) -> None:
    """What docs/CAPABILITIES.md has, from the backends of this installation."""
    from polykv.capability import HEAD_DIMS, TYPES, capabilities, markdown

    out.text(markdown())
    found = capabilities()
    out.json({"head_dims": list(HEAD_DIMS), "backends": {c.backend: {t: c.dims(t) for t in TYPES} for c in found}})


def show_list(
    out: Output, chosen: list[Codec], dim: int, loaded: Model | None, model: str | None, ops: LoadedOps
) -> dict[str, Any]:
    """Names, bits, backends, and bytes per token of a model; the beginning of the JSON object."""
    from polykv.measure.known import bits, runs

    names = [c.name for c in chosen]
    per_token = bytes_per_token(loaded, chosen, ops) if loaded else {}
    where = {c.name: runs(c, dim) for c in chosen}
    columns = ["type", "bits per value", "code bits", "values per scale", "backends"]
    rows = []
    for c in chosen:
        scales = "none" if c.block == 1 else str(c.group(dim))
        row = [c.name, f"{bits(c, dim):.4g}", str(c.bits), scales, ", ".join(where[c.name])]
        rows.append([*row, megabytes(per_token[c.name]) if c.name in per_token else "-"] if loaded else row)
    out.table(f"K/V types at head_dim {dim}", [*columns, "K and V, per token"] if loaded else columns, rows)
    out.text("+r: a scalar type in rotated space; +c: for K, less the mean of 64 positions; V has the type without it")
    if loaded:
        out.text(f"bytes per token: all layers of {model}, from arrays that the backend {ops.name} allocates")
        missing = [name for name in names if name not in per_token]
        others = {b for name in missing for b in where[name]}
        if missing:
            there = f"; --backend {min(others)} does" if others else ""
            out.text(f"-: the backend {ops.name} does not run the type{there}")
    tiers = [_as_dict(c, dim, where[c.name], per_token) for c in chosen]
    return {"tiers": tiers, "head_dim": dim, "model": model, "backend": ops.name}


def _as_dict(c: Codec, head_dim: int, backends: list[str], per_token: dict[str, float]) -> dict[str, Any]:
    from polykv.measure.known import bits

    return {
        "name": c.name,
        "code_bits": c.bits,
        "bits_per_value": bits(c, head_dim),
        "group": c.group(head_dim),
        "exchange_block": c.block,
        "exchange_block_bytes": c.block_bytes,
        "backends": backends,
        "bytes_per_token": per_token.get(c.name),
    }


def bytes_per_token(model: Model, chosen: list[Codec], ops: LoadedOps) -> dict[str, float]:
    """Bytes per token of the types that the backend runs. Raises UnsupportedError when it runs none."""
    from polykv.cache.codecs import parse_tiers
    from polykv.cache.plan import plan_memory
    from polykv.errors import UnsupportedError
    from polykv.measure.known import for_values

    result: dict[str, float] = {}
    refusal: UnsupportedError | None = None
    for c in chosen:
        tiers = parse_tiers(f"{c.name}/{for_values(c).name}", len(model.config.layers))
        try:
            plan = plan_memory(model.config, tiers, ctx=1, ops=ops)
        except UnsupportedError as e:
            refusal = refusal or e
            continue
        result[c.name] = sum(layer.token_nbytes for layer in plan.layers)
    if refusal is not None and not result:
        raise refusal
    return result


def gather(out: Output, dim: int, model: Model | None, ids: list[int], ops: LoadedOps) -> list[Sample]:
    """Vectors to measure on: synthetic ones, and with a text the K and V of the model, exact: by the backend where it
    keeps them so, else by cpu."""
    from polykv.measure.samples import exact_limits, of_model, synthetic

    if model is None or not ids:
        return synthetic(dim)
    from polykv.commands.compiling import Compiling
    from polykv.ops import load

    if exact_limits(model, ops):
        out.text(f"the text is read by cpu: {ops.name} keeps no exact K and V")
        ops = load("cpu")
    with Compiling(ops.name), out.progress("reading the text") as update:
        own = of_model(model, ids, ops, lambda done, total: update(done, total, "reading the text"))
    return [*synthetic(dim), *own]


def show_losses(out: Output, chosen: list[Codec], samples: list[Sample], ops: LoadedOps) -> dict[tuple[str, str], Loss]:
    """NMSE and cosine of every type on every sample, by the backend where it runs the type, else by one that does."""
    from polykv.commands.compiling import Compiling
    from polykv.measure.known import bits, runs
    from polykv.measure.roundtrip import loss, round_trip
    from polykv.ops import load

    losses: dict[tuple[str, str], Loss] = {}
    with Compiling(ops.name), out.progress("storing vectors", unit="sample") as update:
        for i, c in enumerate(chosen):
            for j, s in enumerate(samples):
                there = runs(c, s.head_dim)
                on = ops if ops.name in there else load(there[0])
                losses[c.name, s.name] = loss(s.x, round_trip(on, c, s.x))
                update(i * len(samples) + j + 1, len(chosen) * len(samples), "storing vectors")
    columns = ["type", "bits", *(s.name for s in samples)]
    dim = samples[0].head_dim

    def rows(what: str) -> list[list[str]]:
        form = "{:.3g}" if what == "nmse" else "{:.5f}"
        cells = {c.name: [form.format(getattr(losses[c.name, s.name], what)) for s in samples] for c in chosen}
        return [[c.name, f"{bits(c, dim):.4g}", *cells[c.name]] for c in chosen]

    out.table("NMSE of a round trip", columns, rows("nmse"))
    out.table("cosine between a vector and what is read back", columns, rows("cosine"))
    return losses


def draw(
    out: Output,
    path: str,
    chosen: list[Codec],
    dim: int,
    samples: list[Sample],
    losses: dict[tuple[str, str], Loss],
    model: str | None,
) -> None:
    """Write the rate-distortion picture."""
    from polykv.measure import plot
    from polykv.measure.known import bits

    points = [plot.Point(c, bits(c, dim), {s.name: losses[c.name, s.name].nmse for s in samples}) for c in chosen]
    plot.draw(path, points, f"K/V types at head_dim {dim}" + (f", {model}" if model else ""))
    out.text(f"wrote {path}")
