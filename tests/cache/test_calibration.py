"""Calibrations: rules against golden data, files byte by byte, hostile files, which slot belongs to which layer."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import make_pool, model, step
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache import calibration_file
from polykv.cache.calibration import ANY, Calibration, Slot
from polykv.cache.calibration_file import from_bytes, read_calibration, read_slots, to_bytes, write_slots
from polykv.cache.codecs import codec
from polykv.cache.equalize import balanced, innerq, noise
from polykv.cache.sequence import Sequence
from polykv.errors import ConfigError, FormatError
from polykv.types import F32


def inverse(*shape: int, seed: int = 0) -> F32:
    return np.exp2(np.random.default_rng(seed).uniform(-1, 1, shape)).astype(np.float32)


def floats(values: F32) -> bytes:
    return struct.pack(f"<{values.size}f", *values.ravel().tolist())


# -- rules ---------------------------------------------------------------------------------------------------------
def test_innerq_gives_the_factors_of_the_sources(golden: Path) -> None:
    z = np.load(golden / "formats" / "innerq.npz")
    factors, used = innerq(np.sqrt(z["sq_accum"] / z["count"]), float(z["strength"]))
    assert used == bool(z["active_atomicbot"])
    np.testing.assert_array_equal(factors, z["scale"])
    # The source rounds both from float64.
    np.testing.assert_allclose(np.float32(1) / factors, z["scale_inv"], rtol=1.2e-7)
    assert not innerq(np.sqrt(z["sq_accum_balanced"] / z["count"]))[1]


def test_scaled_keys_and_values_have_the_golden_codes(golden: Path) -> None:
    """K and V times the factors, queries and outputs times their inverse: codes, scores and outputs of the sources."""
    z, c = np.load(golden / "formats" / "innerq.npz"), codec("turbo3")
    q, k, v, s = (z[f"attention_{name}"] for name in ("q", "k", "v", "scale"))
    np.testing.assert_array_equal(ref.encode(c, k * s), z["attention_kbytes"])
    np.testing.assert_array_equal(ref.encode(c, v * s), z["attention_vbytes"])
    keys, values = (ref.decode(c, z[f"attention_{side}bytes"], 128).astype(np.float64) for side in "kv")
    scores = (q / s) @ keys.T / np.sqrt(128)
    np.testing.assert_allclose(scores, z["attention_scores"], atol=2e-5)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    out = (p / p.sum(axis=1, keepdims=True)) @ values / s
    np.testing.assert_allclose(out, z["attention_out"], atol=2e-5)


@pytest.mark.parametrize("strength", (0.0, -1.0, 1.5, float("nan")))
def test_innerq_refuses_a_strength(strength: float) -> None:
    with pytest.raises(ConfigError, match="strength"):
        innerq(np.ones(4), strength)


def test_silent_channels_are_left_alone() -> None:
    rms = np.array([1.0, 0.0, 4.0, 0.25])
    assert innerq(rms)[0][1] == balanced(np.ones(4), rms)[1] == balanced(rms, np.ones(4))[1] == 1
    np.testing.assert_array_equal(balanced(np.zeros(4), np.zeros(4)), np.ones(4))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_balanced_is_the_best_rule(seed: int) -> None:
    """No other factors have less predicted noise: those of innerq, none, random ones around the best."""
    rng = np.random.default_rng(seed)
    weight, rms = np.exp(rng.normal(0, 0.6, (2, 3, 32)))
    best = balanced(weight, rms)
    least = noise(weight, rms, best)
    assert (least <= 1 + 1e-6).all()
    np.testing.assert_allclose(least, (weight * rms).sum(-1) ** 2 / (weight**2).sum(-1) / (rms**2).sum(-1), rtol=1e-5)
    for other in (innerq(rms[0])[0], best * np.exp(rng.normal(0, 0.2, 32)).astype(np.float32)):
        assert (noise(weight, rms, other) >= least - 1e-6).all()
    np.testing.assert_allclose(np.log(best).mean(axis=-1), 0, atol=1e-6)


def test_predicted_noise_is_what_a_rotated_type_does() -> None:
    """Squared error of scores, measured with turbo3 against predicted from mean squares, with and without factors."""
    rng = np.random.default_rng(1)
    # Alike in queries and keys, as in real models, and something of their own.
    common, own = np.exp(rng.normal(0, 0.8, 128)), np.exp(rng.normal(0, 0.5, (2, 128)))
    q, k = (rng.standard_normal((400, 128)) * common * own[i] for i in range(2))
    c = codec("turbo3")

    def measured(s: F32) -> float:
        keys = ref.decode(c, ref.encode(c, (k * s).astype(np.float32)), 128) / s
        return float(((q @ (keys - k).T) ** 2).mean())

    rms = [np.sqrt((x**2).mean(axis=0)) for x in (q, k)]
    plain = measured(np.ones(128, np.float32))
    for factors in (balanced(*rms), innerq(rms[1])[0]):
        assert measured(factors) / plain == pytest.approx(float(noise(*rms, factors)), rel=0.1)
    assert measured(balanced(*rms)) < 0.8 * plain < plain < measured(innerq(rms[1])[0])


# -- files ---------------------------------------------------------------------------------------------------------
ONE = (Slot(inverse(1, 64)),)
WIDTHS = (Slot(inverse(1, 256), 2048), Slot(inverse(1, 512, seed=1), 1024))
LAYERS = tuple(Slot(inverse(3, 64, seed=i), 192, i) for i in range(5))


@pytest.mark.parametrize(
    ("slots", "head"),
    [(ONE, b"TIQ1" + struct.pack("<i", 64)), (WIDTHS, b"TIQ2" + struct.pack("<i", 2)),
     (LAYERS, b"TIQ3" + struct.pack("<i", 5))],
)  # fmt: skip
def test_files_are_read_as_they_were_written(slots: tuple[Slot, ...], head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tiq"
    assert write_slots(path, slots) == path.read_bytes() == to_bytes(read_slots(path))
    assert path.read_bytes().startswith(head)
    # Others may read it, as any file of this user.
    assert path.stat().st_mode & 0o777 == 0o644
    again = read_slots(path)
    assert [(s.width, s.layer) for s in again] == [(s.width, s.layer) for s in slots]
    for got, want in zip(again, slots, strict=True):
        np.testing.assert_array_equal(got.inverse, want.inverse)
    assert Calibration(again).identity() == Calibration(slots).identity() == read_calibration(path).identity()


def test_layout_of_every_version() -> None:
    """The bytes, field by field."""
    a, b = WIDTHS
    assert to_bytes(ONE) == b"TIQ1" + struct.pack("<i", 64) + floats(ONE[0].inverse)
    parts = [struct.pack("<2i", s.width, s.head_dim) + floats(s.inverse) for s in (a, b)]
    assert to_bytes(WIDTHS) == b"TIQ2" + struct.pack("<i", 2) + b"".join(parts)
    parts = [struct.pack("<3i", s.layer, 192, 64) + floats(s.inverse) for s in LAYERS]
    assert to_bytes(LAYERS) == b"TIQ3" + struct.pack("<i", 5) + b"".join(parts)
    # A wildcard may stand in a file of version 2.
    wild = b"TIQ2" + struct.pack("<3i", 1, ANY, 64) + floats(ONE[0].inverse)
    assert from_bytes(wild, "x")[0].width == ANY


def slot2(width: int, dim: int, values: F32) -> bytes:
    return struct.pack("<2i", width, dim) + floats(values)


GOOD = to_bytes(WIDTHS)
ONES = np.ones(4, np.float32)
HOSTILE = {
    "empty": (b"", "not a calibration"),
    "magic": (b"TIQ4" + GOOD[4:], "not a calibration"),
    "big-endian": (GOOD[:4] + struct.pack(">i", 2) + GOOD[8:], "out of range 1 to 4"),
    "gguf": (b"GGUF" + bytes(64), "not a calibration"),
    "no slots": (b"TIQ2" + struct.pack("<i", 0), "out of range"),
    "negative": (b"TIQ2" + struct.pack("<i", -1), "out of range"),
    "many slots": (b"TIQ2" + struct.pack("<i", 5) + 5 * slot2(4, 4, ONES), "out of range"),
    "huge count": (b"TIQ3" + struct.pack("<i", 2**31 - 1), "out of range"),
    "cut count": (b"TIQ2\x01\x00", "inside it"),
    "cut head": (GOOD[:14], "inside it"),
    "cut factors": (GOOD[:-1], "inside its factors"),
    "more": (GOOD + b"\0", "1 bytes after the last slot"),
    "zero head": (b"TIQ1" + struct.pack("<i", 0), "head_dim 0"),
    "wide head": (b"TIQ1" + struct.pack("<i", 513) + bytes(4 * 513), "head_dim 513"),
    "huge head": (b"TIQ1" + struct.pack("<i", 2**31 - 1), "out of range"),
    "width": (b"TIQ2" + struct.pack("<i", 1) + slot2(6, 4, ONES), "not made of heads of 4"),
    "negative width": (b"TIQ2" + struct.pack("<i", 1) + slot2(-4, 4, ONES), "not made of heads"),
    "huge width": (b"TIQ3" + struct.pack("<4i", 1, 0, 2**30, 512), "not made of heads"),
    "no width": (b"TIQ3" + struct.pack("<4i", 1, 0, 0, 4), "not made of heads"),
    "negative layer": (b"TIQ3" + struct.pack("<4i", 1, -1, 4, 4) + floats(ONES), "layer -1"),
    "twice": (b"TIQ2" + struct.pack("<i", 2) + 2 * slot2(4, 4, ONES), "two are for the same layers"),
    **{
        f"factor {x}": (b"TIQ1" + struct.pack("<i", 4) + floats(np.array([1, 1, x, 1], np.float32)), "not a number")
        for x in (0.0, -1.0, float("nan"), float("inf"), 1e-30, 1e30)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    data, part = HOSTILE[name]
    path = tmp_path / "x.tiq"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=part) as caught:
        read_slots(path)
    assert "x.tiq" in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([GOOD, to_bytes(ONE), to_bytes(LAYERS)]), st.integers(0, 10**6), st.binary(max_size=8))
def test_any_damage_is_a_format_error_or_another_calibration(good: bytes, at: int, new: bytes) -> None:
    at %= len(good)
    try:
        slots = from_bytes(good[:at] + new + good[at + len(new) :], "x")
    except FormatError:
        return
    assert all(np.isfinite(s.inverse).all() and s.head_dim <= 512 for s in slots)


def test_what_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        read_slots(tmp_path / "missing")
    with pytest.raises(FormatError, match="not a regular file"):
        read_slots(tmp_path)
    with pytest.raises(FormatError, match="cannot be read"):
        read_slots("a\0b")
    monkeypatch.setattr(calibration_file, "MAX_BYTES", 100)
    (tmp_path / "large").write_bytes(GOOD)
    with pytest.raises(FormatError, match="100 at most"):
        read_slots(tmp_path / "large")
    with pytest.raises(FormatError, match="cannot be written"):
        write_slots(tmp_path / "no" / "where", ONE)
    assert [p.name for p in tmp_path.iterdir()] == ["large"]


@pytest.mark.parametrize(
    ("slots", "part"),
    [
        ((), "0 slots"),
        (tuple(Slot(inverse(1, 4), 4 * (i + 1)) for i in range(5)), "5 slots"),
        ((Slot(inverse(1, 513)),), "512 channels"),
        ((Slot(inverse(2, 64), 128),), "for 1 kv heads"),
        ((Slot(inverse(1, 64), 128, 0),), "for 2 kv heads"),
        ((Slot(np.full((1, 4), 1e9, np.float32)),), "not a number"),
    ],
)
def test_what_no_format_holds(slots: tuple[Slot, ...], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        to_bytes(slots)


# -- slots and layers ----------------------------------------------------------------------------------------------
def test_a_layer_uses_its_own_slot_only(plain: Any) -> None:
    pool = make_pool(plain, model(head_dim=64, n_kv=2))
    width, head_dim = 2 * 64, 64
    mine, other = Slot(inverse(1, head_dim), width), Slot(inverse(1, head_dim, seed=9), 2 * width)
    with pytest.raises(ConfigError, match="fits no layer"):
        pool.equalize(Calibration((mine, other)))
    with pytest.raises(ConfigError, match="2 slots fit layer 0"):
        pool.equalize(Calibration((mine, Slot(inverse(1, head_dim)))))
    assert pool.calibration.identity() == "none" and all(e.k is None for e in pool.equalizers)
    seed = pool.seed
    pool.equalize(Calibration((mine,), (Slot(inverse(2, head_dim, seed=3), width, 1),)))
    for i, (layer, e) in enumerate(zip(pool.model.layers, pool.equalizers, strict=True)):
        assert (
            e.k is not None and e.q is not None and e.k.shape == (layer.n_kv, 64) and e.q.shape == (layer.n_heads, 64)
        )
        np.testing.assert_allclose(np.repeat(e.k, layer.n_heads // layer.n_kv, axis=0) * e.q, 1, rtol=2e-7)
        np.testing.assert_array_equal(e.q, np.broadcast_to(mine.inverse, e.q.shape))
        assert (e.v is not None) == (e.out is not None) == (i == 1)
    assert pool.identity.calibration.startswith("K ") and ", V " in pool.identity.calibration
    assert pool.seed != seed
    with pytest.raises(ConfigError, match="applied once"):
        pool.equalize(Calibration((mine,)))


def test_factors_of_one_are_no_factors(plain: Any) -> None:
    pool = make_pool(plain, model(head_dim=64))
    pool.equalize(Calibration((Slot(np.ones((1, 64), np.float32)),)))
    assert all(e.k is None and e.q is None for e in pool.equalizers)


def test_a_calibration_comes_before_the_first_token(plain: Any) -> None:
    pool = make_pool(plain, model(head_dim=64))
    sequence = Sequence(pool)
    step(sequence, [1, 2, 3])
    for _ in range(2):
        # Freed or not: prefixes of the cache would be found.
        with pytest.raises(ConfigError, match="from the first token on"):
            pool.equalize(Calibration((Slot(inverse(1, 64)),)))
        sequence.free()
    assert pool.identity == make_pool(plain, model(head_dim=64)).identity


def test_reading_undoes_the_factors_and_counts_it(plain: Any) -> None:
    pool = make_pool(plain, model(head_dim=64))
    pool.equalize(Calibration((Slot(np.full((1, 64), 0.5, np.float32)),)))
    step(Sequence(pool), [1, 2, 3])
    block = np.array([0], np.int32)
    k, v = pool.read(0, block)
    np.testing.assert_array_equal(k, plain.kv_read(pool.layer(0).k, block) / 2)
    np.testing.assert_array_equal(v, plain.kv_read(pool.layer(0).v, block))
    assert pool.counters["unscaled"] == pool.block_size
