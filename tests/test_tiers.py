"""`polykv tiers` and what it is made of: samples, round trips, quality, choice, speed, pictures, capabilities."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import random_ids, tiny_model, tiny_path

from polykv import cli
from polykv.cache.codecs import CODECS, VARIANTS, codec
from polykv.capability import HEAD_DIMS, Capability, capabilities, capability, markdown
from polykv.commands.tiers_model import DEPTH
from polykv.measure import choice, plot, samples
from polykv.measure.known import bits, known, runs
from polykv.measure.quality import Quality, compare
from polykv.measure.roundtrip import loss, round_trip
from polykv.measure.speed import Shape, measure
from polykv.model.rope import angles
from polykv.ops import BACKENDS, load
from polykv.types import Activations

ROOT = Path(__file__).parent.parent
TINY = str(tiny_path("llama"))
TYPES = "q8_0,q4_0,q4_0+r,turbo3,turbo3+c,turbo2_tcq"


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("The cat sat on the mat, and the dog did not. " * 20)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[str, dict[str, Any]]:
    """What `polykv tiers` prints, and its JSON object; in a pipe it says nothing else."""
    code = cli.run(["tiers", *args, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert not re.sub(r"polykv: compil.*\n", "", err)
    return out, json.loads(out.splitlines()[-1])


# -- round trips ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dim", [64, 80, 128])
def test_round_trips_of_normal_values(dim: int, capsys: pytest.CaptureFixture[str]) -> None:
    out, got = run(capsys, "--head-dim", str(dim))
    tiers = {t["name"]: t for t in got["tiers"]}
    assert {*CODECS, *VARIANTS} - {"f32"} < set(tiers) == {c.name for c in known()}
    # The published errors of the rotated types (docs/FORMATS.md), with the room that a sample needs.
    bound = {"turbo8": 4.2e-5, "turbo4": 0.0095, "turbo3": 0.0348, "turbo3_tcq": 0.0225, "turbo2_tcq": 0.082}
    for name, most in bound.items():
        found = tiers[name]["round_trip"]
        assert 0.8 * most < found["N(0, 1)"]["nmse"] < most
        # A rotation makes heavy tails normal, or better.
        assert found["t, 4 d.f."]["nmse"] < 1.03 * found["N(0, 1)"]["nmse"]
        assert found["N(0, 1)"]["cosine"] == pytest.approx(1 - found["N(0, 1)"]["nmse"] / 2, rel=2e-3)
    for name in ("q8_0+r", "q4_0+r"):
        found = tiers[name]["round_trip"]
        assert found["t, 4 d.f."]["nmse"] < 1.03 * found["N(0, 1)"]["nmse"]
    for name in ("q8_0", "q5_0", "q4_0"):
        found = tiers[name]["round_trip"]
        assert found["t, 4 d.f."]["nmse"] > 1.4 * found["N(0, 1)"]["nmse"]
    assert "NMSE of a round trip" in out and "speed" not in got and "pairs" not in got


def test_no_type_is_below_shannons_bound() -> None:
    x = samples.synthetic(128)[0].x
    for c in known():
        if c.bits <= 8:
            assert loss(x, round_trip(load("ref"), c, x)).nmse > 2 ** (-2 * bits(c, 128)), c.name


@pytest.mark.parametrize("name", ["q8_0", "turbo3"])
def test_backends_agree_about_a_round_trip(name: str) -> None:
    for s in samples.synthetic(64):
        ref, cpu = (loss(s.x, round_trip(load(b), codec(name), s.x)) for b in ("ref", "cpu"))
        assert cpu.nmse == pytest.approx(ref.nmse, rel=1e-3)


@pytest.mark.parametrize("backend", ["ref", "cpu"])
def test_centered_types_take_off_what_a_unit_has_in_common(backend: str) -> None:
    x = samples.synthetic(64)[0].x + 50 * np.random.default_rng(1).standard_normal((1, 1, 64), np.float32)
    centered, plain = (round_trip(load(backend), codec(n), x) for n in ("turbo3+c", "turbo3"))
    assert loss(x, centered).nmse < 0.01 * loss(x, plain).nmse
    # A unit that is not complete is kept as it is.
    short = round_trip(load(backend), codec("turbo3+c"), x[:70])
    assert loss(x[64:70], short[64:]).nmse < 1e-6 < loss(x[:64], short[:64]).nmse
    np.testing.assert_array_equal(short[:64], centered[:64])
    assert loss(x[:5], round_trip(load(backend), codec("turbo3+c"), x[:5])).nmse < 1e-6


def test_loss_of_what_is_known() -> None:
    x = np.float32([[3, 4], [0, 0], [1, 0]])
    assert vars(loss(x, x)) == {"nmse": 0, "cosine": 1}
    assert vars(loss(x, 0 * x)) == {"nmse": 1, "cosine": 0}
    assert vars(loss(x, -x)) == {"nmse": 4, "cosine": -1}
    assert vars(loss(0 * x, x)) == {"nmse": 0, "cosine": 1}


def test_rotating_keeps_vectors_and_makes_outliers_normal() -> None:
    x = np.zeros((8, 2, 64), np.float32)
    x[..., 5] = 100
    turned = samples.rotated(samples.Sample("K", x))
    assert turned.name == "K, rotated" and turned.x.shape == x.shape
    np.testing.assert_allclose(np.linalg.norm(turned.x, axis=2), 100, rtol=1e-5)
    assert np.abs(turned.x).max() == pytest.approx(100 / 8, rel=1e-5)
    # Without a matrix of the order: whole groups.
    assert samples.rotated(samples.Sample("K", np.ones((8, 2, 88), np.float32))).x.shape == (8, 2, 128)


# -- the keys and values of a model --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("n", [1, 100, 200])
def test_samples_are_what_the_model_stores(name: str, n: int) -> None:
    model, ops, ids = tiny_model(name), load("cpu"), random_ids(n)
    told: list[tuple[int, int]] = []
    found = samples.of_model(model, ids, ops, lambda *progress: told.append(progress))
    assert [s.name for s in found] == ["K", "K, rotated", "V", "V, rotated"]
    assert told[-1] == (n, n)
    k = found[0].x
    first = model.config.layers[0]
    windows = [layer.window for layer in model.config.layers if layer.window]
    assert k.shape[0] <= min(n, 128) and k.shape[0] >= min([n, 128, *windows])
    assert k.shape[1:] == (sum(layer.n_kv for layer in model.config.layers), first.head_dim)
    # The last token of a text has the K that it has as the last of that text alone in the cache.
    np.testing.assert_array_equal(samples.of_model(model, ids, ops)[0].x, k)
    assert np.isfinite(k).all() and (np.abs(k).max(axis=2) > 0).all()


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_vectors_of_a_layer_are_those_of_the_forward_pass(name: str) -> None:
    model, ops, ids = tiny_model(name), load("ref"), random_ids(20)
    first, w = model.config.layers[0], model.attention[0]
    found = samples.of_layer(model, ids, ops, 0)
    assert found.q.shape == (20, first.n_heads, first.head_dim)
    h = ops.embed(model.embedding, np.int32(ids), model.config.embed_scale)
    q = ops.linear(ops.rms_norm(h, w.norm, w.eps), w.wq, activations=Activations.F32).reshape(found.q.shape)
    q = q if w.q_norm is None else ops.rms_norm(q, w.q_norm, w.eps)
    np.testing.assert_array_equal(found.q, ops.rope(q, angles(first.rope, np.arange(20, dtype=np.int32))))
    last = len(model.config.layers) - 1
    deep = samples.of_layer(model, ids, ops, last)
    whole = samples.of_model(model, ids, ops)
    np.testing.assert_array_equal(deep.k, whole[0].x[:, -deep.k.shape[1] :])
    np.testing.assert_array_equal(deep.v, whole[2].x[:, -deep.v.shape[1] :])


def test_only_one_command_is_needed_to_choose(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out, got = run(capsys, "-m", TINY, "--text", text, "--types", TYPES, "--tokens", "140")
    names = TYPES.split(",")
    assert [t["name"] for t in got["tiers"]] == names
    for t in got["tiers"]:
        assert list(t["round_trip"]) == ["N(0, 1)", "t, 4 d.f.", "K", "K, rotated", "V", "V, rotated"]
    here = [name for name in names if "cpu" in runs(codec(name), 16)]
    assert set(got["speed"]["types"]) == set(here)
    assert all(s["encode_s"] > 0 and s["attend_ratio"] > 0 for s in got["speed"]["types"].values())
    assert (got["tokens"], got["scored"], got["truth"]) == (140, 76, "f16")
    pairs = got["pairs"]
    # Centered types hold K only.
    assert {f"{n}/f16" for n in here} | {f"f16/{n}" for n in here if "+c" not in n} <= set(pairs)
    assert "f16/turbo3+c" not in pairs
    assert {f"{kv},sink=4" for kv in pairs if "+c/" in kv and "sink" not in kv and "f16" not in kv} <= set(pairs)
    assert (pairs["f16/f16"]["kl_mean"], pairs["f16/f16"]["same_top"]) == (0, 1)
    assert pairs["q8_0/f16"]["kl_mean"] < pairs["q4_0/f16"]["kl_mean"]
    assert any("smallest that stays under" in line for line in got["advice"])
    assert all(line in out for line in got["advice"])
    assert any(line.startswith("at the bytes of q8_0/q8_0") for line in got["advice"])
    assert pairs["q8_0/q8_0"]["attend_ratio"] > 0 and "attend" in out
    _, quiet = run(capsys, "-m", TINY, "--text", text, "--types", "q8_0", "--tokens", "16", "--no-speed")
    assert "speed" not in quiet and "attend_ratio" not in quiet["pairs"]["q8_0/q8_0"]


def test_without_a_text_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    out, got = run(capsys, "-m", TINY, "--types", "q8_0")
    assert "--text FILE" in out and not {"speed", "pairs"} & set(got)
    out, got = run(capsys, "--types", "q8_0", "--speed", "--backend", "ref", "--head-dim", "32")
    assert set(got["speed"]["types"]) == {"q8_0"} and got["speed"]["depth"] == 256


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--text", "a.txt"], "add -m"),
        (["-m", TINY, "--text", "no-such-file"], "no-such-file"),
        (["-m", TINY, "--text", "a.txt", "--head-dim", "64"], "--head-dim 64"),
        (["--types", "q8_0,turbo9"], "turbo9"),
        (["--types", "q8_0", "--plot", "no-such-folder/a.png"], "no-such-folder"),
        (["--types", "q8_0", "--plot", "a.nonsense"], "nonsense"),
        (["--types", "q8_0", "--plot", "nonsense"], "suffix"),
        (["--types", "f16,bf16", "--plot", "a.png"], "nothing to draw"),
    ],
)
def test_mistakes(args: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["tiers", *args]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("polykv: error: ") and part in err and err.count("\n") == 1
    # Before anything is measured.
    assert out == ""


def test_a_text_of_few_tokens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "short.txt"
    path.write_text("a")
    assert cli.run(["tiers", "-m", TINY, "--text", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "too few to measure with, 16 are the least" in err


# -- choosing ------------------------------------------------------------------------------------------------------
def quality(size: float, kl: float, n: int = 64) -> Quality:
    return Quality(size, np.full(n, kl), np.ones(n, bool))


def test_what_is_measured_contains_the_best_of_a_sum() -> None:
    rng = np.random.default_rng(0)
    names = [f"t{i}" for i in range(9)]
    sizes = dict(zip(names, rng.uniform(2, 16, 9), strict=True))
    k, v = ({name: float(2.0 ** -sizes[name] * rng.uniform(1, 2)) for name in names} for _ in range(2))
    kept = choice.worth_measuring(sizes, sizes, k, v)
    points = {f"{a}/{b}": (sizes[a] + sizes[b], k[a] + v[b]) for a in names for b in names}
    assert 1 <= len(kept) <= choice.MOST
    for kv in kept:
        size, kl = points[kv]
        assert not any(s < size and max(other, choice.INDISTINCT) < kl for s, other in points.values())
    assert [points[kv][0] for kv in kept] == sorted(points[kv][0] for kv in kept)


def test_a_long_frontier_is_thinned_and_keeps_its_ends() -> None:
    names = [str(i) for i in range(40)]
    sizes, kl = {n: 1.0 + int(n) for n in names}, {n: 1 / (1 + int(n)) for n in names}
    kept = choice.worth_measuring(sizes, {"x": 0.0}, kl, {"x": 0.0})
    assert len(kept) == choice.MOST and (kept[0], kept[-1]) == ("0/x", "39/x")


def test_advice_names_the_smallest_and_the_best() -> None:
    found = {"f16/f16": quality(100, 0), "q8_0/q8_0": quality(50, 0.0005), "a/b": quality(30, 0.02)}
    lines = choice.advise(found, 100)
    assert "smallest that stays under 0.001 nats: q8_0/q8_0 (50 bytes per token, 50% of f16, KL 0.0005)" in lines
    assert "smallest that stays under 0.03 nats: a/b (30 bytes per token, 30% of f16, KL 0.02)" in lines
    assert "best within 50% of f16: q8_0/q8_0 (50 bytes per token, 50% of f16, KL 0.0005)" in lines
    assert not any("25%" in line for line in lines)
    assert lines[-1].endswith("is the best other, and worse")


def test_a_difference_that_chance_makes_is_called_so() -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2, 100))
    a, b = (Quality(1, 1 + x, np.ones(100, bool)) for x in noise)
    assert choice.verdict(a, b) == "as good, as far as 100 positions can show"
    better = Quality(1, a.kl - 0.5 + 0.1 * noise[1], a.same)
    assert choice.verdict(a, better) == "better"
    assert choice.verdict(better, a) == "the best other, and worse"


def test_quality_is_the_same_by_pair_and_alone() -> None:
    model, ids, ops = tiny_model("llama"), random_ids(70), load("cpu")
    both = compare(model, ids, ["q8_0/turbo3", "f16/f16"], ops=ops, truth="f16/f16")
    alone = compare(model, ids, ["q8_0/turbo3"], ops=ops, truth="f16/f16")
    np.testing.assert_array_equal(both["q8_0/turbo3"].kl, alone["q8_0/turbo3"].kl)
    assert (both["f16/f16"].kl_mean, len(both["f16/f16"].kl)) == (0, 70)


# -- speed, pictures, capabilities ---------------------------------------------------------------------------------
def test_speeds_are_ratios_to_the_control_of_the_run() -> None:
    told: list[tuple[int, int]] = []
    found = measure(
        load("ref"),
        {name: (codec(name), codec("f16")) for name in ("f16", "q8_0")},
        "f16",
        Shape(2, 1, 32),
        depth=20,
        budget=0,
        on_progress=lambda *progress: told.append(progress),
    )
    assert told[-1] == (6, 6) and (found["f16"].encode_ratio, found["f16"].attend_ratio) == (1, 1)
    assert found["q8_0"].encode_ratio == found["f16"].encode_s / found["q8_0"].encode_s > 0


def test_every_backend_has_a_depth_to_be_timed_at() -> None:
    assert set(DEPTH) == set(BACKENDS)


def test_the_picture_has_every_type_and_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiers.svg"
    out, _ = run(capsys, "--types", TYPES, "--plot", str(path))
    assert f"wrote {path}" in out
    drawn = path.read_text()
    assert all(f"<!-- {name} -->" in drawn for name in TYPES.split(","))
    assert "Shannon" in drawn
    run(capsys, "--types", TYPES, "--plot", str(tmp_path / "tiers.png"))
    assert (tmp_path / "tiers.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.run(["tiers", "--plot", "a.png"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "pip install matplotlib" in err


def test_panter_dite_is_the_limit_of_lloyd_max() -> None:
    from polykv.ref.tables import distortion, lloyd_max

    found = [distortion(lloyd_max(2**r)[0]) * 2 ** (2 * r) for r in (4, 6, 8)]
    assert sorted(found) == found and 0.97 * plot.PANTER_DITE < found[-1] < plot.PANTER_DITE


def test_capabilities_are_what_the_backends_say(capsys: pytest.CaptureFixture[str]) -> None:
    out, got = run(capsys, "--capabilities")
    for name, types in got["backends"].items():
        ops = load(name)
        for t, dims in types.items():
            both, size = (codec(t), codec(t)), ops.preferred_block()
            assert dims == [d for d in HEAD_DIMS if ops.supports_kv(*both, d, size) is None]
    assert markdown() in out


def test_the_document_shows_the_capabilities() -> None:
    text = (ROOT / "docs" / "CAPABILITIES.md").read_text()
    assert markdown() in text, "replace the table of docs/CAPABILITIES.md by what `polykv tiers --capabilities` prints"


def test_capability_of_a_backend_that_refuses_some() -> None:
    class Picky:
        def supports_kv(self, k: Any, v: Any, head_dim: int, block_size: int) -> str | None:
            if head_dim < 64 or "turbo4" in (k.name, v.name):
                return "too small"
            return "not together" if (k.name, v.name) == ("q8_0", "turbo3") else None

        def supports_weight(self, kind: Any) -> str | None:
            return None

        def supports_stages(self) -> str | None:
            return None

        def unusable(self) -> str | None:
            return None

        def preferred_block(self) -> int:
            return 8

    found: Capability = capability("picky", Picky())
    assert "turbo4" not in found.types() and "turbo3" in found.types()
    assert found.dims("q8_0") == [d for d in HEAD_DIMS if d >= 64]
    assert found.refused_pairs() == ["q8_0/turbo3"]
    assert found.refusals() == ["too small", "not together"]
    assert {c.backend for c in capabilities()} == {"ref", "cpu", "cuda"}
