"""Products whose weights come through shared memory: how matrices are cut, and the kernel in the emulator."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pretend_cupy
import pytest
from agreement import worst_error
from case_base import normal, seeded, weight
from on_device import DeviceOps

from polykv.fast.cuda import linear_int8
from polykv.fast.cuda.device import problem
from polykv.fast.cuda.linear_staged import BAND, BYTES, ROWS, Cut, cut
from polykv.ops import Agreement, load
from polykv.types import Activations, MatrixType, WeightType

GPU = problem()
# Multiprocessors, shared memory of each, clusters: an H200, an A100, a small card, and the emulator.
MACHINES = ((132, 228 << 10, True), (108, 164 << 10, False), (84, 100 << 10, False), (1, 228 << 10, True))
SIZES = ((28672, 4096), (6144, 4096), (4096, 14336), (128256, 4096), (576, 1536), (68, 768), (32, 256))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed: `g++ --version` fails")
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels")):
        yield


@pytest.mark.parametrize("where", MACHINES, ids=str)
@pytest.mark.parametrize("kind", BYTES, ids=lambda k: k.name)
def test_cuts_fit(kind: MatrixType, where: tuple[int, int, bool]) -> None:
    for rows, cols in SIZES:
        made = cut(kind, rows, cols, *where)
        assert made is not None and made.height <= rows and made.threads <= 512
        assert made.shared(kind, ROWS) + 1024 <= where[1] and made.pitch(kind) // 16 % 2
        assert made.split == 1 or where[2]


def test_other_matrices_are_not_cut() -> None:
    """Rows that are no whole blocks, results that are no whole 16 bytes, types that few models have."""
    for kind, rows, cols in ((WeightType.Q4_0, 64, 640), (WeightType.Q8_0, 66, 512), (WeightType.Q5_1, 64, 512)):
        assert cut(kind, rows, cols, *MACHINES[0]) is None
    assert cut(WeightType.Q4_0, BAND - 4, 512, *MACHINES[0]) is None


CUTS = (Cut(1, 4, 1, 2, 3, 1), Cut(2, 2, 2, 2, 2, 1))


@pytest.mark.parametrize("made", CUTS, ids=str)
@pytest.mark.parametrize("kind", BYTES, ids=lambda k: k.name)
def test_products_are_those_of_the_reference(
    machine: None, monkeypatch: pytest.MonkeyPatch, kind: WeightType, made: Cut
) -> None:
    """The last block has rows of the one before; the last time has fewer columns than the others."""
    monkeypatch.setattr(linear_int8, "cut_of", lambda w: made)
    rng = seeded(f"staged-{kind.name}")
    w, x = weight(rng, kind, 76, 768), normal(rng, 27, 768) * np.exp(rng.normal(size=(27, 1))).astype(np.float32)
    linear = DeviceOps().linear
    whole = linear(x, w, activations=Activations.Q8)
    want = load("ref").linear(x, w, activations=Activations.Q8)
    assert worst_error(Agreement.RATIO, (whole,), (want,)) < 1e-6
    for first, last in ((0, 2), (3, 12), (7, 27)):
        part = linear(x[first:last], w, activations=Activations.Q8)
        assert np.array_equal(part.view(np.uint32), whole[first:last].view(np.uint32))


@pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}")
@pytest.mark.parametrize("size", [(300, 1024), (4100, 768), (20000, 512), (64, 256)], ids=str)
@pytest.mark.parametrize("kind", BYTES, ids=lambda k: k.name)
def test_products_on_a_device(kind: WeightType, size: tuple[int, int]) -> None:
    """Narrow matrices, whose columns two blocks share, and one that is wide."""
    rng, ops = seeded(f"staged-{kind.name}"), DeviceOps()
    w, x = weight(rng, kind, *size), normal(rng, 32, size[1])
    whole, want = (o.linear(x, w, activations=Activations.Q8) for o in (ops, load("ref")))
    assert worst_error(Agreement.RATIO, (whole,), (want,)) < 1e-6
    for first, last in ((0, 2), (3, 12), (7, 27)):
        part = ops.linear(x[first:last], w, activations=Activations.Q8)
        assert np.array_equal(part.view(np.uint32), whole[first:last].view(np.uint32))
