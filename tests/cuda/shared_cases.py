"""Attention of rows that share segments against float64 arithmetic: cases for the device and the emulator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from case_attention import Plan, Seq
from prefill_cases import Shape, arena, expected

from polykv.cache.codecs import codec
from polykv.fast.cuda import attend_config, attend_run
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.attend_plan import Which, sets_of
from polykv.fast.cuda.device import device
from polykv.fast.cuda.layout import kind_of
from polykv.fast.cuda.levels import same_table
from polykv.fast.cuda.shared_config import shared_config
from polykv.fast.cuda.shared_plan import WARPGROUPS, Shared
from polykv.types import F32, Segment, Segments

# Queries, levels, lifted values and weights are halves: values of levels are rounded twice.
ERROR = 1.5e-3
IDS = np.random.default_rng(7).permutation(24).astype(np.int32)


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


# Two documents, one read by all and one by some; rows of their own cells, none, and of the middle of a document.
TWO = Segments.of(
    [
        Segment(IDS[:5], 0, 320, np.arange(21, dtype=np.int32)),
        Segment(IDS[5:8], 320, 190, rows(0, 3, 5, 20)),
        Segment(IDS[8:9], 320, 7, rows(1)),
        Segment(IDS[9:11], 510, 65, rows(3)),
        Segment(IDS[11:12], 320, 0, rows(4)),
    ],
    np.array([330, 326, 300, 574, 64, 400, *[319] * 14, 509], np.int32),
)
STEPS = {
    "two": (TWO, 24),
    "agents": Plan(tuple(Seq(257 + i, 1) for i in range(9)), shared=256).build("agents")[::2],
    "verify": Plan((Seq(200, 16), Seq(133, 5)), shared=64).build("verify")[::2],
}


@dataclass(frozen=True)
class Run:
    """Results of a step, and what they should be."""

    out: F32
    lse: F32
    want: np.ndarray
    want_lse: np.ndarray
    items: int

    def error(self, chosen: slice | np.ndarray = slice(None)) -> float:
        """Of outputs, in units of their RMS; lse of what sees nothing is -inf."""
        out, want = self.out[chosen], self.want[chosen]
        nothing = np.isneginf(self.want_lse[chosen])
        lse = self.lse[chosen]
        assert np.isneginf(lse[nothing]).all() and not out[nothing].any()
        assert np.abs(lse[~nothing] - self.want_lse[chosen][~nothing]).max() < 2e-2
        return float(np.sqrt(np.mean((out - want) ** 2) / np.mean(want**2)))


def attention(
    pair: str,
    step: str,
    shape: Shape,
    *,
    least: int = 0,
    wgmma: bool | None = None,
    limit: int = 0,
    bad: float = 0.0,
) -> Run:
    """Run the kernels. least: queries of segments that are lifted; wgmma: products of warpgroups, if not as the device
    has them; limit: bytes of shared memory of a multiprocessor; bad: replaces a value of every seventh row."""
    segments, blocks = STEPS[step]
    k_codec, v_codec = map(codec, pair.split("/"))
    k, k_values = arena(k_codec, shape, blocks, 64, 2, False)
    v, v_values = arena(v_codec, shape, blocks, 64, 3, True)
    q = np.random.default_rng(4).standard_normal((len(segments.positions), shape.heads, shape.dim))
    q = (q * shape.peak).astype(np.float32)
    want = expected(q, k_values, v_values, segments, 64, shape)
    if bad:
        q[1::7, 1, 5] = bad
    shared = lifted(pair, segments, shape, least, wgmma, limit)
    kinds, group = (kind_of(k_codec), kind_of(v_codec)), shape.heads // shape.n_kv
    one_table = same_table(k_codec, v_codec)
    capped, sets = shape.softcap > 0, sets_of(segments, group, shared.which)
    made = attend_config.config(*kinds, shape.dim, sets, softcap=capped, limit=device().shared, one_table=one_table)
    found = attend_run.step_of(segments, made, shape.heads, shape.n_kv, shape.window, shared)
    assert found.shared is not None
    # Whatever lies in the memory of results must not matter.
    for room in (found.sums, found.weights):
        room[...] = np.nan
    empty = [asarray(np.full(n, np.nan, np.float32)) for n in (q.shape, q.shape[:2])]
    how = {"scale": shape.dim**-0.5, "window": shape.window, "softcap": shape.softcap}
    out, lse = attend_run.run(found, made, asarray(q), k, v, **how, out=tuple(empty))  # type: ignore[arg-type]
    return Run(asnumpy(out), asnumpy(lse), *want, len(found.shared.items))


def lifted(pair: str, segments: Segments, shape: Shape, least: int, wgmma: bool | None, limit: int) -> Shared:
    """Segments with so many queries."""
    k, v = map(codec, pair.split("/"))
    made = shared_config(
        *(kind_of(k), kind_of(v), shape.dim),
        softcap=shape.softcap > 0,
        limit=limit or device().shared,
        one_table=same_table(k, v),
        wgmma=device().capability == WARPGROUPS if wgmma is None else wgmma,
    )
    assert made is not None
    which: Which = np.diff(segments.row_ptr) * (shape.heads // shape.n_kv) >= least
    return Shared(made, which)


def check(run: Run, shape: Shape) -> None:
    """Everything is lifted: halves all the way."""
    assert run.items > 0
    assert run.error() < ERROR * max(1, shape.peak / 2)
