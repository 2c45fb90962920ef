"""Arenas of random codes for the attention kernels, and the values that they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polykv.fast.cuda.layout import kind_of, pack, slices_of
from polykv.fast.cuda.levels import IQ4_NL, levels
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
    if codec.block == 1:
        x = rng.standard_normal(shape).astype(np.float32)
        if codec.family == Family.F16:
            return x.astype(np.float16).view(np.uint16), None, x.astype(np.float16).astype(np.float64)
        upper = (x.view(np.uint32) >> 16).astype(np.uint16)
        return upper, None, (upper.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if codec.family == Family.LLOYD_MAX:
        table = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
        codes = rng.integers(0, len(table), shape).astype(np.uint8)
        norms = (rng.uniform(0.5, 1.5, (n, 32, slices)) * np.sqrt(codec.group(head_dim))).astype(np.float16)
        table = table if exact else _levels(codec, head_dim)
        return codes, norms, table[codes] * np.repeat(norms.astype(np.float64), dims // slices, 2)
    if codec.family == Family.TRELLIS:
        return _paths(codec, head_dim, rng, shape, slices, exact)
    return _scalars(codec, rng, shape)


def _levels(codec: Codec, head_dim: int) -> F64:
    """What codes stand for in attention of few rows."""
    words, unit = levels(codec, head_dim)
    count = len(codec.centroids)
    if count == 256:
        return words.view(np.float16).astype(np.float64) * unit
    found: F64 = words.view(np.int8)[:count] * unit
    return found


def _scalars(codec: Codec, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    kind, count = kind_of(codec), 1 << codec.bits
    codes = rng.integers(0, count, shape)
    scales = rng.uniform(0.5, 1.5, (*shape[:2], shape[2] // 32))
    if codec.family == Family.Q8_0:
        levels = codes - 128
        stored, d = levels.astype(np.int8).view(np.uint8), (scales / 74).astype(np.float16)
    else:
        levels = IQ4_NL[codes].astype(np.int64) if kind.levels else codes - kind.zero
        stored = codes.astype(np.uint8)
        # Scales have either sign but where there are minima.
        sign = 1 if kind.minima else rng.choice([-1, 1], scales.shape)
        d = (scales * sign / (74 if kind.levels else count / 3)).astype(np.float16)
    values = levels * np.repeat(d.astype(np.float64), 32, 2)
    if kind.minima:
        m = rng.uniform(-2, 0, scales.shape).astype(np.float16)
        return stored, np.concatenate([d, m], axis=2), values + np.repeat(m.astype(np.float64), 32, 2)
    return stored, d, values


def _paths(
    codec: Codec, head_dim: int, rng: np.random.Generator, shape: tuple[int, ...], slices: int, exact: bool
) -> Any:
    """Random bits before each slice and random symbols, as states."""
    n, _, dims = shape
    symbols = rng.integers(0, 1 << codec.bits, (n, 32, slices, dims // slices))
    states, state = np.zeros(symbols.shape, np.uint16), rng.integers(0, len(codec.centroids), (n, 32, slices))
    for d in range(dims // slices):
        states[..., d] = state = state >> codec.bits | symbols[..., d] << codec.prefix_bits
    table = np.array(codec.centroids) * np.sqrt(codec.block / codec.group(head_dim))
    if not exact:
        unit = levels(codec, head_dim)[1]
        table = np.rint(table / unit) * unit
    norms = (rng.uniform(0.5, 1.5, (n, 32, slices)) * np.sqrt(codec.group(head_dim))).astype(np.float16)
    values = table[states] * norms.astype(np.float64)[..., None]
    return states.reshape(shape), norms, values.reshape(shape)
