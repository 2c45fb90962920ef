"""Models with a calibration: exact without quantization, never applied twice, the same in any split, batch or fork."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm
from tiny_models import BACKENDS, assert_same, one_shot, random_ids, tiny_model, tiny_path, tiny_runner

import polykv
from polykv import calibrator as front
from polykv import cli
from polykv import ops as operations
from polykv.cache.calibration import Calibration, Slot
from polykv.cache.calibration_file import read_slots, write_slots
from polykv.cache.sequence import Sequence
from polykv.calibrator import observe
from polykv.errors import ConfigError, FormatError, MismatchError, PromptError
from polykv.model.channels import ChannelSquares
from polykv.model.runner import Logits, Runner
from polykv.ref.attention import softmax_part
from polykv.types import Activations, Segment, Segments

NAMES = ("llama", "qwen2", "gemma3")
TEXT = DOCUMENT * 4


def random_calibration(name: str, values: bool = False, seed: int = 0) -> Calibration:
    """Factors of 1/2 to 2 for every kv head of every layer."""
    rng, layers = np.random.default_rng(seed), tiny_model(name).config.layers

    def slots() -> tuple[Slot, ...]:
        return tuple(
            Slot(np.exp2(rng.uniform(-1, 1, (x.n_kv, x.head_dim))).astype(np.float32), x.n_kv * x.head_dim, i)
            for i, x in enumerate(layers)
        )

    return Calibration(slots(), slots() if values else ())


def runner_with(calibration: Calibration, name: str, backend: str, kv: str = "f32", **more: int) -> Runner:
    runner = tiny_runner(name, backend, kv, **more)
    runner.pool.equalize(calibration)
    return runner


@pytest.mark.parametrize("values", (False, True))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_changes_without_quantization(name: str, backend: str, values: bool) -> None:
    ids = random_ids(100)
    want = one_shot(tiny_runner(name, backend), ids)
    runner = runner_with(random_calibration(name, values), name, backend)
    np.testing.assert_allclose(one_shot(runner, ids), want, atol=3e-5)
    layers = len(runner.transformer.stack.layers)
    assert runner.counters.k_scaled == runner.counters.q_scaled == 100 * layers
    assert runner.pool.counters["unscaled"] == 0


@pytest.mark.parametrize("kv", ("f32", "q8_0/turbo3"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_factors_of_one_leave_every_bit(backend: str, kv: str) -> None:
    ids = random_ids(70)
    want = one_shot(tiny_runner("llama", backend, kv), ids)
    runner = runner_with(Calibration((Slot(np.ones((1, 16), np.float32)),)), "llama", backend, kv)
    np.testing.assert_array_equal(one_shot(runner, ids), want)
    assert runner.counters.k_scaled == runner.counters.q_scaled == 0


@pytest.mark.parametrize("kv", ("f32", "q8_0/turbo3", "turbo3"))
@pytest.mark.parametrize("name", NAMES)
def test_split_batch_prefix_and_fork_change_nothing(name: str, kv: str) -> None:
    calibration = random_calibration(name, values=True)
    runner, ids = runner_with(calibration, name, "cpu", kv), random_ids(150)
    want = one_shot(runner_with(calibration, name, "cpu", kv), ids)
    sequence = Sequence(runner.pool)
    parts = [runner.step([(sequence, ids[a:b])], Logits.ALL) for a, b in ((0, 1), (1, 64), (64, 130))]
    fork = sequence.fork()
    other = random_ids(33, seed=1)
    tail, _ = np.split(runner.step([(fork, ids[130:]), (Sequence(runner.pool), other)], Logits.ALL), [20])
    assert_same("cpu", np.concatenate([*parts, tail]), want)
    hit, reused = Sequence.attach(runner.pool, ids)
    assert reused >= 64
    assert_same("cpu", runner.step([(hit, ids[reused:])], Logits.ALL), want[reused:])


@pytest.mark.parametrize("kv", ("f32", "turbo3"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_on_scaled_keys_is_attention_on_lifted_ones(backend: str, kv: str) -> None:
    """Queries times 1/s on codes against queries as they are on keys read back without s: once each, never both."""
    runner, ids = runner_with(random_calibration("llama", values=True), "llama", backend, kv), random_ids(64)
    ops, pool, sequence = runner.transformer.ops, runner.pool, Sequence(runner.pool)
    runner.step([(sequence, ids)], Logits.NONE)
    w = runner.transformer.stack.layers[0].attention
    blocks = np.ascontiguousarray(sequence.block_tables[0].ids, np.int32)
    q = np.random.default_rng(3).standard_normal((1, w.n_heads, w.head_dim)).astype(np.float32)
    one = Segments.of([Segment(blocks, 0, 64, np.zeros(1, np.int32))], np.array([63], np.int32))
    fused, _ = ops.attend(q * w.equalizer.q, one, pool.layer(0), scale=w.scale)
    k, v = (x.reshape(-1, w.n_kv, w.head_dim)[:64].astype(np.float64) for x in pool.read(0, blocks))
    lifted, _ = softmax_part(q.astype(np.float64), k, v, np.ones((1, 64), bool), w.scale, 0.0)
    np.testing.assert_allclose(fused * w.equalizer.out, lifted, atol=2e-4)
    # Both corrections at once, or none, is something else altogether.
    for wrong in (ops.attend(q, one, pool.layer(0), scale=w.scale)[0], fused):
        assert np.abs(wrong * w.equalizer.out**2 - lifted).max() > 1e-2
    assert pool.counters["unscaled"] == 2 * len(blocks) * pool.block_size


# -- statistics ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_observed_keys_and_values_are_those_that_are_stored(name: str) -> None:
    runner, ids = tiny_runner(name, "ref", block_size=8), random_ids(16)
    model, ops = tiny_model(name), operations.load("ref")
    squares = ChannelSquares(ops, model)
    watched = Runner(ops, model, runner.pool, Activations.F32, observer=squares)
    sequence = Sequence(runner.pool)
    watched.step([(sequence, ids)], Logits.NONE)
    for i in range(len(model.config.layers)):
        table = sequence.block_tables[runner.pool.group_of(i)]
        k, v = runner.pool.read(i, np.array(table.held(), np.int32))
        q_rms, k_rms, v_rms = squares.rms(i)
        assert q_rms.shape == k_rms.shape
        for got, stored in ((k_rms, k), (v_rms, v)):
            np.testing.assert_allclose(got, np.sqrt((stored.astype(np.float64) ** 2).mean(axis=(0, 1))), rtol=1e-5)
    assert squares.rows == 16


def test_observing_changes_nothing_and_pieces_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tiny_model("llama"), random_ids(30)
    monkeypatch.setattr(front, "WINDOW", 20)
    monkeypatch.setattr(front, "CHUNK", 7)
    told: list[tuple[int, int]] = []
    whole = observe(model, ids, backend="ref", on_progress=lambda *x: told.append(x))
    assert told == [(7, 30), (14, 30), (20, 30), (27, 30), (30, 30)]
    parts = [observe(model, part, backend="ref") for part in (ids[:20], ids[20:])]
    for i in range(3):
        np.testing.assert_allclose(whole.k[i], parts[0].k[i] + parts[1].k[i], rtol=1e-4)
        np.testing.assert_allclose(whole.q[i], parts[0].q[i] + parts[1].q[i], rtol=1e-4)


def test_the_rules_of_the_front(tmp_path: Path) -> None:
    path = tiny_path("gemma3")
    found = polykv.calibrate(path, TEXT, max_tokens=100, values=True)
    assert found.tokens == 100 and len(found.k_noise) == len(found.v_noise) == len(found.calibration.k) == 6
    assert all(0 < x <= 1 for x in (*found.k_noise, *found.v_noise))
    again = polykv.calibrate(path, TEXT, max_tokens=100, backend="ref", rule="balanced")
    for a, b in zip(found.calibration.k, again.calibration.k, strict=True):
        np.testing.assert_allclose(a.inverse, b.inverse, rtol=1e-3)
    assert again.calibration.v == () and again.v_noise == ()
    one = polykv.calibrate(path, TEXT, max_tokens=100, rule="innerq")
    assert [(s.width, s.layer) for s in one.calibration.k] == [(0, -1)]
    write_slots(tmp_path / "k.tiq", one.calibration.k)
    assert (tmp_path / "k.tiq").read_bytes()[:4] == b"TIQ1"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"rule": "best"}, "unknown rule"),
        ({"max_tokens": 0}, "0 tokens"),
        ({"rule": "innerq", "strength": 2}, "strength"),
    ],
)
def test_what_the_front_refuses(options: dict, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        polykv.calibrate(tiny_path("llama"), TEXT, **options)
    with pytest.raises(PromptError, match="empty"):
        polykv.calibrate(tiny_path("llama"), "  ")


# -- sessions and files --------------------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    found = random_calibration("llama", values=True)
    paths = {side: str(tmp_path / f"{side}.tiq") for side in "kv"}
    write_slots(paths["k"], found.k)
    write_slots(paths["v"], found.v)
    return paths


def test_a_session_with_a_calibration(files: dict[str, str], tmp_path: Path) -> None:
    plain, llm = tiny_llm(kv="f32"), tiny_llm(kv="f32", calibration=files["k"], calibration_v=files["v"])
    want = random_calibration("llama", values=True).identity()
    assert llm.report()["calibration"] == want and plain.report()["calibration"] == "none"
    with plain.pool(DOCUMENT) as a, llm.pool(DOCUMENT) as b:
        answers = [[x.tokens for x in pool.ask(QUESTIONS, max_tokens=8)] for pool in (a, b)]
        assert answers[0] == answers[1]
        b.save(tmp_path / "b.pool")
        a.save(tmp_path / "a.pool")
    same = tiny_llm(kv="f32", calibration=Calibration(read_slots(files["k"]), read_slots(files["v"])))
    assert [x.tokens for x in same.load_pool(tmp_path / "b.pool").ask(QUESTIONS, max_tokens=8)] == answers[0]
    assert plain.load_pool(tmp_path / "a.pool").ask(["What?"])
    others = (plain, "b.pool"), (tiny_llm(kv="f32", calibration=files["k"]), "b.pool"), (same, "a.pool")
    for other, name in others:
        with pytest.raises(MismatchError, match="calibration differs"):
            other.load_pool(tmp_path / name)


def test_a_pool_file_without_a_calibration_is_what_it_was(golden: Path, tmp_path: Path) -> None:
    with tiny_llm().pool("The bridge of Brellin has seven arches.") as pool:
        pool.save(tmp_path / "x.pool")
    ours, theirs = (header(p) for p in (tmp_path / "x.pool", golden / "pools" / "llama-q8_0-turbo3-v2.pool"))
    # Codes of upper layers move with the last bits of attention: what they are is not compared here.
    for h in (ours, theirs):
        del h["__metadata__"]["header_checksum"]
        checksums = json.loads(h["__metadata__"].pop("checksums"))
        h["__metadata__"]["checked"] = sorted(checksums)
    assert ours == theirs and "calibration" not in json.loads(ours["__metadata__"]["identity"])


def header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file."""
    data = path.read_bytes()
    parsed: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return parsed


def test_a_calibration_comes_before_the_first_token(files: dict[str, str]) -> None:
    llm = tiny_llm(kv="f32")
    llm.equalize(files["k"])
    assert llm.generate("What?", max_tokens=4).tokens == tiny_llm(kv="f32").generate("What?", max_tokens=4).tokens
    counters = llm.engine.runner.counters
    assert counters.k_scaled == counters.q_scaled == 3 * counters.rows
    with pytest.raises(ConfigError, match="applied once"):
        llm.equalize(files["k"])
    late = tiny_llm()
    late.generate("What?", max_tokens=2)
    with pytest.raises(ConfigError, match="from the first token on"):
        late.equalize(files["k"])


def test_what_a_session_refuses(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="made for another model"):
        tiny_llm("gemma3", calibration=files["k"])
    with pytest.raises(FormatError, match="cannot be read"):
        tiny_llm(calibration=tmp_path / "missing")
    with pytest.raises(ConfigError, match="has both sides"):
        tiny_llm(calibration=Calibration(), calibration_v=files["v"])


def test_the_command_line(files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = tmp_path / "text.txt", str(tmp_path / "new.tiq")
    text.write_text(TEXT)

    def run(*args: str) -> dict:
        assert cli.run([*args, "--json"]) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out
        return {**json.loads(printed.splitlines()[-1]), "printed": printed}

    model = ("-m", str(tiny_path("llama")))
    made = run("calibrate", str(text), *model, "-o", out, "--values", files["v"], "--tokens", "64")
    assert made["tokens"] == 64 and made["bytes"]["k"] == Path(out).stat().st_size == 8 + 3 * (12 + 4 * 32)
    assert "error" in made["printed"] and len(made["k_noise"]) == 3
    both = ("--calibration", out, "--calibration-v", files["v"])
    got = run("generate", "What?", *model, *both, "-n", "2", "--report")
    assert got["report"]["calibration"] == made["calibration"]
    assert got["report"]["counters"]["runner"]["k_scaled"] == got["report"]["counters"]["runner"]["q_scaled"] > 0
    plan = run("plan", *model, *both)
    assert plan["calibration"] == made["calibration"] and "K, V" in plan["printed"]
    checks = {c["name"]: c for c in run("doctor", *both)["checks"]}
    assert checks["calibration of K"]["state"] == checks["calibration of V"]["state"] == "ok"
    assert run("ask", str(text), "-q", "What?", *model, *both, "-n", "2")["answers"]
    innerq = run("calibrate", str(text), *model, "-o", out, "--rule", "innerq", "--tokens", "64")
    assert innerq["bytes"] == {"k": 8 + 4 * 16}
    Path(out).write_bytes(b"TIQ1")
    assert cli.run(["doctor", "--calibration", out]) == 2
    assert "calibration of K" in capsys.readouterr().err
    assert cli.run(["plan", *model, "--calibration", out]) == 2
    assert "inside it" in capsys.readouterr().err


def test_tiers_measures_with_a_calibration(files: dict[str, str], tmp_path: Path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    common = ("-m", str(tiny_path("llama")), "--types", "turbo3", "--no-speed", "--tokens", "64", "--json")
    found = []
    for more in ((), ("--calibration", files["k"])):
        assert cli.run(["tiers", *common, "--text", str(text), *more]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert found[0]["calibration"] == "none" and found[1]["calibration"].startswith("K ")
    kl = [x["pairs"]["turbo3/turbo3"]["kl_mean"] for x in found]
    assert kl[0] != kl[1] and min(kl) > 0
    assert cli.run(["tiers", *common, "--calibration", files["k"]]) == 2
    assert "--text FILE" in capsys.readouterr().err
