"""`polykv train-codebook`: a codebook for a trellis type, kept only if it wins where it was not chosen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.options import backend_option, json_option
from polykv.commands.output import Output
from polykv.errors import ConfigError
from polykv.whole_file import check_writable

if TYPE_CHECKING:
    from polykv.codebook import Training
    from polykv.types import F32

COUNT = click.IntRange(min=1)


@click.command()
@click.argument("name", metavar="TYPE")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="File for the codebook.")
@click.option("-m", "--model", default=None, help="Train on K and V of this model; without it on N(0, 1).")
@click.option("--text", default=None, help="The text that it reads; default the document that comes with polykv.")
@click.option("--held-out", default=None, help="The second text; default the second half of the first.")
@click.option("--side", type=click.Choice(["k", "v", "both"]), default="both", show_default=True)
@click.option("--head-dim", type=COUNT, default=128, show_default=True, help="Of vectors from N(0, 1).")
@click.option("--seeds", type=COUNT, default=3, show_default=True, help="How many starts; at least 3.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--rounds", type=COUNT, default=60, show_default=True, help="The most that one start takes.")
@click.option("--values", type=COUNT, default=1 << 19, show_default=True, help="Numbers in each corpus.")
@click.option(
    "--codebook", "codebooks", multiple=True, metavar="FILE", help="What is to be beaten, in place of TYPE's own."
)
@backend_option
@json_option
def command(name: str, output: Path | None, as_json: bool, codebooks: tuple[str, ...], **values: Any) -> None:
    """Train a codebook for TYPE (turbo3_tcq, turbo2_tcq): choose on one corpus, accept on another.

    Every seed begins elsewhere. The codebook with the least error on the first corpus is accepted if it and all others
    have less error than the present one (or that of --codebook) on the second corpus, beyond chance. Otherwise the
    answer is "no robust gain" and nothing is written.

    -o FILE holds raw float32; use it with --codebook FILE. FILE.json says how it came about.
    """
    from polykv.cache.codecs import codec
    from polykv.cache.codecs.trellis import with_codebooks
    from polykv.codebook import save, train
    from polykv.config import Tier

    out = Output(as_json)
    (tier,) = with_codebooks((Tier(codec(name), codec(name)),), codebooks)
    if output is not None:
        check_writable(output)
    first, second, corpora = _corpora(values, out)
    seeds = range(values["seed"], values["seed"] + values["seeds"])
    with Compiling("cpu"), out.progress("training", unit="round") as update:
        result = train(tier.k, first, second, seeds=seeds, rounds=values["rounds"], update=update)
    _show(result, out)
    files = None
    if output is not None and result.accepted:
        files = [str(output), str(save(result, output, corpora))]
        out.text(f"written: {' and '.join(files)}")
    out.json({**result.as_dict(), **corpora, "files": files})


def _corpora(values: dict[str, Any], out: Output) -> tuple[F32, F32, dict[str, Any]]:
    """Vectors to choose by, vectors to accept by, and words for both."""
    from polykv.measure.corpus import gaussian

    n = values["values"]
    if values["model"] is None:
        if values["text"] or values["held_out"]:
            raise ConfigError("--text and --held-out are read by a model: name one with -m")
        # Seeds of the corpora are far from those of starts.
        seeds = [(values["seed"], 1 << 20), (values["seed"], 1 << 21)]
        pair = [gaussian(n, values["head_dim"], s) for s in seeds]
        return (
            pair[0],
            pair[1],
            {"corpora": [f"N(0, 1), seed {list(s)}" for s in seeds], "values": [x.size for x in pair]},
        )
    return _model_corpora(values, out)


def _model_corpora(values: dict[str, Any], out: Output) -> tuple[F32, F32, dict[str, Any]]:
    from polykv.catalogue import resolve
    from polykv.commands.ask import read_document
    from polykv.measure.corpus import Side, of_text
    from polykv.model.loader import load_model
    from polykv.ops import load
    from polykv.text.tokenizer import Tokenizer

    model, ops, side = load_model(resolve(values["model"])), load(values["backend"]), Side(values["side"])
    encode = Tokenizer.from_gguf(model.gguf.metadata).encode
    name = values["text"] or "the document of polykv"
    first, second = encode(read_document(values["text"])), []
    names = [f"{name}, first half", f"{name}, second half"]
    if values["held_out"]:
        second, names = encode(read_document(values["held_out"])), [name, values["held_out"]]
    else:
        first, second = first[: len(first) // 2], first[len(first) // 2 :]
    vectors = []
    for ids in (first, second):
        with Compiling(values["backend"]), out.progress("reading") as update:
            n, seed = values["values"], values["seed"]
            vectors.append(of_text(model, ids, ops, side=side, values=n, seed=seed, on_progress=update))
    about = {"corpora": names, "values": [x.size for x in vectors], "model": model.config.name, "side": side.value}
    return vectors[0], vectors[1], about


def _show(result: Training, out: Output) -> None:
    """A table of all seeds and the verdict."""
    rows = [[f"{result.codec.table_id} (now)", f"{result.selection:.5f}", f"{result.held_out:.5f}", "-", "-"]]
    for t in result.trials:
        gain = f"{1 - t.held_out / result.held_out:+.2%}"
        rows.append([f"seed {t.seed}", f"{t.selection:.5f}", f"{t.held_out:.5f}", gain, str(t.rounds)])
    columns = ["codebook", "error, chosen by", "error, held out", "gain, held out", "rounds"]
    out.table(f"{result.codec.name}: squared error per squared length", columns, rows)
    gain = f"{result.gain:.2%} on the held-out corpus, standard error {result.deviation:.2%}"
    found = f"seed {result.candidate.seed} gains {gain}"
    out.text(f"accepted: {found}" if result.accepted else f"no robust gain: {found}; the present codebook stays")
