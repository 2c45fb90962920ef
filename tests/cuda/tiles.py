"""Arenas of random codes for the attention kernels, and the values that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.layout import kind_of, pack, slices_of
from polykv.fast.cuda.levels import levels
from polykv.types import U8, Codec, Family

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Tiles:
    """data [n_kv, blocks, bytes of a block]; values [n_kv, cells, D] in the space of the codes."""

    data: U8
    values: F64


def tiles(
    codec: Codec, head_dim: int, n_kv: int, blocks: int, block_size: int, seed: int, *, v: bool, exact: bool = False
) -> Tiles:
    """Random codes with norms or scales about 1; head_dim a multiple of 32 times its number of slices.

    exact: values are those of the levels, not of the bytes that stand for them.
    """
    rng, kind = np.random.default_rng(seed), kind_of(codec)
    width, slices = slices_of(head_dim)
    shape = (n_kv * blocks * block_size // 32, 32, width * slices)
    codes, scales, values = _random(codec, head_dim, rng, shape, slices, exact)
    data = pack(kind, codes, scales, width, values=v)
    return Tiles(data.reshape(n_kv, blocks, -1), values.reshape(n_kv, blocks * block_size, -1))


def _random(
    codec: Codec, head_dim: int, rng: np.random.Generator, shape: tuple[int, ...], slices: int, exact: bool
) -> Any:
    n, _, dims = shape
    if codec.family == Family.F16:
        x = rng.standard_normal(shape).astype(np.float16)
        return x.view(np.uint16), None, x.astype(np.float64)
    if codec.family == Family.LLOYD_MAX:
        words, unit = levels(codec, head_dim)
        count = len(codec.centroids)
        table = words.view(np.int8)[:count] * np.sign(codec.centroids) ** (count == 16) * unit
        if exact:
            table = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
        codes = rng.integers(0, count, shape).astype(np.uint8)
        norms = (rng.uniform(0.5, 1.5, (n, 32, slices)) * np.sqrt(codec.group(head_dim))).astype(np.float16)
        return codes, norms, table[codes] * np.repeat(norms.astype(np.float64), dims // slices, 2)
    if codec.family == Family.TRELLIS:
        return _paths(codec, head_dim, rng, shape, slices, exact)
    scales = rng.uniform(0.5, 1.5, (n, 32, dims // 32))
    if codec.family == Family.Q8_0:
        codes, d = rng.integers(-127, 128, shape), (scales / 74).astype(np.float16)
    else:
        # Scales of q4_0 have either sign.
        codes, d = rng.integers(-8, 8, shape), (scales / 5 * rng.choice([-1, 1], scales.shape)).astype(np.float16)
    stored = codes.astype(np.int8).view(np.uint8) if codec.family == Family.Q8_0 else (codes + 8).astype(np.uint8)
    return stored, d, codes * np.repeat(d.astype(np.float64), 32, 2)


def _paths(
    codec: Codec, head_dim: int, rng: np.random.Generator, shape: tuple[int, ...], slices: int, exact: bool
) -> Any:
    """Random bits before each slice and random symbols, as states."""
    n, _, dims = shape
    symbols = rng.integers(0, 1 << codec.bits, (n, 32, slices, dims // slices))
    states, state = np.zeros(symbols.shape, np.uint16), rng.integers(0, len(codec.centroids), (n, 32, slices))
    for d in range(dims // slices):
        states[..., d] = state = state >> codec.bits | symbols[..., d] << codec.prefix_bits
    top = np.abs(codec.centroids).max()
    unit = levels(codec, head_dim)[1]
    table = np.rint(np.array(codec.centroids) / top * 127) * unit
    if exact:
        table = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    norms = (rng.uniform(0.5, 1.5, (n, 32, slices)) * np.sqrt(codec.group(head_dim))).astype(np.float16)
    values = table[states] * norms.astype(np.float64)[..., None]
    return states.reshape(shape), norms, values.reshape(shape)
