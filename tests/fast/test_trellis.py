"""Trellis kernels: the paths of the reference, whatever the size of a group and its neighbours."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from polykv.cache.codecs import codec
from polykv.fast.cpu import trellis
from polykv.ref import rotation
from polykv.ref import trellis as reference
from polykv.types import Codec

NAMES = ("turbo3_tcq", "turbo2_tcq")
GROUPS = (16, 32, 48, 64, 72, 80, 96, 112, 128, 160, 192, 224, 288, 320, 448, 576)


def search(c: Codec, x: np.ndarray) -> np.ndarray:
    """Paths [n, g] of x [n, g]."""
    states: np.ndarray = trellis.viterbi(x, np.array(c.centroids, np.float32), c.bits)
    return states


def costs(c: Codec, x: np.ndarray, states: np.ndarray) -> np.ndarray:
    return np.square(x.astype(np.float64) - np.array(c.centroids)[states]).sum(axis=-1)


def check(c: Codec, x: np.ndarray, differ: int) -> None:
    """Paths of least cost, as judged in float64; at most `differ` of them others than those of the reference."""
    got, want = search(c, x), reference.viterbi(x, np.array(c.centroids, np.float32), c.bits)
    kept = got[:, :-1] >> c.bits
    assert np.array_equal(got[:, 1:] & 63, kept)
    assert (costs(c, x, got) <= costs(c, x, want) * (1 + 1e-6)).all()
    assert (got != want).any(axis=1).sum() <= differ


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("g", (1, 2, 3, *GROUPS))
def test_paths_are_those_of_the_reference(name: str, g: int) -> None:
    rng = np.random.default_rng(g)
    check(codec(name), (rng.standard_normal((11, g)) / np.sqrt(128)).astype(np.float32), 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["normal", "student_t3", "outlier", "constant", "zeros"])
def test_golden_vectors(golden: Path, name: str, kind: str) -> None:
    """All of ref's bytes; flat vectors have near ties, which may go the other way."""
    c, x = codec(name), np.load(golden / "formats/vectors.npz")[f"x_{kind}"]
    y, _ = rotation.normalised(c, x, 128, rotation.pairwise)
    check(c, y.reshape(-1, 128), 2 if kind == "constant" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_float64_audit(name: str) -> None:
    """No path is worse than that found with costs added in float64 by more than float32 can tell apart."""
    c, rng = codec(name), np.random.default_rng(5)
    for g in (64, 128, 576):
        x = (rng.standard_normal((40, g)) / np.sqrt(128)).astype(np.float32)
        audit = reference.viterbi(x.astype(np.float64), np.array(c.centroids, np.float32), c.bits)
        assert (costs(c, x, search(c, x)) <= costs(c, x, audit) * (1 + 1e-6)).all()


@pytest.mark.parametrize("name", NAMES)
def test_exact_ties_follow_the_rule(name: str) -> None:
    """Levels and values of few bits, whose costs are exact: very many paths are equally good."""
    c, rng = codec(name), np.random.default_rng(6)
    levels = rng.integers(-4, 5, len(c.centroids)) / 16
    c = dataclasses.replace(c, centroids=tuple(float(v) for v in levels))
    check(c, (rng.integers(-5, 6, (40, 64)) / 16).astype(np.float32), 0)
    check(c, np.zeros((3, 128), np.float32), 0)
    same = dataclasses.replace(c, centroids=(0.25,) * len(levels))
    check(same, np.full((2, 16), 0.25, np.float32), 0)


@pytest.mark.parametrize("name", NAMES)
def test_groups_do_not_see_each_other(name: str) -> None:
    c, x = codec(name), np.random.default_rng(7).standard_normal((9, 96)).astype(np.float32) / 11
    every = search(c, x)
    for n in (1, 2, 4, 5, 8):
        assert np.array_equal(search(c, x[:n]), every[:n])
    assert np.array_equal(search(c, x[::-1]), every[::-1])
    assert search(c, x[:0]).shape == (0, 96)


@pytest.mark.parametrize("name", NAMES)
def test_values_that_are_no_numbers_give_some_path(name: str) -> None:
    """What overflows before it comes here must not lead outside the tables."""
    c, x = codec(name), np.zeros((3, 64), np.float32)
    x[0], x[1, 5], x[2, 7] = np.nan, np.inf, 1e30
    assert (search(c, x) < len(c.centroids)).all()


def test_other_trellises_are_refused() -> None:
    with pytest.raises(ValueError, match="no kernel for 2 bits and a codebook of shape"):
        trellis.viterbi(np.zeros((1, 8), np.float32), np.zeros(512, np.float32), 2)
