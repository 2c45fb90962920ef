"""The trellis-coded codecs: k bits per value choose a path through a trellis, whose states are values.

A state is a number of L bits; with the symbol u of k bits it becomes  s' = (s >> k) + (u << (L - k)),  and the value at
that step is codebook[s']. So a step chooses among 2^k values that depend on the last L - k bits of what came before:
several times finer a table than k bits could address, at the cost of a search. The start is free.

Stream of a group: the L - k bits of the first state that are older than its symbol, then the symbols, lowest bits
first. The state of step t is the L bits from bit k t on: decoding is random access, no path has to be followed.

The encoder finds the path of least squared error by dynamic programming (Viterbi). States with equal low L - k bits
were reached from the same 2^k predecessors, which differ in their low k bits p; on ties the lowest p wins. Of equally
good final states one is chosen by `final_order`. `cpu` finds the same paths (of zeros, whose norm is 0, sometimes
others), `cuda` paths that cost no more but for the rounding of its costs (docs/CUDA.md). Source: docs/FORMATS.md;
Marcellin and Fischer, "Trellis coded quantization" (1990); layout, codebooks and ties are those of the spiritbuun fork
(data/README.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.ref.blocks import flat, split
from polykv.ref.fwht import Floats
from polykv.ref.rotation import normalised, pairwise, scaled, stored_norm
from polykv.types import F32, U8, Codec

States = npt.NDArray[np.int64]
# Vectors that are searched at a time; keeps the costs of all their states in cache.
SLAB = 128


def encode(codec: Codec, x: F32, group: int, costs: Any = np.float32) -> U8:
    """x [..., group n] -> packed bytes [..., group_bytes n]. costs: float type in which path costs are added; float64
    is the audit of the format's float32."""
    y, n = normalised(codec, x, group, pairwise)
    book = np.array(codec.centroids, np.float32)
    vectors = y.reshape(-1, group).astype(costs)
    states = np.zeros(vectors.shape, np.int64)
    for i in range(0, len(vectors), SLAB):
        states[i : i + SLAB] = viterbi(vectors[i : i + SLAB], book, codec.bits)
    paths = states.reshape(y.shape)
    norm = stored_norm(codec, n, book[paths], pairwise)
    stream = pack(paths, codec.bits, codec.prefix_bits)
    return flat(np.concatenate([norm.view(np.uint8), stream], axis=-1))


def decode(codec: Codec, data: U8, group: int) -> F32:
    """Rotated values [..., group n] of packed bytes in groups of `group`."""
    parts = split(data, codec.group_bytes(group))
    norm = np.ascontiguousarray(parts[..., :2]).view(np.float16)
    states = window(parts[..., 2:], np.arange(group), codec.bits, codec.prefix_bits)
    return flat(scaled(codec, np.array(codec.centroids, np.float32)[states], norm))


def viterbi(x: Floats, codebook: F32, bits: int) -> States:
    """The states [n, T] of the path with the least sum of (x - codebook[state])^2, for each of x [n, T].

    Costs are added in the type of x. The codebook has 2^L entries, L > bits.
    """
    n, steps = x.shape
    symbols, low = 1 << bits, len(codebook) >> bits
    values, each = codebook.astype(x.dtype), np.arange(n)
    cost = np.zeros((len(codebook), n), x.dtype)
    # What the cheapest way to what a state keeps of its predecessor costs: by step, kept bits, vector.
    best = np.empty((steps, low, n), x.dtype)
    for t in range(steps):
        # Old states as (what a new state keeps of them, what falls out); new states as (symbol, what they kept).
        best[t] = _least(cost.reshape(low, symbols, n))
        np.subtract(x[:, t], values[:, None], out=cost)
        np.multiply(cost, cost, out=cost)
        cost.reshape(symbols, low, n)[...] += best[t]
    order = final_order(len(codebook))
    s = order[cost[order].argmin(axis=0)]
    states = np.empty((n, steps), np.int64)
    for t in range(steps - 1, 0, -1):
        states[:, t] = s
        # The predecessors, and their costs as they were added up on the way: cheaper than keeping every choice.
        old = (s & (low - 1))[:, None] << bits | np.arange(symbols)
        error = x[:, t - 1, None] - values[old]
        s = old[each, (error * error + best[t - 1, old & (low - 1), each[:, None]]).argmin(axis=1)]
    states[:, 0] = s
    return states


def _least(cost: Floats) -> Floats:
    """The minimum over axis 1, whose length is a power of two: by halves, which is faster than NumPy's `min` there."""
    while cost.shape[1] > 1:
        half = cost.shape[1] // 2
        cost = np.minimum(cost[:, :half], cost[:, half:])
    return cost[:, 0]


def final_order(n_states: int) -> States:
    """States by preference among equally good last ones: by bit-reversed s >> 5, then by bit-reversed s & 31.

    That is what a tree reduction in groups of 32 keeps, and zero vectors are such a tie.
    """
    s = np.arange(n_states)
    lanes = min(32, n_states)
    key = _reversed(s // lanes, n_states // lanes) * lanes + _reversed(s % lanes, lanes)
    return np.argsort(key)


def pack(states: States, bits: int, prefix: int) -> U8:
    """Streams uint8 [..., ceil((prefix + bits T) / 8)] of paths [..., T]."""
    first = states[..., :1] >> np.arange(prefix) & 1
    symbols = (states[..., None] >> prefix) >> np.arange(bits) & 1
    stream = np.concatenate([first, symbols.reshape(*states.shape[:-1], bits * states.shape[-1])], axis=-1)
    return np.packbits(stream.astype(np.uint8), axis=-1, bitorder="little")


def window(stream: U8, t: npt.ArrayLike, bits: int, prefix: int) -> States:
    """States [..., len(t)] of the steps t alone, from the bits that they need."""
    at = bits * np.asarray(t, np.int64)
    padded = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, 2)]).astype(np.int64)
    byte = at >> 3
    bits24 = padded[..., byte] | padded[..., byte + 1] << 8 | padded[..., byte + 2] << 16
    return np.asarray(bits24 >> (at & 7) & ((1 << prefix + bits) - 1), np.int64)


def _reversed(values: States, n: int) -> States:
    """Numbers below n, a power of two, with their bits in reverse."""
    out = np.zeros_like(values)
    for b in range(n.bit_length() - 1):
        out = out << 1 | values >> b & 1
    return out
