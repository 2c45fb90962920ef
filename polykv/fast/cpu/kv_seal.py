"""Coding complete units: the exact cells of 64 positions become codes, less their mean where keys are centered.

A unit of one kv head is one item of work, whatever else a step seals, so its codes depend on its cells alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.attend_views import floats, ints, longs, octets
from polykv.fast.cpu.decode_group import decode_group
from polykv.fast.cpu.entry import entry, invoke
from polykv.fast.cpu.kv import append_cells
from polykv.fast.cpu.kv_cell import cell_to_group
from polykv.fast.cpu.kv_layout import BLOCK, DIM, GEOM, GROUP, MEAN_AT, RECORD, STORED, TABLE
from polykv.fast.cpu.kv_memory import heads, own
from polykv.fast.cpu.kv_space import put_mean
from polykv.fast.cpu.simd import addr
from polykv.types import UNIT, KVArena, Seals


@kernel()
def seal_unit(source: int, source_geom: int, blocks: int, target: int, geom_at: int, table: int, how: int) -> None:
    """Code one unit of a kv head; addresses, called by address.

    source, source_geom: data of the head and geom of the exact cells; blocks: int32 [UNIT / B] of them. target: the
    record that takes the codes. how: address of two int64: leading cells that are no part of the mean, and the entry of
    `append_cells`.
    """
    geom, given = longs(geom_at, GEOM), longs(source_geom, GEOM)
    dim, size, part = geom[DIM], given[BLOCK], given[GROUP]
    x, codes, ids = np.empty((UNIT, dim), np.float32), np.empty(part, np.int32), ints(blocks, UNIT // size)
    # Whole groups of exact cells, which may be longer than a vector.
    row = np.empty(given[STORED], np.float32)
    for t in range(UNIT):
        cell = source + np.int64(ids[t // size]) * given[RECORD]
        for k in range(given[STORED] // part):
            scale, minimum = cell_to_group(given, cell, t % size, k, addr(codes))
            decode_group(addr(codes), scale, minimum, given, table, addr(row) + 4 * part * k)
        x[t] = row[:dim]
    skip = longs(how, 2)[0]
    if geom[MEAN_AT] > 0:
        mean = np.zeros(geom[STORED], np.float32)
        for t in range(skip, UNIT):
            for j in range(dim):
                mean[j] += x[t, j]
        for j in range(dim):
            mean[j] /= np.float32(max(UNIT - skip, 1))
        put_mean(octets(target, geom[RECORD]), geom, floats(table, TABLE), mean)
    # Cells 0, 1, ... of the one block that begins at the record.
    cells, block = np.arange(UNIT).astype(np.int32), np.zeros(UNIT, np.int32)
    invoke(longs(how, 2)[1], (addr(x), geom_at, table, target, 0, 1, UNIT, addr(block), addr(cells)))
    # By name: arrays that are only known by their addresses would be freed before this.
    x[0, 0] = codes[0] + cells[0] + block[0]


@kernel()
def seal_item(seal: int, append: int, exact: Any, coded: Any, seals: Any, item: int) -> None:
    """Item (unit, kv head) of one side. Entries of `seal_unit` and `append_cells`; exact, coded: addresses
    of data, geom and table, and bytes from head to head; seals: addresses of blocks, targets and sinks, blocks of a
    unit, kv heads."""
    blocks, targets, sinks, per, n_kv = seals
    unit, g = item // n_kv, item % n_kv
    block, how = ints(targets + 4 * unit, 1)[0], np.empty(2, np.int64)
    how[0], how[1] = ints(sinks + 4 * unit, 1)[0], append
    record = coded[0] + np.int64(block) * longs(coded[1], GEOM)[RECORD] + g * coded[3]
    where = blocks + 4 * per * unit
    invoke(seal, (exact[0] + g * exact[3], exact[1], where, record, coded[1], coded[2], addr(how)))
    how[0] = 0


@kernel()
def _seal(seal: int, append: int, exact: Any, coded: Any, blocks: Any, targets: Any, sinks: Any, n_kv: int) -> None:
    seals = (addr(blocks), addr(targets), addr(sinks), blocks.shape[1], n_kv)
    source = addr(exact[0]), addr(exact[1]), addr(exact[2]), exact[0].strides[0]
    target = addr(coded[0]), addr(coded[1]), addr(coded[2]), coded[0].strides[0]
    for item in range(targets.shape[0] * n_kv):
        seal_item(seal, append, source, target, seals, item)


def kv_seal(codes: KVArena, exact: KVArena, seals: Seals) -> None:
    """Code the exact cells of complete units, after storing their means if the codec is centered."""
    c, e = own(codes), own(exact)
    arrays = (np.ascontiguousarray(a, np.int32) for a in (seals.exact, seals.coded, seals.sinks))
    source, target = (heads(e), e.geom, e.table), (heads(c), c.geom, c.table)
    _seal(entry(seal_unit, 7), entry(append_cells, 9), source, target, *arrays, np.int64(c.n_kv))
