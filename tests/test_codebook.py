"""Training codebooks: chosen on one corpus, accepted on another; codebook files, and what they must not mix with."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tiny_llm import DOCUMENT, tiny_llm
from tiny_models import random_ids, tiny_model, tiny_path

from polykv import cli
from polykv.cache.codecs import codec, parse_tiers
from polykv.cache.codecs.trellis import with_codebook, with_codebooks
from polykv.codebook import Training, checksum, save, train
from polykv.errors import ConfigError, FormatError, MismatchError
from polykv.measure.corpus import Side, gaussian, of_text
from polykv.measure.samples import keys_and_values
from polykv.ops import load

TYPE = codec("turbo2_tcq")


@pytest.fixture(scope="module")
def training() -> Training:
    return train(TYPE, gaussian(60_000, 64, 1), gaussian(60_000, 64, 2), rounds=12)


def test_a_gain_on_both_corpora_is_accepted(training: Training) -> None:
    assert training.accepted
    assert len({t.selection for t in training.trials}) == 3
    best = training.candidate
    assert best.selection == min(t.selection for t in training.trials) < training.selection
    assert training.gain == pytest.approx(1 - best.held_out / training.held_out)
    assert 0 < training.deviation < training.gain / 3


def test_training_repeats_exactly(training: Training) -> None:
    updates: list[tuple[int, int]] = []
    again = train(
        TYPE,
        gaussian(60_000, 64, 1),
        gaussian(60_000, 64, 2),
        rounds=12,
        update=lambda done, total, _: updates.append((done, total)),
    )
    assert again.as_dict() == training.as_dict()
    assert {total for _, total in updates} == {36} and max(updates)[0] <= 36


def test_what_only_fits_the_first_corpus_is_refused() -> None:
    """A handful of vectors can be learned by heart; others then have more error, not less."""
    lucky = train(TYPE, gaussian(640, 64, 3), gaussian(20_000, 64, 4), rounds=15)
    assert lucky.candidate.selection < lucky.selection
    assert not lucky.accepted
    with pytest.raises(ConfigError, match="no robust gain over the codebook of turbo2_tcq"):
        save(lucky, "nowhere", {})


def test_a_gain_within_chance_is_refused(training: Training) -> None:
    assert not dataclasses.replace(training, deviation=training.gain / 2).accepted
    # One seed that loses is enough to doubt the others.
    first, *others = training.trials
    worse = dataclasses.replace(first, held_out=training.held_out * 1.01)
    assert not dataclasses.replace(training, trials=(worse, *others)).accepted


def test_bad_arguments_are_refused() -> None:
    x = gaussian(6400, 64, 0)
    with pytest.raises(ConfigError, match="turbo3 has no codebook of states to train"):
        train(codec("turbo3"), x, x)
    for seeds in ((0, 1), (1, 1, 2)):
        with pytest.raises(ConfigError, match="at least 3 different seeds"):
            train(TYPE, x, x, seeds=seeds)
    with pytest.raises(ConfigError, match="at least one round"):
        train(TYPE, x, x, rounds=0)
    with pytest.raises(ConfigError, match="the held-out corpus has no vector other than zero"):
        train(TYPE, x, np.zeros((3, 64), np.float32))
    with pytest.raises(ConfigError, match="the selection corpus must be finite vectors"):
        train(TYPE, np.full((3, 64), np.nan, np.float32), x)


def test_padded_heads_train_too() -> None:
    """head_dim 104 has no Hadamard matrix of its own; its vectors fill a group of 128 with zeros."""
    assert len(train(TYPE, gaussian(2000, 104, 0), gaussian(2000, 104, 1), rounds=1).trials) == 3


def test_a_saved_codebook_serves_everywhere(training: Training, tmp_path: Path) -> None:
    story = json.loads(save(training, tmp_path / "book", {"corpora": ["a", "b"]}).read_text())
    assert story["sha256"] == checksum(training.candidate.codebook) and story["corpora"] == ["a", "b"]
    own = with_codebook(TYPE, tmp_path / "book")
    assert np.array_equal(np.array(own.centroids, np.float32), training.candidate.codebook)
    tiers = with_codebooks(parse_tiers("turbo3_tcq/turbo2_tcq,1=q8_0/turbo2_tcq", 2), [tmp_path / "book"])
    assert [t.v for t in tiers] == [own, own]
    assert [t.k for t in tiers] == [codec("turbo3_tcq"), codec("q8_0")]
    with pytest.raises(FormatError, match="cannot be written"):
        save(training, tmp_path / "none" / "book", {})


def test_files_that_are_no_codebooks(tmp_path: Path) -> None:
    path = tmp_path / "book"
    tiers = parse_tiers("turbo3_tcq/turbo2_tcq", 1)
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        with_codebooks(tiers, [path])
    path.write_bytes(bytes(12))
    with pytest.raises(FormatError, match="has 12 bytes; turbo3_tcq needs 512 float32"):
        with_codebooks(tiers, [path])
    np.zeros(256, "<f4").tofile(path)
    with pytest.raises(FormatError, match="nothing but zeros"):
        with_codebooks(tiers, [path])
    np.full(256, np.inf, "<f4").tofile(path)
    with pytest.raises(FormatError, match=r"outside -1\.\.1"):
        with_codebooks(tiers, [path])
    with pytest.raises(ConfigError, match="there is none in q8_0/turbo3"):
        with_codebooks(parse_tiers("q8_0/turbo3", 1), [path])
    with pytest.raises(FormatError, match="cannot be read: Is a directory"):
        with_codebooks(tiers, [tmp_path])


def test_pools_of_different_codebooks_do_not_mix(training: Training, tmp_path: Path) -> None:
    book = tmp_path / "book"
    save(training, book, {})
    kv = "q8_0/turbo2_tcq"
    own, plain = (tiny_llm(backend="ref", kv=kv, codebooks=files) for files in ([book], []))
    with own.pool(DOCUMENT) as pool:
        pool.save(tmp_path / "pool")
    with own.load_pool(tmp_path / "pool") as pool:
        assert pool.ask(["x"], max_tokens=2)[0].text is not None
    with pytest.raises(MismatchError, match="codec table of layer 0 differs"):
        plain.load_pool(tmp_path / "pool")


def test_vectors_of_a_model() -> None:
    model, ops, ids = tiny_model("llama"), load("cpu"), random_ids(300)
    held = keys_and_values(model, ids[:256], ops, None)
    dim = model.config.layers[0].head_dim
    k, v = (np.concatenate([a.reshape(-1, dim) for a in side]) for side in zip(*held, strict=True))
    everything = of_text(model, ids, ops, values=1 << 30)
    assert {r.tobytes() for r in everything} == {r.tobytes() for r in np.concatenate([k, v])}
    assert {r.tobytes() for r in of_text(model, ids, ops, side=Side.V, values=1 << 30)} == {r.tobytes() for r in v}
    some = of_text(model, ids, ops, values=20 * dim, seed=5)
    assert some.shape == (20, dim) and np.array_equal(some, of_text(model, ids, ops, values=20 * dim, seed=5))
    # The first token of a short text is left out.
    assert len(of_text(model, ids[:3], ops, side=Side.K)) == 2 * sum(layer.n_kv for layer in model.config.layers)
    with pytest.raises(ConfigError, match="fewer than two tokens"):
        of_text(model, ids[:1], ops)


def command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.run(["train-codebook", *args])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_trains_and_says_when_it_gained_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    book = str(tmp_path / "book")
    size = ("--values", "60000", "--head-dim", "64")
    code, out, _ = command(capsys, "turbo2_tcq", *size, "--rounds", "12", "-o", book, "--json")
    assert code == 0 and "accepted: seed" in out and f"written: {book} and {book}.json" in out
    found = json.loads(out.splitlines()[-1])
    assert found["accepted"] and found["files"] == [book, f"{book}.json"]
    assert found["sha256"] == checksum(np.fromfile(book, np.float32))
    code, out, _ = command(capsys, "turbo2_tcq", *size, "--rounds", "2", "--codebook", book, "-o", f"{book}2", "--json")
    assert code == 0 and "no robust gain" in out and not Path(f"{book}2").exists()
    found = json.loads(out.splitlines()[-1])
    assert not found["accepted"] and found["files"] is None


def test_the_command_reads_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(DOCUMENT * 3)
    model = ("-m", str(tiny_path("llama")), "--rounds", "1", "--values", "5000", "--json")
    for more in (["--text", str(text)], ["--text", str(text), "--held-out", str(text), "--side", "k"], []):
        code, out, err = command(capsys, "turbo3_tcq", *model, *more)
        assert code == 0, err
        assert len(json.loads(out.splitlines()[-1])["corpora"]) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["turbo3"], "turbo3 has no codebook"),
        (["nothing"], "unknown K/V type"),
        (["turbo2_tcq", "--seeds", "2"], "at least 3 different seeds"),
        (["turbo2_tcq", "--text", "x"], "name one with -m"),
        (["turbo2_tcq", "-o", "/no/such/folder/book"], "cannot be written: No such file"),
        (["turbo2_tcq", "--codebook", "/no/such/book"], "cannot be read"),
    ],
)
def test_the_command_refuses(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, *args, "--values", "1000", "--rounds", "1")
    assert code == 2 and out == "" and message in err


def test_codebooks_of_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, training: Training) -> None:
    book = tmp_path / "book"
    save(training, book, {})
    args = ["generate", "x", "-m", str(tiny_path("llama")), "--backend", "ref", "-n", "1", "--codebook", str(book)]
    assert cli.run([*args, "--kv", "q8_0/turbo2_tcq", "--report", "--json"]) == 0
    tables = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]["tables"]
    assert list(tables) == ["turbo2_tcq"] and tables["turbo2_tcq"].startswith("turbo2_tcq-file-")
    assert cli.run([*args, "--kv", "q8_0/turbo3"]) == 2
    assert "a codebook is for a trellis type" in capsys.readouterr().err
