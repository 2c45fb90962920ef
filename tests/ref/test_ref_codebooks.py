"""Making codebooks: the first one is stratified, rounds never raise the error, both searches agree."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from polykv.cache.codecs import codec
from polykv.fast.cpu.trellis import viterbi as fast_viterbi
from polykv.ref.codebooks import improved, relative_errors, stratified
from polykv.ref.trellis import viterbi


def vectors(n: int, g: int, seed: int = 0) -> np.ndarray:
    y = np.random.default_rng(seed).standard_normal((n, g)).astype(np.float32)
    return np.asarray(y * np.sqrt(g / 128) / np.linalg.norm(y, axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_every_class_begins_with_one_of_every_stratum(bits: int) -> None:
    book = stratified(bits, 64, np.random.default_rng(1))
    assert len(set(book.tolist())) == 64 << bits
    rank = np.argsort(np.argsort(book)).reshape(1 << bits, 64)
    assert np.array_equal(np.sort(rank // 64, axis=0), np.tile(np.arange(1 << bits)[:, None], 64))
    assert abs(float(book.mean())) < 1e-6 and float(book.std()) == pytest.approx(1 / np.sqrt(128), rel=0.02)


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_rounds_lower_the_error(bits: int) -> None:
    y, book = vectors(150, 32), stratified(bits, 16, np.random.default_rng(2))
    errors = []
    for _ in range(8):
        book, error = improved(book, y, bits, viterbi)
        errors.append(error)
    assert errors == sorted(errors, reverse=True) and errors[-1] < 0.9 * errors[0]


def test_states_without_visits_stay() -> None:
    book = np.full(128, 9.0, np.float32)
    book[::2] = 0
    after, error = improved(book, np.zeros((2, 8), np.float32), 1, viterbi)
    assert error == 0 and np.array_equal(after, book)


@pytest.mark.parametrize("name", ["turbo3_tcq", "turbo2_tcq"])
def test_both_searches_make_the_same_codebook(name: str) -> None:
    c, y = codec(name), vectors(64, 64, 3)
    start = stratified(c.bits, 64, np.random.default_rng(4))
    slow, fast = improved(start, y, c.bits, viterbi), improved(start, y, c.bits, fast_viterbi)
    np.testing.assert_allclose(slow[0], fast[0], atol=1e-6)
    assert slow[1] == pytest.approx(fast[1], rel=1e-6)


def test_relative_errors_are_those_of_the_format() -> None:
    """A round trip has the same error, to the rounding of its norm."""
    from polykv import ref

    c, x = codec("turbo3_tcq"), np.random.default_rng(5).standard_normal((40, 128)).astype(np.float32)
    y = ref.fwht(x / np.linalg.norm(x, axis=1, keepdims=True), *c.signs(128))
    ours = relative_errors(np.array(c.centroids, np.float32), y, c.bits, viterbi)
    back = ref.decode(c, ref.encode(c, x), 128)
    theirs = np.square(back - x).sum(axis=1) / np.square(x).sum(axis=1)
    np.testing.assert_allclose(ours, theirs, rtol=2e-2)
    assert ours.mean() == pytest.approx(theirs.mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "published", "gain", "sha"),
    [
        ("turbo3_tcq_n", "turbo3_tcq", 0.13, "24f537b6f86ce9f6033769c90ca854350d2c9e93726dd0ba1c0d880bb2f4ec4c"),
        ("turbo2_tcq_n", "turbo2_tcq", 0.08, "d3323fda0606a4f8f99ea5e54a9dd21b9e5fbb26e5ba96a1211b43e2525ad9f9"),
    ],
)
def test_trained_codebooks_are_those_that_were_made(name: str, published: str, gain: float, sha: str) -> None:
    """Their checksum; on fresh draws much less error than the published ones, and nearly at rest."""
    c, y = codec(name), vectors(4000, 128, 99)
    book, other = (np.array(codec(n).centroids, np.float32) for n in (name, published))
    assert hashlib.sha256(book.astype("<f4").tobytes()).hexdigest() == sha
    assert c.table_id != codec(published).table_id
    mine, theirs = (relative_errors(b, y, c.bits, fast_viterbi).mean() for b in (book, other))
    assert mine < (1 - gain) * theirs
    fit = vectors(8000, 128, 98)
    after, before = improved(book, fit, c.bits, fast_viterbi)
    assert improved(after, fit, c.bits, fast_viterbi)[1] > 0.997 * before
