"""Greedy tokens from half of the output matrix, exactly.

A greedy token needs the largest logit only, and what costs time is reading the matrix W. A code of Q8_0 is

    q = 16 h + l - 128,    h, l = 0 .. 15

With the upper nibbles h alone, and 8 for every l, there is an estimate W' of W, and what it leaves out is R = W - W',
d (l - 8) in every element. For any positive factors S of the columns, by Cauchy and Schwarz,

    |(W x)_r - (W' x)_r| = |R_r x| = |(S R_r) (x / S)| <= |S R_r| |x / S|

|S R_r| is known in advance. So the exact logits of a few rows that look good give a limit, and only rows whose estimate
plus bound reaches it are computed exactly. No other row can have the largest logit: the token is always the same.
The factors decide how few rows that leaves. If S^2 is the usual size of x in a column, found by running some text,
columns that are always large cost little. A bad choice costs time, never correctness.

Rounding: with n blocks of 32 columns, both sums are chains of n fused products, off by at most (n + 2) 2^-24 times the
sum of sizes of their terms, which |S W_r| |x / S| bounds, as it does for W' with |S R_r| added. Products of scales are
rounded in both in the same way. Together that is less than (n + 2) 2^-22 |S W_r| |x / S|: `bounds` adds it.
Factors lie in [2^-10, 1], so the bound of a row that is not zero is far above denormals, whatever x.

This backend reads everything: `greedy` takes all logits. `split` and `candidates` say what a fast one does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from polykv.ref.composites import head
from polykv.ref.linear import round_activations
from polykv.ref.merge import F64
from polykv.types import F32, U8, Activations, Greedy, HeadWeights, QuantTensor

MIDDLE = 8


def greedy(h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
    """The lowest id with the largest logit of every row h [R, E]. room: unused."""
    y = head(h, w, activations=activations)
    ids = y.argmax(axis=1).astype(np.int32)
    finite = np.isfinite(y).all(axis=1)
    top = np.where(finite, y[np.arange(len(y)), ids], np.float32(np.nan))
    return Greedy(ids, top, np.full(len(y), w.out.rows, np.int32))


def prepare_head(w: HeadWeights, inverse: F32, *, converted: Callable[[int], None]) -> HeadWeights:
    """The head as it is: nothing is prepared, nothing converted."""
    return w


def codes(w: QuantTensor) -> tuple[npt.NDArray[np.uint8], F64]:
    """q + 128 of a Q8_0 matrix [V, n, 32], and scales [V, n, 1]."""
    blocks = np.ascontiguousarray(w.data).reshape(w.rows, -1, 34)
    return blocks[..., 2:] ^ np.uint8(128), blocks[..., :2].copy().view("<f2").astype(np.float64)


def split(w: QuantTensor) -> U8:
    """The bytes of `Resident.Q8_0_PLANES`, in the shape of the matrix; the number of rows is a multiple of 8.

    For every 8 rows and block: 8 scales, 128 bytes of h; behind all of them, for the same, 128 bytes of l. Byte
    32 i + 4 r + j has column 4 i + j of row r in its lower half, column 4 i + j + 16 in its upper one.
    """
    q, _ = codes(w)
    tiles = q.reshape(w.rows // 8, 8, -1, 8, 4).transpose(0, 2, 3, 1, 4)
    upper, lower = (n[:, :, :4] | n[:, :, 4:] << 4 for n in (tiles >> 4, tiles & 15))
    scales = w.data.reshape(w.rows // 8, 8, -1, 34)[..., :2].transpose(0, 2, 1, 3)
    shape = (*scales.shape[:2], -1)
    first = np.concatenate([scales.reshape(shape), upper.reshape(shape)], axis=2)
    return np.concatenate([first.ravel(), lower.ravel()]).reshape(w.data.shape)


def estimate(w: QuantTensor) -> F64:
    """W' [V, E]."""
    q, d = codes(w)
    y: F64 = (d * ((q & 0xF0).astype(np.float64) + MIDDLE - 128)).reshape(w.rows, w.cols)
    return y


def bounds(w: QuantTensor, inverse: F32) -> F64:
    """|S R_r| with what rounding may add [V]; inverse [E] = 1 / S."""
    q, d = codes(w)
    left_out = (d * ((q & 15).astype(np.float64) - MIDDLE)).reshape(w.rows, w.cols) / inverse
    whole = (d * (q.astype(np.float64) - 128)).reshape(w.rows, w.cols) / inverse
    rounding = (w.cols // 32 + 2) * 2.0**-22
    y: F64 = np.linalg.norm(left_out, axis=1) + rounding * np.linalg.norm(whole, axis=1)
    return y


def candidates(x: F32, w: QuantTensor, inverse: F32, looked_at: int = 1) -> npt.NDArray[np.bool_]:
    """Which rows of W [V, E] may have the largest logit for each row of normed x [R, E]; all others cannot.

    looked_at: how many rows that look best are computed first.
    """
    x = round_activations(x)
    q, d = codes(w)
    exact = x @ (d * (q.astype(np.float64) - 128)).reshape(w.rows, w.cols).T
    looks = x @ estimate(w).T
    best = np.argsort(-looks, axis=1)[:, :looked_at]
    limit = np.take_along_axis(exact, best, axis=1).max(axis=1, keepdims=True)
    reach = np.linalg.norm(x.astype(np.float64) * inverse, axis=1, keepdims=True)
    found: npt.NDArray[np.bool_] = looks + reach * bounds(w, inverse) >= limit
    return found
