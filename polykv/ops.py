"""The seam: every operation that a model or the cache needs, once.

A backend is a package that has a function for each method of `Ops`, with the same signature:

    ref     polykv.ref                NumPy; defines the meaning; runs whole models, slowly
    cpu     polykv.fast.cpu           numba
    cuda    polykv.fast.cuda.bound    CUDA kernels, on CuPy arrays

`load(name)` binds one backend and counts calls. What a backend cannot do it says when asked (`Limits`), before a model
is opened; never in the middle of a run, never by doing something else in silence. Operations are plain functions of
arrays and numbers: no hidden state, no random numbers, float32 unless said otherwise, C-contiguous. Arguments are NumPy
arrays, or arrays that an operation of the same backend gave; results are arrays of the backend, which `fetch` brings to
NumPy. `out` receives the result when given and is returned. Operations never keep a reference to an argument.

Agreement classes (how a fast twin is compared with `ref`, see `AGREEMENT`):
    EXACT  equal bytes or integers
    ULP    relative error of a few float32 roundings
    RATIO  RMS error relative to RMS of the float64 result
    COST   codes may differ where two are equally good; the squared error may not be worse
"""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from polykv.errors import ConfigError
from polykv.ops_facts import Limits as Limits
from polykv.ops_facts import Memory as Memory
from polykv.types import (
    F32,
    I32,
    U8,
    Activations,
    Angles,
    AttentionWeights,
    Codec,
    Glu,
    Greedy,
    HeadWeights,
    KVArena,
    LayerKV,
    MlpWeights,
    QuantTensor,
    Seals,
    Segments,
    Slots,
    Stack,
)

BACKENDS = ("ref", "cpu", "cuda")
MODULES = {"ref": "polykv.ref", "cpu": "polykv.fast.cpu", "cuda": "polykv.fast.cuda.bound"}


class Agreement(Enum):
    """How two backends must agree; the number is the tolerance used by the equivalence suite."""

    EXACT = 0.0
    ULP = 2e-6
    RATIO = 1e-4
    COST = 1e-6


class Ops(Memory, Protocol):
    """Signatures, shapes and meaning of all operations. Letters: see `polykv.types`."""

    # -- weights -----------------------------------------------------------------------------------------------
    def dequantize(self, w: QuantTensor, rows: I32 | None = None, *, out: F32 | None = None) -> F32:
        """The given rows of W (all when None) as float32 [n, cols]."""
        ...

    def linear(self, x: F32, w: QuantTensor, *, activations: Activations, out: F32 | None = None) -> F32:
        """y [R, rows] = x [R, cols] @ W.T. Row r of y depends on row r of x only, bit for bit, in any batch."""
        ...

    # -- elementwise -------------------------------------------------------------------------------------------
    def rms_norm(self, x: F32, weight: F32, eps: float, *, out: F32 | None = None) -> F32:
        """x / sqrt(mean(x^2) + eps) * weight over the last axis; any leading shape."""
        ...

    def rope(self, x: F32, angles: Angles, *, out: F32 | None = None) -> F32:
        """Rotate the first n_rot dims of x [R, H, D] by the rows' angles; the other dims pass."""
        ...

    def glu(self, gate: F32, up: F32, kind: Glu, *, out: F32 | None = None) -> F32:
        """act(gate) * up, [R, F]."""
        ...

    def fwht(self, x: F32, signs1: F32, signs2: F32, *, inverse: bool = False, out: F32 | None = None) -> F32:
        """y = signs2 * H (x * signs1) / sqrt(g) on consecutive groups of g = len(signs1) values of the last axis
        (inverse: x = signs1 * H^T (y * signs2) / sqrt(g)); H is the Hadamard matrix of order g of `polykv.hadamard`."""
        ...

    # -- codecs ------------------------------------------------------------------------------------------------
    def encode(self, codec: Codec, x: F32, *, out: U8 | None = None) -> U8:
        """Exchange layout [..., exchange_bytes(D)] of vectors x [..., D]. Values are clamped to what the scale type
        can hold: finite input never gives an infinite scale."""
        ...

    def decode(self, codec: Codec, blocks: U8, head_dim: int, *, out: F32 | None = None) -> F32:
        """Vectors [..., head_dim] in true (unrotated) space of exchange blocks [..., exchange_bytes(D)]."""
        ...

    # -- cache storage -----------------------------------------------------------------------------------------
    def kv_alloc(
        self, codec: Codec, n_blocks: int, n_kv: int, head_dim: int, block_size: int, *, values: bool = False
    ) -> KVArena:
        """Zeroed arrays for n_blocks blocks in the backend's resident layout. values: for V, which may lie in another
        order than K; `attend` takes either only where it belongs."""
        ...

    def kv_grow(self, arenas: Sequence[KVArena], n_blocks: int) -> None:
        """Have n_blocks blocks in every arena, with what they hold; new ones are zero. The arenas stay the same
        objects, with other arrays. When it is interrupted, some have grown and some have not: all are whole."""
        ...

    def kv_append(self, arena: KVArena, x: F32, slots: Slots) -> None:
        """Encode x [R, n_kv, D] into the cells `slots`, in groups of `codec.group(D)` values. Where these are the
        groups of the exchange layout, codes equal those of `encode`."""
        ...

    def kv_read(self, arena: KVArena, blocks: I32) -> F32:
        """Decoded true-space values [n, block_size, n_kv, D] of whole blocks."""
        ...

    def kv_pack(self, arena: KVArena, blocks: I32) -> U8:
        """Packed layout [n, packed_rows(D, block_size), n_kv, packed_bytes(D)] of whole blocks: the codes as they are,
        in an order of bytes that all backends share (docs/FORMATS.md)."""
        ...

    def kv_seal(self, codes: KVArena, exact: KVArena, seals: Seals) -> None:
        """Code the exact cells of complete units: one side of a layer whose new cells are exact (docs/CENTERED.md).

        For a centered codec the mean of a unit's vectors, its sinks left out, is stored first; `kv_append` codes
        vectors less the mean of the block that they are written to.
        """
        ...

    def kv_unpack(self, arena: KVArena, blocks: I32, data: U8) -> None:
        """Store packed data, shaped as `kv_pack` returns it, into whole blocks."""
        ...

    # -- attention ---------------------------------------------------------------------------------------------
    def attend(
        self,
        q: F32,
        segments: Segments,
        kv: LayerKV,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        out: F32 | None = None,
    ) -> tuple[F32, F32]:
        """Softmax attention of q [R, H, D] over the segments' codes: out [R, H, D] in true space, lse [R, H].

        Row r at position p sees cells at positions <= p, and > p - window when window > 0. Rows that see nothing get
        out = 0 and lse = -inf. The result of a row does not depend on how its keys are cut into segments (at block
        boundaries) nor on the other rows, bit for bit.
        With `segments.exact` the rows read those segments of `kv.exact` too, and the results are merged.
        """
        ...

    def merge(self, outs: F32, lses: F32, *, out: F32 | None = None) -> tuple[F32, F32]:
        """Combine partial results over disjoint key sets: outs [S, R, H, D], lses [S, R, H] -> [R, H, D], [R, H]."""
        ...

    # -- choosing tokens ---------------------------------------------------------------------------------------
    def penalize(self, logits: F32, recent: list[I32], penalty: F32, *, out: F32 | None = None) -> F32:
        """Repetition penalty: logits [R, V] of the ids in recent[r] are divided by penalty[r] when positive,
        multiplied when negative."""
        ...

    def sample(
        self, logits: F32, temperature: F32, top_k: I32, top_p: F32, min_p: F32, u: npt.NDArray[np.float64]
    ) -> I32:
        """One token id per row of logits [R, V]. temperature 0 = argmax (lowest id on ties). Else, in this order:
        top_k (0 = off), top_p (1 = off), min_p (0 = off), temperature, then the inverse CDF at u in [0, 1) over
        candidates sorted by descending logit, then ascending id; float64 inside."""
        ...

    # -- composites: defined by `ref` as compositions of the above, fused by fast backends ----------------------
    def embed(self, w: QuantTensor, ids: I32, scale: float) -> F32:
        """Rows `ids` of the embedding matrix times scale, [R, E]."""
        ...

    def attention_block(
        self,
        h: F32,
        w: AttentionWeights,
        kv: LayerKV,
        angles: Angles,
        segments: Segments,
        slots: Slots,
        *,
        activations: Activations,
    ) -> None:
        """h [R, E] += post_norm(Wo attend(rope(norm(q)), ...)) in place, after writing the rows' K and V to `slots`
        and coding the units that are complete then."""
        ...

    def mlp_block(self, h: F32, w: MlpWeights, *, activations: Activations) -> None:
        """h [R, E] += post_norm(Wdown glu(Wgate m, Wup m)), m = norm(h), in place."""
        ...

    def layers(
        self,
        h: F32,
        stack: Stack,
        angles: Sequence[Angles],
        segments: Sequence[Segments],
        slots: Sequence[Slots],
        *,
        activations: Activations,
    ) -> None:
        """`attention_block` and `mlp_block` of all layers in order, h [R, E] in place. angles: per distinct rope;
        segments, slots: per cache group."""
        ...

    def head(self, h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
        """Logits [R, V] = softcap(W norm(h))."""
        ...

    def greedy(self, h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
        """What `sample` chooses at temperature 0 from the backend's own `head` of h [R, E], bit for bit, without all of
        the logits where the head has a screen. room [R, V]: memory for logits, whose contents mean nothing afterwards.
        """
        ...

    def prepare_head(self, w: HeadWeights, inverse: F32, *, converted: Callable[[int], None]) -> HeadWeights:
        """The same head as the backend likes it best for `greedy`; as it is where there is nothing to prepare. Results
        of all operations stay the same, bit for bit.

        inverse [E], in [1, 1024]: 1 / S of `polykv.ref.screen`. converted(row): rows of W before `row` have been read
        and will not be read again.
        """
        ...


AGREEMENT: dict[str, Agreement] = {
    "dequantize": Agreement.ULP,
    "linear": Agreement.RATIO,
    "rms_norm": Agreement.ULP,
    "rope": Agreement.ULP,
    "glu": Agreement.ULP,
    "fwht": Agreement.ULP,
    "encode": Agreement.COST,
    "decode": Agreement.ULP,
    "kv_alloc": Agreement.EXACT,
    "kv_grow": Agreement.EXACT,
    "kv_append": Agreement.COST,
    "kv_read": Agreement.ULP,
    "kv_pack": Agreement.EXACT,
    "kv_seal": Agreement.COST,
    "kv_unpack": Agreement.EXACT,
    "attend": Agreement.RATIO,
    "merge": Agreement.ULP,
    "penalize": Agreement.EXACT,
    "sample": Agreement.EXACT,
    "embed": Agreement.ULP,
    "attention_block": Agreement.RATIO,
    "mlp_block": Agreement.RATIO,
    "layers": Agreement.RATIO,
    "head": Agreement.RATIO,
    "greedy": Agreement.RATIO,
    "prepare_head": Agreement.ULP,
}


def _methods(protocol: type) -> tuple[str, ...]:
    return tuple(n for n, f in vars(protocol).items() if inspect.isfunction(f) and not n.startswith("_"))


OPERATIONS = _methods(Ops)
MEMORY = _methods(Memory)
LIMITS = _methods(Limits)


class BoundOps:
    """One backend, bound: its operations and limits as attributes, a call counter, and where each implementation
    lives."""

    def __init__(self, name: str, module: ModuleType) -> None:
        self.name = name
        self.calls: Counter[str] = Counter()
        self.source: dict[str, str] = {}
        for op in OPERATIONS:
            fn = getattr(module, op)
            self.source[op] = fn.__module__
            setattr(self, op, self._counted(op, fn))
        for fact in (*LIMITS, *MEMORY):
            setattr(self, fact, getattr(module, fact))

    def _counted(self, op: str, fn: Any) -> Any:
        calls = self.calls

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[op] += 1
            return fn(*args, **kwargs)

        return call


class LoadedOps(BoundOps, Ops, Limits):
    """Static view of `BoundOps`: all operations and limits plus `name`, `calls` and `source`."""


def load(name: str) -> LoadedOps:
    """Bind the backend `name`, one of BACKENDS. Whether it runs here, `Limits.unusable` says.

    >>> load("ref").name
    'ref'

    Raises ConfigError for an unknown name.
    """
    if name not in BACKENDS:
        raise ConfigError(f"unknown backend {name!r}; this build has: {', '.join(BACKENDS)}")
    module = importlib.import_module(MODULES[name])
    return cast(LoadedOps, BoundOps(name, module))
