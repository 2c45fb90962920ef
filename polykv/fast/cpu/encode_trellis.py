"""Codes of trellis types, 8 groups at a time (twin of `polykv.ref.trellis`): what surrounds the search for a path."""

from __future__ import annotations

from typing import Any

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_rotated import clamp_tile, length_as_tree, stored_norm, turn_tile
from polykv.fast.cpu.encode_simd import pick_f
from polykv.fast.cpu.kv_layout import BITS, GROUP, LEVELS, TRELLIS
from polykv.fast.cpu.lift_simd import transpose8
from polykv.fast.cpu.simd import get_i32, load_i, put_i32, store_f
from polykv.fast.cpu.trellis import search
from polykv.fast.cpu.trellis_lanes import search8


@kernel()
def trellis_tile(x: int, lanes: int, geom: Any, table: int, spare: int, paths: int, work: int) -> Any:
    """States in the place of the first so many lanes of a tile; returns the norms to store.

    spare, paths: memory for a tile each; work: `trellis.work_bytes(g)` bytes.
    """
    g = geom[GROUP]
    clamp_tile(x, g)
    n = length_as_tree(x, g, spare)
    turn_tile(x, geom, table, n, spare)
    if lanes == 8:
        search8(x, 32, 4, g, geom[BITS], table + 4 * TRELLIS, work, x)
    else:
        _few(x, lanes, g, geom[BITS], table + 4 * TRELLIS, spare, paths, work)
    for k in range(0, 32 * g, 32):
        store_f(spare + k, pick_f(table + 4 * LEVELS, load_i(x + k)))
    return stored_norm(n, length_as_tree(spare, g, spare), table)


@kernel()
def _few(x: int, lanes: int, g: int, bits: int, trellis: int, spare: int, paths: int, work: int) -> None:
    """States in the place of fewer than 8 lanes, one group after the other."""
    for k in range(0, g, 8):
        transpose8(x + 32 * k, 32, spare + 4 * k, 4 * g)
    search(spare, lanes, g, bits, trellis, work, paths)
    for lane in range(8):
        for j in range(g):
            # Lanes that nobody asked for need valid states too.
            put_i32(x + 32 * j + 4 * lane, get_i32(paths + 4 * (g * min(lane, lanes - 1) + j)))
