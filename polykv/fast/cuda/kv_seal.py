"""Cells that are exact first (docs/CENTERED.md): complete units become codes (kv_seal of `polykv.ref.storage`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cuda.arrays import check
from polykv.fast.cuda.compile import Made, kernel, launch
from polykv.fast.cuda.forms import WARPS, vector_room
from polykv.fast.cuda.kv import CudaArena, means_of, own, place
from polykv.types import F32, KVArena, Seals, Slots


def kv_seal(codes: KVArena, exact: KVArena, seals: Seals) -> None:
    """Code the exact cells of complete units, after storing their means if the codec is centered.

    Units whose block of codes is negative are left out, as `kv_append` leaves out rows.
    """
    a, e = own(codes), own(exact)
    n, per = check("the exact blocks of seals", seals.exact, np.int32, -1, a.block_size // e.block_size).shape
    for name, each in (("the coded blocks", seals.coded), ("the sinks", seals.sinks)):
        check(f"{name} of seals", each, np.int32, n)
    if e.codec.rotated or (e.n_kv, e.head_dim) != (a.n_kv, a.head_dim):
        raise ValueError(
            f"cells of {e.codec.name} [{e.n_kv}, {e.head_dim}] are no exact ones of {a.n_kv} x {a.head_dim}"
        )
    room = max(a.form.sizes[-2], e.form.sizes[-2])
    source = (*place(e), e.form.tables[0], e.form.tables[3])
    if a.codec.centered:
        arguments = (*means_of(a), *a.form.tables, *source, seals.exact, seals.coded, seals.sinks)
        shared = WARPS * (vector_room(room) + 8 * room)
        launch(
            _made(a, e, "kv_mean"),
            (n, a.n_kv),
            (32 * WARPS,),
            (*arguments, per, e.block_size, a.block_size),
            shared=shared,
        )
    arguments = (*place(a), *means_of(a), *a.form.tables, *source, seals.exact, seals.coded)
    launch(
        _made(a, e, "kv_seal"),
        (-(-n * a.block_size * a.n_kv // WARPS),),
        (32 * WARPS,),
        (*arguments, n, per, e.block_size, a.block_size, a.n_kv),
        shared=WARPS * (vector_room(room) + a.form.sizes[-1]),
    )


def append_centered(arena: KVArena, x: F32, slots: Slots) -> None:
    """Encode x [R, n_kv, D], less the means of their blocks, into cells of centered keys."""
    a = own(arena)
    n, heads, _ = check("x", x, np.float32, -1, a.n_kv, a.head_dim).shape
    blocks = check("the blocks of slots", slots.blocks, np.int32, n)
    offsets = check("the offsets of slots", slots.offsets, np.int32, n)
    arguments = (*place(a), *means_of(a), *a.form.tables, x, blocks, offsets, n, heads)
    made = _made(a, a, "kv_append_centered")
    launch(made, (-(-n * heads // WARPS),), (32 * WARPS,), arguments, shared=a.form.shared)


def _made(codes: CudaArena, exact: CudaArena, entry: str) -> Made:
    """A kernel of kv_seal.cu."""
    types: dict[str, Any] = {"KV_TYPE": codes.form.type, "KV_EXACT": exact.form.type}
    return kernel("kv_seal.cu", entry, **types)
