"""Trellis-coded types: the best path, by brute force on small ones and by golden costs; streams; random access."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polykv import ref
from polykv.cache.codecs import codec
from polykv.cache.codecs.trellis import with_codebook
from polykv.errors import ConfigError, FormatError
from polykv.ref import trellis
from polykv.ref.codec import without_reserved
from polykv.ref.rotation import normalised, pairwise
from polykv.types import Codec, LayerKV, Segment, Segments, Slots

NAMES = ("turbo3_tcq", "turbo2_tcq")
seeds = st.integers(0, 2**32 - 1)


def paths(n_states: int, bits: int, steps: int) -> np.ndarray:
    """Every path of a trellis, int [paths, steps]."""
    low = n_states >> bits
    found = []
    for start, *symbols in product(range(low), *[range(1 << bits)] * steps):
        # `start` are the bits of the state before that survive the first step.
        kept, path = start, []
        for u in symbols:
            path.append(u * low + kept)
            kept = path[-1] >> bits
        found.append(path)
    return np.array(found)


@given(st.sampled_from([(8, 1, 7), (16, 1, 6), (16, 2, 4), (32, 3, 3), (4, 1, 1)]), seeds)
@settings(deadline=None, max_examples=60)
def test_viterbi_equals_brute_force(shape: tuple[int, int, int], seed: int) -> None:
    n_states, bits, steps = shape
    rng = np.random.default_rng(seed)
    book, x = rng.standard_normal(n_states).astype(np.float32), rng.standard_normal((5, steps))
    every = paths(*shape)
    best = np.square(x[:, None, :] - book[every].astype(np.float64)).sum(-1).min(axis=1)
    states = trellis.viterbi(x, book, bits)
    np.testing.assert_allclose(np.square(x - book[states]).sum(-1), best, rtol=1e-12)
    assert all(p in every.tolist() for p in states.tolist())


@given(st.sampled_from([(3, 6), (2, 6), (1, 4)]), st.integers(1, 200), seeds)
@settings(deadline=None, max_examples=60)
def test_streams_are_random_access(shape: tuple[int, int], steps: int, seed: int) -> None:
    """Any state comes back from the two or three bytes around its window alone."""
    bits, prefix = shape
    rng = np.random.default_rng(seed)
    kept, states = rng.integers(1 << prefix, size=3), np.empty((3, steps), np.int64)
    for t in range(steps):
        states[:, t] = (rng.integers(1 << bits, size=3) << prefix) + kept
        kept = states[:, t] >> bits
    stream = trellis.pack(states, bits, prefix)
    assert stream.shape[-1] == -(-(prefix + bits * steps) // 8)
    assert np.array_equal(trellis.window(stream, np.arange(steps), bits, prefix), states)
    t = int(rng.integers(steps))
    noise = rng.integers(0, 256, stream.shape, dtype=np.uint8)
    first, last = bits * t >> 3, (bits * t + bits + prefix - 1) >> 3
    noise[:, first : last + 1] = stream[:, first : last + 1]
    assert np.array_equal(trellis.window(noise, [t], bits, prefix)[:, 0], states[:, t])


def cost(c: Codec, x: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Sum of squared errors of the paths, per group of 128, float64."""
    y, _ = normalised(c, x, 128, pairwise)
    stream = without_reserved(c, data).reshape(*y.shape[:-1], -1)[..., 2:]
    values = np.array(c.centroids)[trellis.window(stream, np.arange(128), c.bits, c.prefix_bits)]
    return np.square(y - values).sum(-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier", "zeros", "constant"])
def test_paths_cost_no_more_than_the_golden_ones(golden: Path, name: str, kind: str) -> None:
    x, z = np.load(golden / "formats/vectors.npz")[f"x_{kind}"], np.load(golden / "formats/tiers.npz")
    ours, theirs = cost(codec(name), x, ref.encode(codec(name), x)), z[f"{name}_cost_{kind}"]
    assert (ours <= theirs * (1 + 1e-5) + 1e-9).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier"])
def test_float64_audit(golden: Path, name: str, kind: str) -> None:
    """Costs added in float64: the golden float64 paths, and never a larger cost than with float32."""
    c, x = codec(name), np.load(golden / "formats/vectors.npz")[f"x_{kind}"]
    z = np.load(golden / "formats/tiers.npz")
    data, want = trellis.encode(c, x, 128, np.float64), without_reserved(c, z[f"{name}_float64_{kind}"])
    assert np.array_equal(data, want)
    audit = cost(c, x, z[f"{name}_float64_{kind}"])
    np.testing.assert_allclose(audit, z[f"{name}_float64_cost_{kind}"], rtol=1e-5)
    assert (audit <= cost(c, x, ref.encode(c, x)) + 1e-12).all()


@pytest.mark.parametrize("name", NAMES)
def test_alpha_is_applied_once_when_encoding(golden: Path, name: str) -> None:
    x, z = np.load(golden / "formats/vectors.npz")["x_normal"], np.load(golden / "formats/tiers.npz")
    plain, c = ref.encode(codec(name), x), dataclasses.replace(codec(name), alpha=1.04)
    data = ref.encode(c, x)
    got, want = (a.reshape(-1, c.block_bytes)[:, :-1] for a in (data, z[f"{name}_alpha104"]))
    assert np.array_equal(got, want)
    ratio = np.linalg.norm(ref.decode(c, data, 256)) / np.linalg.norm(ref.decode(codec(name), plain, 256))
    assert ratio == pytest.approx(1.04, abs=1e-4)
    assert np.array_equal(ref.decode(c, data, 256), ref.decode(codec(name), data, 256))


def test_equal_final_states_are_chosen_by_reversed_bits() -> None:
    assert trellis.final_order(64)[:4].tolist() == [0, 16, 8, 24]
    assert trellis.final_order(512)[32:35].tolist() == [256, 272, 264]
    assert sorted(trellis.final_order(256).tolist()) == list(range(256))


@pytest.mark.parametrize("name", NAMES)
def test_a_codebook_of_a_file_reaches_encoding_decoding_and_attention(name: str, tmp_path: Path) -> None:
    c, rng = codec(name), np.random.default_rng(0)
    book = np.sort(rng.standard_normal(len(c.centroids)).astype("<f4") / 12)
    book.tofile(tmp_path / "book")
    own = with_codebook(c, tmp_path / "book")
    assert own.table_id != c.table_id and own != c
    x = rng.standard_normal((64, 1, 128)).astype(np.float32)
    data = ref.encode(own, x)
    assert not np.array_equal(data, ref.encode(c, x))
    y = ref.decode(own, data, 128)
    assert np.square(y - x).sum() < 0.5 * np.square(ref.decode(c, data, 128) - x).sum()
    kv = LayerKV(*(ref.kv_alloc(own, 1, 1, 128, 64) for _ in range(2)))
    for arena in (kv.k, kv.v):
        ref.kv_append(arena, x, Slots(np.zeros(64, np.int32), np.arange(64, dtype=np.int32)))
    np.testing.assert_allclose(ref.kv_read(kv.k, np.array([0], np.int32))[0], y, atol=1e-5)
    rows = np.zeros(1, np.int32)
    segments = Segments.of([Segment(rows, 0, 64, rows)], np.array([63], np.int32))
    out, _ = ref.attend(x[:1], segments, kv, scale=0.1)
    p = np.exp(0.1 * (y[:, 0].astype(np.float64) @ x[0, 0]))
    np.testing.assert_allclose(out[0, 0], (p[:, None] * y[:, 0]).sum(0) / p.sum(), atol=1e-5)


def test_bad_codebooks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(bytes(4 * 256))
    with pytest.raises(FormatError, match="has 1024 bytes; turbo3_tcq needs 512 float32"):
        with_codebook(codec("turbo3_tcq"), path)
    with pytest.raises(ConfigError, match="turbo3 has no codebook"):
        with_codebook(codec("turbo3"), path)
    for bad in (np.nan, 2.0):
        np.full(256, bad, "<f4").tofile(path)
        with pytest.raises(FormatError, match=r"outside -1\.\.1"):
            with_codebook(codec("turbo2_tcq"), path)
