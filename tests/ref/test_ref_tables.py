"""The maker of Lloyd-Max tables: its own conditions, other ways to compute them, and the tables that are deployed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from polykv.cache.codecs import codec
from polykv.ref.tables import distortion, equal_probability, lloyd_max

DENSITIES = {
    "normal": (stats.norm, 12),
    "student": (stats.t(5), 40),
    "logistic": (stats.logistic, 40),
    "flat": (stats.uniform(-1, 2), 1),
}


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("levels", [2, 4, 8, 16])
def test_levels_are_the_means_of_their_cells(name: str, levels: int) -> None:
    density, reach = DENSITIES[name]
    c, t = lloyd_max(levels, density.pdf, reach)
    assert (np.diff(c) > 0).all() and np.allclose(c, -c[::-1], atol=1e-7)
    edges = [-reach, *t, reach]
    for a, b, level in zip(edges[:-1], edges[1:], c, strict=True):
        mass = integrate.quad(density.pdf, a, b, epsabs=1e-13, limit=200)[0]
        mean = integrate.quad(lambda x: x * density.pdf(x), a, b, epsabs=1e-13, limit=200)[0] / mass
        assert level == pytest.approx(mean, abs=1e-6)


def test_known_distortions_of_the_normal_density() -> None:
    """Max, 1960, table I; and for many levels Panter and Dite's pi sqrt(3) / (2 levels^2)."""
    for levels, want in ((2, 0.3634), (4, 0.1175), (8, 0.03454), (16, 0.009497)):
        assert distortion(lloyd_max(levels)[0]) == pytest.approx(want, rel=5e-4)
    assert distortion(lloyd_max(256)[0]) == pytest.approx(np.pi * np.sqrt(3) / 2 / 256**2, rel=0.02)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("turbo2", 5e-5), ("turbo3", 1.2e-3), ("turbo4", 5e-5), ("turbo8", 1e-6)]
)
def test_deployed_tables(name: str, tolerance: float) -> None:
    """In units of the tables, N(0, 1/128). turbo3's is close to the best one, not equal; it costs next to nothing."""
    c = codec(name)
    for made, deployed in zip(lloyd_max(1 << c.bits), (c.centroids, c.thresholds), strict=True):
        assert np.abs(made / np.sqrt(128) - deployed).max() < tolerance
    best = distortion(lloyd_max(1 << c.bits)[0])
    assert best <= distortion(np.array(c.centroids) * np.sqrt(128)) < best * 1.001


def test_the_other_table_of_four_bits_is_what_its_name_says() -> None:
    c = codec("turbo4_ep")
    for made, deployed in zip(equal_probability(16), (c.centroids, c.thresholds), strict=True):
        assert np.abs(made / np.sqrt(128) - deployed).max() < 1e-6
    assert distortion(np.array(c.centroids) * np.sqrt(128)) > 2 * distortion(lloyd_max(16)[0])


@pytest.mark.parametrize("name", ["turbo2", "turbo3", "turbo4", "turbo4_ep", "turbo8"])
def test_thresholds_are_midpoints(name: str) -> None:
    c = codec(name)
    middle = (np.array(c.centroids[1:]) + np.array(c.centroids[:-1])) / 2
    assert np.abs(middle - c.thresholds).max() <= 1.1e-6
