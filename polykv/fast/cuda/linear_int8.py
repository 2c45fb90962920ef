"""Products of packed weights with a few rows of int8 activations: on tensor cores where rows of W are whole tiles.

linear_staged.cu   2 to 32 rows of x, types and shapes of linear_staged.py: W and x come through shared memory
linear_tiles.cu    other types, and a single row of those with blocks of 256 values: cols a multiple of TILE
linear_few.cu      any cols, by dp4a: a warp has one row of W
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polykv.fast.cuda.compile import kernel, launch
from polykv.fast.cuda.device import cupy, device
from polykv.fast.cuda.linear_staged import cut_of
from polykv.fast.cuda.source import Define
from polykv.fast.cuda.weights import own, type_name
from polykv.types import WEIGHT_BLOCK, MatrixType, QuantTensor, WeightType

# Columns of a tile of W (kernels/tiles.cuh).
TILE = 128
# Of linear_tiles.cu: rows of x that a kernel takes, warps, and into how many groups of rows of W they may be divided.
TILE_ROWS = (1, 8, 16, 24, 32)
TILE_WARPS = (16, 8)
TILE_GROUPS = (4, 2, 1)
# 16 rows of W for a warp, twice where their registers suffice.
TILE_PAIRS: dict[MatrixType, int] = {WeightType.Q4_0: 2, WeightType.IQ4_NL: 2}
# Of linear_few.cu: rows of x that a block takes, warps, and pieces that a lane has on their way at once.
FEW_ROWS = (1, 8)
FEW_WARPS = 4
AHEAD = 2
# Threads of a block that quantizes, four values each.
THREADS = 256


@dataclass(frozen=True, eq=False)
class Int8Rows:
    """n rows of activations, rounded to int8 per 32 values; tiles: in the order of linear_tiles.cu (quantize.cu)."""

    codes: Any
    scales: Any
    n: int
    tiles: bool


def takes_tiles(w: QuantTensor, n: int = 2) -> bool:
    """Whether products of n rows with W run on tensor cores. A single row is faster without (an H200 reads 3.4 TB/s of
    Q4_0 then, 2.0 with tiles), but types with blocks of 256 values have tiles only."""
    return w.cols % TILE == 0 and (n > 1 or WEIGHT_BLOCK[w.type][0] >= TILE)


def quantize(x: Any, tiles: bool) -> Int8Rows:
    """Rows x [R, cols] as int8."""
    cp = cupy()
    n, cols = x.shape
    rows = -(-n // 8) * 8 if tiles else n
    codes, scales = cp.empty((rows, cols), np.int8), cp.empty((rows, cols // 32, 2), np.uint32)
    total = rows * cols // 4
    made = kernel("quantize.cu", "quantize_rows", QUANTIZE_TILES=int(tiles))
    launch(made, (-(-total // THREADS),), (THREADS,), (codes, scales, x, n, cols, total))
    return Int8Rows(codes, scales, n, tiles)


def product(y: Any, w: QuantTensor, x: Int8Rows) -> None:
    """y [R, rows] = x W^T. Rows for tiles are at most the last of TILE_ROWS; ValueError for more."""
    if x.n == 0:
        # Blocks are as many as W wants, and would read a chunk of x that is not there.
        return
    arguments = (y, own(w), x.codes, x.scales, x.n, w.rows, w.cols)
    cut = cut_of(w) if x.tiles and x.n > 1 else None
    if cut is not None:
        rows = tile_rows(x.n)
        made = kernel("linear_staged.cu", "linear_staged", **cut.defines(w.type, rows))
        grid = (-(-w.rows // cut.height) * cut.split,)
        launch(made, grid, (cut.threads,), arguments, shared=cut.shared(w.type, rows))
    elif x.tiles:
        rows = tile_rows(x.n)
        warps, groups = tile_block(w)
        made = kernel("linear_tiles.cu", "linear_tiles", **tile_defines(w.type, rows, warps, groups))
        launch(made, (-(-w.rows // _height(w.type, groups)),), (32 * warps,), arguments)
    else:
        rows = next((r for r in FEW_ROWS if x.n <= r), FEW_ROWS[-1])
        made = kernel("linear_few.cu", "linear_few", **few_defines(w.type, rows))
        launch(made, (-(-w.rows // FEW_WARPS) * -(-x.n // rows),), (32 * FEW_WARPS,), arguments)


def tile_rows(n: int) -> int:
    """Rows that the kernel is compiled for: no more chunks than n rows have, for behind the last one lies nothing."""
    if n > TILE_ROWS[-1]:
        raise ValueError(f"{n} rows of x, where kernels on tiles take {TILE_ROWS[-1]} at most")
    return next(r for r in TILE_ROWS if n <= r)


def _height(kind: MatrixType, groups: int) -> int:
    """Rows of W that a block takes."""
    return 16 * TILE_PAIRS.get(kind, 1) * groups


def tile_block(w: QuantTensor) -> tuple[int, int]:
    """Warps of a block, and the groups that they form: blocks have as many rows of W as leave each multiprocessor one,
    but half as many warps where there are more blocks and a warp has much to do (measured, docs/CUDA.md)."""
    processors = device().processors
    groups = next((g for g in TILE_GROUPS if w.rows >= _height(w.type, g) * processors), TILE_GROUPS[-1])
    few = w.rows <= _height(w.type, 1) * processors or w.type not in TILE_PAIRS
    return TILE_WARPS[0 if few else 1], groups


def tile_defines(kind: MatrixType, rows: int, warps: int, groups: int) -> dict[str, Define]:
    """The defines of kernels/linear_tiles.cu for a weight type; numbers out of TILE_ROWS, TILE_WARPS, TILE_GROUPS."""
    sizes: dict[str, Define] = {"LINEAR_ROWS": rows, "LINEAR_WARPS": warps, "LINEAR_GROUPS": groups}
    return {"WEIGHT_TYPE": type_name(kind), **sizes, "LINEAR_PAIRS": TILE_PAIRS.get(kind, 1)}


def few_defines(kind: MatrixType, rows: int) -> dict[str, Define]:
    """The defines of kernels/linear_few.cu for a weight type and a number out of FEW_ROWS."""
    return {"WEIGHT_TYPE": type_name(kind), "LINEAR_ROWS": rows, "LINEAR_AHEAD": AHEAD}
