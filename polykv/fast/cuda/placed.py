"""Weights where kernels read them: taken to the device once, and joined where they multiply the same rows.

Whoever runs a model has its weights on the host, packed as in the file (`polykv.model.loader.Model`), and passes them
to operations again and again. What was made of a matrix or vector is remembered as long as that object lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from polykv.fast.cuda.arena import Arena, aligned
from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.weights import FIELDS, DeviceTensor, joined_rows
from polykv.types import (
    F32,
    AttentionWeights,
    Equalizer,
    HeadWeights,
    MlpWeights,
    ModelWeights,
    QuantTensor,
)


@dataclass(frozen=True, eq=False)
class Products:
    """Matrices with the same columns, those of one type joined to one. parts: for each of the given ones which of
    `matrices` it is in, its first row there, and how many it has."""

    matrices: tuple[DeviceTensor, ...]
    parts: tuple[tuple[int, int, int], ...]

    @property
    def cols(self) -> int:
        return self.matrices[0].cols

    @property
    def packed(self) -> bool:
        """Whether all have types that are multiplied with rows of int8."""
        return all(w.type in FIELDS for w in self.matrices)


# Memos, gone with the keys: what is remembered never holds its key, or neither would ever go.
_MATRICES: WeakKeyDictionary[QuantTensor, DeviceTensor] = WeakKeyDictionary()
_JOINED: WeakKeyDictionary[QuantTensor, tuple[tuple[ref[QuantTensor], ...], Products]] = WeakKeyDictionary()


def placed(w: QuantTensor, arena: Arena | None = None) -> DeviceTensor:
    """The matrix on the device; arena: where it goes when it is not there yet."""
    if isinstance(w, DeviceTensor):
        return w
    if w not in _MATRICES:
        _MATRICES[w] = joined_rows([w], w.type, arena)
    return _MATRICES[w]


def joined(*ws: QuantTensor, arena: Arena | None = None) -> Products:
    """Matrices that multiply the same rows; arena: see `placed`."""
    if len(ws) == 1 and isinstance(ws[0], DeviceTensor):
        return Products((ws[0],), ((0, 0, ws[0].rows),))
    given, found = _JOINED.get(ws[0], ((), None))
    if found is not None and len(given) == len(ws) and all(a() is b for a, b in zip(given, ws, strict=True)):
        return found
    kinds = list(dict.fromkeys(w.type for w in ws))
    parts = []
    for i, w in enumerate(ws):
        before = [o for o in ws[:i] if o.type == w.type]
        parts.append((kinds.index(w.type), sum(o.rows for o in before), w.rows))
    matrices = tuple(joined_rows([w for w in ws if w.type == kind], kind, arena) for kind in kinds)
    made = Products(matrices, tuple(parts))
    _JOINED[ws[0]] = tuple(map(ref, ws)), made
    return made


def _sets(weights: ModelWeights) -> list[tuple[QuantTensor, ...]]:
    """Matrices of the layers that are joined."""
    layers = zip(weights.attention, weights.mlp, strict=True)
    return [ws for a, m in layers for ws in ((a.wq, a.wk, a.wv), (a.wo,), (m.gate, m.up), (m.down,))]


def _lookups(weights: ModelWeights) -> list[QuantTensor]:
    """Embedding and output matrix, once if they are the same."""
    return list(dict.fromkeys((weights.embedding, weights.head.out)))


def weight_bytes(weights: ModelWeights) -> int:
    """Bytes of all matrices of a model in one piece."""
    sets = [*_sets(weights), *((w,) for w in _lookups(weights))]
    sizes = [[w.nbytes for w in ws if w.type == kind] for ws in sets for kind in {w.type for w in ws}]
    return sum(aligned(sum(size)) for size in sizes)


def place(weights: ModelWeights) -> None:
    """Take all matrices of a model to the device, in one piece of memory. Raises CapacityError."""
    lookups, sets = _lookups(weights), _sets(weights)
    if any(isinstance(w, DeviceTensor) or w in _MATRICES for w in lookups):
        # They are there: another session has brought them.
        return
    arena = Arena(weight_bytes(weights))
    for w in lookups:
        placed(w, arena)
    for ws in sets:
        joined(*ws, arena=arena)


def placed_bytes(weights: ModelWeights) -> int:
    """Bytes of the matrices that are on the device."""
    there = [w if isinstance(w, DeviceTensor) else _MATRICES.get(w) for w in _lookups(weights)]
    made = [_JOINED[ws[0]][1] for ws in _sets(weights) if ws[0] in _JOINED]
    return sum(w.nbytes for w in (*there, *(w for ps in made for w in ps.matrices)) if w is not None)


def vector(x: Any) -> Any:
    """The vector on the device; one that is there already, and None, as they are."""
    return asarray(x) if isinstance(x, np.ndarray) else x


@dataclass(frozen=True, eq=False)
class Attention:
    """Weights of an attention block on the device. given: a copy of what they were made of, with the constants."""

    given: AttentionWeights
    norm: F32
    qkv: Products
    wo: Products
    q_norm: F32 | None
    k_norm: F32 | None
    post_norm: F32 | None
    q_bias: F32 | None
    k_bias: F32 | None
    v_bias: F32 | None
    equalizer: Equalizer

    @staticmethod
    def of(w: AttentionWeights) -> Attention:
        def by_head(x: F32 | None) -> Any:
            return None if x is None else vector(x).reshape(-1, w.head_dim)

        e = w.equalizer
        return Attention(
            replace(w),
            vector(w.norm),
            joined(w.wq, w.wk, w.wv),
            joined(w.wo),
            vector(w.q_norm),
            vector(w.k_norm),
            vector(w.post_norm),
            by_head(w.q_bias),
            by_head(w.k_bias),
            by_head(w.v_bias),
            Equalizer(vector(e.k), vector(e.q), vector(e.v), vector(e.out)),
        )


@dataclass(frozen=True, eq=False)
class Mlp:
    """Weights of an MLP block on the device; see `Attention`."""

    given: MlpWeights
    norm: F32
    gate_up: Products
    down: Products
    post_norm: F32 | None

    @staticmethod
    def of(w: MlpWeights) -> Mlp:
        return Mlp(replace(w), vector(w.norm), joined(w.gate, w.up), joined(w.down), vector(w.post_norm))


_ATTENTION: WeakKeyDictionary[AttentionWeights, Attention] = WeakKeyDictionary()
_MLP: WeakKeyDictionary[MlpWeights, Mlp] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[HeadWeights, HeadWeights] = WeakKeyDictionary()


def attention_of(w: AttentionWeights) -> Attention:
    """The weights of an attention block on the device."""
    if w not in _ATTENTION:
        _ATTENTION[w] = Attention.of(w)
    return _ATTENTION[w]


def mlp_of(w: MlpWeights) -> Mlp:
    """The weights of an MLP block on the device."""
    if w not in _MLP:
        _MLP[w] = Mlp.of(w)
    return _MLP[w]


def head_of(w: HeadWeights) -> HeadWeights:
    """The head on the device."""
    if isinstance(w.out, DeviceTensor) and not isinstance(w.norm, np.ndarray):
        return w
    if w not in _HEADS:
        _HEADS[w] = HeadWeights(vector(w.norm), placed(w.out), w.softcap, w.eps, w.screen)
    return _HEADS[w]
