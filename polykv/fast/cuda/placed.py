"""Weights where kernels read them: taken to the device once, and joined where they multiply the same rows.

Whoever runs a model has its weights on the host, packed as in the file (`polykv.model.loader.Model`), and passes them
to operations again and again. What was made of a matrix or vector is remembered as long as that object lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.weights import FIELDS, FLOATS, DeviceTensor, matrix, own
from polykv.types import (
    F32,
    WEIGHT_BLOCK,
    AttentionWeights,
    Equalizer,
    HeadWeights,
    MatrixType,
    MlpWeights,
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


def placed(w: QuantTensor) -> DeviceTensor:
    """The matrix on the device."""
    if isinstance(w, DeviceTensor):
        return w
    if w not in _MATRICES:
        _MATRICES[w] = matrix(w)
    return _MATRICES[w]


def joined(*ws: QuantTensor) -> Products:
    """Matrices that multiply the same rows."""
    if len(ws) == 1 and isinstance(ws[0], DeviceTensor):
        return Products((ws[0],), ((0, 0, ws[0].rows),))
    given, found = _JOINED.get(ws[0], ((), None))
    if found is not None and len(given) == len(ws) and all(a() is b for a, b in zip(given, ws, strict=True)):
        return found
    there = [w if isinstance(w, DeviceTensor) else matrix(w) for w in ws]
    kinds = list(dict.fromkeys(w.type for w in there))
    parts = []
    for w in there:
        before = [o for o in there[: there.index(w)] if o.type == w.type]
        parts.append((kinds.index(w.type), sum(o.rows for o in before), w.rows))
    made = Products(tuple(_join([w for w in there if w.type == kind], kind) for kind in kinds), tuple(parts))
    _JOINED[ws[0]] = tuple(map(ref, ws)), made
    return made


def _join(ws: Sequence[DeviceTensor], kind: MatrixType) -> DeviceTensor:
    """Rows of all, in their order, as one matrix."""
    if len(ws) == 1:
        return ws[0]
    shape = sum(w.rows for w in ws), ws[0].data.shape[1]
    if kind in FLOATS:
        return DeviceTensor(kind, np.concatenate([own(w) for w in ws]), ws[0].cols)
    # Every field of all blocks lies in one piece (weights.py).
    size, at, pieces = WEIGHT_BLOCK[kind][1], 0, []
    for _, width in FIELDS[kind]:
        for w in ws:
            n = w.data.size // size
            pieces.append(own(w).reshape(-1)[at * n : (at + width) * n])
        at += width
    return DeviceTensor(kind, np.concatenate(pieces).reshape(shape), ws[0].cols)


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
