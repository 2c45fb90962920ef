"""The data that operations take: packed weights, codecs, arenas, segments.

Letters used for shapes everywhere in this project:

    R query rows (tokens of one step)   T tokens          S segments       B block size (tokens)
    E embedding width                   H query heads     G kv heads       D head_dim
    F feed-forward width                V vocabulary      N blocks

Nothing here computes. The backends (`ref`, `fast.cpu`) import this file and no other of polykv but `errors` and
`hadamard`. `Codec` and what belongs to it are defined in `polykv.codec`, matrices in
`polykv.matrix`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from polykv.codec import Codec as Codec
from polykv.codec import Family as Family
from polykv.codec import Signs as Signs
from polykv.matrix import U8 as U8
from polykv.matrix import WEIGHT_BLOCK as WEIGHT_BLOCK
from polykv.matrix import MatrixType as MatrixType
from polykv.matrix import QuantTensor as QuantTensor
from polykv.matrix import Resident as Resident
from polykv.matrix import WeightType as WeightType

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

# Positions that attention folds at once, [UNIT * u, UNIT * (u + 1)). The order of sums is fixed by units, whatever the
# block size; so the cells of one unit that a row sees must all be in one of its segments.
UNIT = 64


class Activations(IntEnum):
    """How `linear` treats its input rows: as float32, or rounded to int8 per 32 values (as llama.cpp computes)."""

    F32 = 0
    Q8 = 1


class Glu(IntEnum):
    """Gate function of the MLP: silu(g)*u or gelu_tanh(g)*u."""

    SILU = 0
    GELU_TANH = 1


@dataclass(frozen=True, eq=False)
class KVArena:
    """Storage of one side (K or V) of one layer: arrays whose first axis is the block id.

    `fields` are what the backend that allocated it declared (its resident layout); only that backend reads inside.
    """

    codec: Codec
    n_kv: int
    head_dim: int
    block_size: int
    fields: dict[str, npt.NDArray[np.generic]]

    @property
    def n_blocks(self) -> int:
        return int(next(iter(self.fields.values())).shape[0])

    @property
    def nbytes(self) -> int:
        return sum(int(a.nbytes) for a in self.fields.values())

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block, from the real arrays."""
        return sum(int(a[:1].nbytes) for a in self.fields.values())


@dataclass(frozen=True, eq=False)
class LayerKV:
    """K and V of one layer. exact: cells of positions that are not coded, or not yet; None = cells are coded as
    they are written (docs/CENTERED.md)."""

    k: KVArena
    v: KVArena
    exact: LayerKV | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """Cells that some query rows see: blocks in position order, all of one sequence or shared by several.

    blocks int32 [n]: physical block ids. start: absolute position of the first cell (a multiple of the block size).
    length: valid cells from there. rows int32 [m]: the query rows that see it, subject to causality and window.
    Where one segment of a row ends and its next begins is a multiple of UNIT.
    """

    blocks: I32
    start: int
    length: int
    rows: I32


@dataclass(frozen=True, eq=False)
class Segments:
    """Everything the rows of one step read in one cache group, as a list of segments in flat (CSR) form.

    A row's segments are disjoint in position and listed in ascending order of `start`. Flat, because a kernel reads
    it as it is; iterate it to get `Segment` objects.
    Where layers have exact cells (`LayerKV.exact`), `exact` says what of them the same rows read, and coded cells at
    positions below `first` are not seen: they are among the exact ones.
    """

    blocks: I32
    block_ptr: I32
    start: I32
    length: I32
    rows: I32
    row_ptr: I32
    positions: I32  # [R] absolute position of every query row
    first: int = 0
    exact: Segments | None = None

    def __len__(self) -> int:
        return int(self.start.shape[0])

    def __iter__(self) -> Iterator[Segment]:
        for s in range(len(self)):
            yield Segment(
                self.blocks[self.block_ptr[s] : self.block_ptr[s + 1]],
                int(self.start[s]),
                int(self.length[s]),
                self.rows[self.row_ptr[s] : self.row_ptr[s + 1]],
            )

    @staticmethod
    def of(items: list[Segment], positions: I32, first: int = 0, exact: Segments | None = None) -> Segments:
        """Flatten a list of segments."""

        def ptr(lengths: list[int]) -> I32:
            return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)

        def cat(parts: list[I32]) -> I32:
            return np.ascontiguousarray(np.concatenate(parts) if parts else np.zeros(0), dtype=np.int32)

        return Segments(
            cat([s.blocks for s in items]),
            ptr([len(s.blocks) for s in items]),
            np.array([s.start for s in items], np.int32),
            np.array([s.length for s in items], np.int32),
            cat([s.rows for s in items]),
            ptr([len(s.rows) for s in items]),
            np.ascontiguousarray(positions, np.int32),
            first,
            exact,
        )


@dataclass(frozen=True, eq=False)
class Seals:
    """Units that a step completes: their exact cells become codes (docs/CENTERED.md).

    exact int32 [n, UNIT / B]: the blocks of exact cells of each, in order. coded int32 [n]: the block of UNIT cells
    that takes the codes. sinks int32 [n]: leading cells that stay exact for ever; they are no part of a mean.
    """

    exact: I32
    coded: I32
    sinks: I32


@dataclass(frozen=True, eq=False)
class Slots:
    """Where the new cells of one step go: row r is written to cell `offsets[r]` of block `blocks[r]`.

    With `seals` these are blocks of exact cells, and afterwards the units named there are coded.
    """

    blocks: I32
    offsets: I32
    seals: Seals | None = None

    @staticmethod
    def join(parts: list[Slots]) -> Slots:
        """Slots of several sequences in one cache group as those of one step."""
        if len(parts) == 1:
            return parts[0]
        seals = [p.seals for p in parts if p.seals is not None]
        joined = None
        if seals:
            fields = zip(*((s.exact, s.coded, s.sinks) for s in seals), strict=True)
            joined = Seals(*(np.concatenate(f) for f in fields))
        return Slots(np.concatenate([p.blocks for p in parts]), np.concatenate([p.offsets for p in parts]), joined)


@dataclass(frozen=True, eq=False)
class Angles:
    """cos and sin of the rope angles of the rows of one step, float32 [R, n_rot/2], magnitude scale included."""

    cos: F32
    sin: F32
    interleaved: bool  # pairs (2i, 2i+1) as in llama GGUF files, else (i, i + n_rot/2)


@dataclass(frozen=True, eq=False)
class Equalizer:
    """Factors of a layer's channels (docs/CALIBRATION.md): k, v float32 [G, D], q, out float32 [H, D].

    k multiplies keys before they are stored, q the queries, with 1/k of the kv head that a query head reads, both after
    rope: scores stay what they were. v and out do the same to values and to the outputs of attention. None = stored as
    they are.
    """

    k: F32 | None = None
    q: F32 | None = None
    v: F32 | None = None
    out: F32 | None = None


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Weights and constants of one attention block. Norm weights are float32 [E] or [D], biases [H D] or [G D]; None =
    the step is absent."""

    norm: F32
    wq: QuantTensor
    wk: QuantTensor
    wv: QuantTensor
    wo: QuantTensor
    q_norm: F32 | None
    k_norm: F32 | None
    post_norm: F32 | None
    n_heads: int
    n_kv: int
    head_dim: int
    scale: float
    window: int  # keys a query sees including itself; 0 = all
    softcap: float  # 0 = none
    eps: float
    q_bias: F32 | None = None
    k_bias: F32 | None = None
    v_bias: F32 | None = None
    equalizer: Equalizer = Equalizer()


@dataclass(frozen=True, eq=False)
class MlpWeights:
    """Weights of one gated MLP block."""

    norm: F32
    gate: QuantTensor
    up: QuantTensor
    down: QuantTensor
    post_norm: F32 | None
    glu: Glu
    eps: float


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer, ready to run. group, rope: which of the step's slots and segments, and of its angles, are its own."""

    attention: AttentionWeights
    mlp: MlpWeights
    kv: LayerKV
    group: int
    rope: int


@dataclass(frozen=True, eq=False)
class Stack:
    """The layers of a model bound to arenas; made once, so that a backend may remember what it prepared for them."""

    layers: tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class Screen:
    """What tells rows of an output matrix that may have the largest logit from those that cannot (`polykv.ref.screen`).

    inverse float32 [E]: 1 / S, S a positive factor for every column. bounds float32 [V]: at least the length of S times
    what an estimate leaves out of a row, rounding included. largest: at least the length of S times any row.
    """

    inverse: F32
    bounds: F32
    largest: float


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Final norm and output matrix [V, E]. screen: None = greedy tokens take all logits."""

    norm: F32
    out: QuantTensor
    softcap: float  # 0 = none
    eps: float
    screen: Screen | None = None


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """All weights of a model; attention, mlp: of its layers. The head may share the matrix of the embedding."""

    embedding: QuantTensor
    attention: tuple[AttentionWeights, ...]
    mlp: tuple[MlpWeights, ...]
    head: HeadWeights


@dataclass(frozen=True, eq=False)
class Greedy:
    """Most likely tokens of R rows.

    ids int32 [R]: the lowest id of those with the largest logit. logits float32 [R]: that logit, or NaN when any logit
    of the row is not finite. exact int32 [R]: how many logits were computed exactly, V when all of them.
    """

    ids: I32
    logits: F32
    exact: I32
