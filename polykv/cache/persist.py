"""Save sequences with their K/V to one file and load them in another process, without re-encoding.

Sections (safetensors, see `container`): `lengths` [n], `tokens` of all sequences in a row, `table.G` the block tables
of cache group G in a row, and `layer.I.k`, `layer.I.v` [blocks of the group, block size, kv heads, bytes] in the
packed layout (docs/FORMATS.md); `layer.I.exact.k`, `layer.I.exact.v` of layers that have exact cells; `since.G` [n],
`BlockTable.since` of the sequences, where one is not 0. A block that several sequences share is stored once; tables
number the stored blocks of their group from 0, -1 is a block that is not read any more.

Loading checks everything, checksums included, before the pool is touched. Blocks of another size, of another backend,
are cut or put together on the way (`regroup`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polykv.cache.block_table import BlockTable
from polykv.cache.container import Container, Section, write_file
from polykv.cache.group import CacheGroup, make_groups
from polykv.cache.identity import Identity
from polykv.cache.pool import KVPool, exact_of
from polykv.cache.regroup import Regrouped, fits, regroup
from polykv.cache.sequence import Sequence
from polykv.errors import ConfigError, MismatchError
from polykv.types import I32, U8, UNIT, KVArena

FORMAT = "polykv-pool"
# Blocks that are packed or unpacked at a time: bounds the memory of a save or load.
_SLAB = 64
MAX_SEQUENCES = 1 << 16


def save_sequences(path: str | Path, sequences: list[Sequence], *, extra: dict[str, str] | None = None) -> int:
    """Write committed sequences of one pool, in order, and `extra` texts of the caller; returns the file's bytes.

    Raises ConfigError when there is nothing to save or the sequences are not of one pool.
    """
    if not sequences or any(s.pool is not sequences[0].pool for s in sequences):
        raise ConfigError("save needs at least one sequence, all of one pool")
    if len(sequences) > MAX_SEQUENCES:
        raise ConfigError(f"{len(sequences)} sequences: one file holds {MAX_SEQUENCES} at most")
    pool = sequences[0].pool
    blocks, tables, valid = zip(*(_renumber(pool, g, sequences) for g in range(len(pool.groups))), strict=True)
    small: dict[str, I32] = {
        "lengths": np.array([s.length for s in sequences], np.int32),
        "tokens": np.array([t for s in sequences for t in s.tokens], np.int32),
    }
    small |= {f"table.{g}": t for g, t in enumerate(tables)}
    since = [np.array([s.block_tables[g].since for s in sequences], np.int32) for g in range(len(pool.groups))]
    small |= {f"since.{g}": x for g, x in enumerate(since) if x.any()}
    sections = [Section(name, "I32", a.shape) for name, a in small.items()]
    sections += [
        Section(name, "U8", shape) for name, shape in _layer_shapes(pool, pool.groups, [len(b) for b in blocks])
    ]

    def data(name: str) -> Iterable[npt.NDArray[np.generic]]:
        if name in small:
            return [small[name]]
        arena, g = _arena(pool, name)
        return _packed(pool, arena, blocks[g], valid[g])

    metadata = {
        "format": FORMAT,
        "identity": pool.identity.to_json(),
        "model_name": pool.model.name,
        "extra": json.dumps(extra or {}),
    }
    return write_file(Path(path), metadata, sections, data)


def _renumber(pool: KVPool, g: int, sequences: list[Sequence]) -> tuple[I32, I32, I32]:
    """Blocks to store of group g, the tables in their numbers, and the valid cells of each."""
    number: dict[int, int] = {}
    valid: dict[int, int] = {}
    tables: list[int] = []
    for s in sequences:
        group, ids = pool.groups[g], s.block_tables[g].ids
        own = np.full(len(ids), -1, np.int32)
        for i in group.held(s.length):
            b = int(ids[i])
            own[i] = number.setdefault(b, len(number))
            valid[b] = max(valid.get(b, 0), min(group.size, s.length - i * group.size))
        tables += own.tolist()
    return np.array(list(number), np.int32), np.array(tables, np.int32), np.array(list(valid.values()), np.int32)


def _packed(pool: KVPool, arena: KVArena, blocks: I32, valid: I32) -> Iterator[U8]:
    for i in range(0, len(blocks), _SLAB):
        data = np.array(pool.ops.fetch(pool.ops.kv_pack(arena, blocks[i : i + _SLAB])))
        # Cells behind the last token may still hold what an earlier sequence wrote there; it is not ours to give.
        beyond = np.arange(arena.block_size) >= valid[i : i + _SLAB, None]
        data[:, : arena.block_size][beyond] = 0
        yield data


def _layer_shapes(
    pool: KVPool, groups: tuple[CacheGroup, ...], n_blocks: list[int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the sections of K and V, for so many blocks of each group."""
    for i in range(len(pool.model.layers)):
        sides = ("k", "v") if pool.layer(i).exact is None else ("k", "v", "exact.k", "exact.v")
        for name in (f"layer.{i}.{side}" for side in sides):
            a, g = _arena(pool, name)
            rows = a.codec.packed_rows(a.head_dim, groups[g].size)
            yield name, (n_blocks[g], rows, a.n_kv, a.codec.packed_bytes(a.head_dim))


def _arena(pool: KVPool, name: str) -> tuple[KVArena, int]:
    _, i, *side = name.split(".")
    kv, g = pool.layer(int(i)), pool.group_of(int(i))
    if side[0] == "exact":
        kv, g = exact_of(kv), pool.groups[g].exact
    return (kv.k if side[-1] == "k" else kv.v), g


# -- reading ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PoolFile:
    """What a file says about itself, for callers that stored `extra` texts. model_name: for people; the identity
    decides."""

    identity: Identity
    model_name: str
    lengths: tuple[int, ...]
    extra: dict[str, str]
    nbytes: int


def read_info(path: str | Path) -> PoolFile:
    """The description of a saved pool; the K/V is neither read nor verified."""
    with Container(Path(path)) as file:
        identity = _identity(file)
        if "lengths" not in file.sections:
            raise file.error("lengths", "is missing")
        lengths = tuple(file.array("lengths").tolist())
        return PoolFile(identity, _model_name(file), lengths, file.json("extra"), file.size)


def load_sequences(path: str | Path, pool: KVPool) -> list[Sequence]:
    """The saved sequences, in order, in blocks of `pool`; their prefixes can be reused as if computed here. Sequences
    with a window that come from smaller blocks cannot be cut back to where the window would reach further back.

    Raises MismatchError naming the field when the file belongs to another model or cache, FormatError when it is
    malformed or damaged, CapacityError when there is no room. In all these cases the pool is as it was.
    """
    with Container(Path(path)) as file:
        saved = _Saved(file, pool, _groups(file, pool))
        file.verify()
        with pool.lock:
            return _place(file, saved, pool)


def _groups(file: Container, pool: KVPool) -> tuple[CacheGroup, ...]:
    """Cache groups as the file has them: those of the pool, but for the size of blocks. Raises MismatchError."""
    theirs, names = _identity(file), (_model_name(file), pool.model.name)
    size, ours = theirs.block_size, pool.block_size
    staged = any(t.staged for t in pool.tiers)
    if size % 8 or not fits(size, ours) or (staged and UNIT % size):
        raise MismatchError("block size", size, ours, names)
    pool.identity.check(replace(theirs, block_size=ours), names)
    return make_groups(pool.model, pool.tiers, size)


def _place(file: Container, saved: _Saved, pool: KVPool) -> list[Sequence]:
    """The checked file in blocks of the pool."""
    if pool.torn:
        pool.mend()
    made = saved.regrouped()
    n_blocks = [len(m.pieces) for m in made]
    for g, n in enumerate(n_blocks):
        pool.require(g, n)
    taken: list[list[int]] = [[] for _ in pool.groups]
    try:
        for g, n in enumerate(n_blocks):
            pool.make_room(g, n)
            taken[g] += [pool.managers[g].alloc() for _ in range(n)]
        for name, _ in _layer_shapes(pool, pool.groups, n_blocks):
            arena, g = _arena(pool, name)
            blocks = np.array(taken[g], np.int32)
            for i in range(0, len(blocks), _SLAB):
                pool.ops.kv_unpack(arena, blocks[i : i + _SLAB], made[g].read(file, name, i, _SLAB))
        return saved.sequences(made, taken)
    except BaseException:
        # What was taken is in no table: counting anew gives it back, wherever this broke off.
        pool.mend()
        raise


def _identity(file: Container) -> Identity:
    if file.metadata.get("format") != FORMAT:
        raise file.error("format", f"not a polykv pool file: its format is not {FORMAT}")
    return Identity.from_json(file.metadata.get("identity", ""), file.path)


def _model_name(file: Container) -> str:
    return file.metadata.get("model_name", "unknown")


class _Saved:
    """The small sections of a file, checked against the pool: sizes, ids, tables, and sharing that makes sense."""

    def __init__(self, file: Container, pool: KVPool, groups: tuple[CacheGroup, ...]) -> None:
        self._file, self._pool, self._groups = file, pool, groups
        names = ["lengths", "tokens", *(f"table.{g}" for g in range(len(groups)))]
        names += [name for name in (f"since.{g}" for g in range(len(groups))) if name in file.sections]
        for name in names:
            s = file.sections.get(name)
            if s is None or s.dtype != "I32" or len(s.shape) != 1:
                raise file.error(name, "is missing or not a list of 32-bit integers")
        lengths = file.array("lengths").astype(np.int64)
        tokens = file.array("tokens")
        if not 0 < len(lengths) <= MAX_SEQUENCES:
            raise file.error("lengths", f"must list 1 to {MAX_SEQUENCES} sequences, has {len(lengths)}")
        if (lengths < 0).any() or lengths.sum() != len(tokens):
            raise file.error("lengths", f"do not add up to the {len(tokens)} tokens of the file")
        if len(tokens) and not (tokens.min() >= 0 and tokens.max() < pool.model.vocab):
            raise file.error("tokens", f"has ids outside the vocabulary of {pool.model.vocab}")
        self.tokens: list[I32] = np.split(tokens, np.cumsum(lengths)[:-1])
        self.tables = [self._split_table(g) for g in range(len(groups))]
        self.since = [self._since_of(g) for g in range(len(groups))]
        self.n_blocks = [1 + max((int(t.max()) for t in ts if len(t)), default=-1) for ts in self.tables]
        shapes = dict(_layer_shapes(pool, groups, self.n_blocks))
        for name, shape in shapes.items():
            s = file.sections.get(name)
            if s is None or s.dtype != "U8" or s.shape != shape:
                raise file.error(name, f"must be bytes of shape {shape}" + (f", has {s.shape}" if s else ""))
        if set(file.sections) != {*names, *shapes}:
            raise file.error("header", "has sections that do not belong to a pool")
        for g in range(len(groups)):
            self._check_sharing(g)

    def _split_table(self, g: int) -> list[I32]:
        table: I32 = self._file.array(f"table.{g}")
        sizes = [self._groups[g].n_blocks(len(ids)) for ids in self.tokens]
        if sum(sizes) != len(table):
            raise self._file.error(f"table.{g}", f"has {len(table)} blocks for {sum(sizes)}")
        parts = np.split(table, np.cumsum(sizes)[:-1])
        for ids, part in zip(self.tokens, parts, strict=True):
            held = np.zeros(len(part), np.bool_)
            held[self._held(g, len(ids))] = True
            if (part[~held] != -1).any() or (part[held] < 0).any():
                raise self._file.error(f"table.{g}", "does not hold exactly the blocks that are needed")
        return parts

    def _since_of(self, g: int) -> list[int]:
        """`BlockTable.since` of every sequence in a group."""
        name = f"since.{g}"
        if name not in self._file.sections:
            return [0] * len(self.tokens)
        found: list[int] = self._file.array(name).tolist()
        first = [self._groups[g].first_cell(len(ids)) for ids in self.tokens]
        if len(found) != len(first) or not all(0 <= x <= n for x, n in zip(found, first, strict=True)):
            raise self._file.error(name, "must have a position for every sequence, before the cells that it reads")
        return found

    def _held(self, g: int, length: int) -> list[int]:
        return list(self._groups[g].held(length))

    def _check_sharing(self, g: int) -> None:
        """A block may serve several sequences only at one position and after equal tokens; none may be unused."""
        size, name = self._groups[g].size, f"table.{g}"
        owner: dict[int, tuple[int, int]] = {}
        agree: dict[tuple[int, int], int] = {}
        for s, part in enumerate(self.tables[g]):
            for i in self._held(g, len(self.tokens[s])):
                r, at = owner.setdefault(int(part[i]), (s, i))
                if at != i:
                    raise self._file.error(name, "uses one block at two positions")
                if r != s:
                    agree[r, s] = i
        if len(owner) != self.n_blocks[g]:
            raise self._file.error(name, "leaves stored blocks unused")
        for (r, s), i in agree.items():
            end = min((i + 1) * size, len(self.tokens[r]), len(self.tokens[s]))
            if not np.array_equal(self.tokens[r][:end], self.tokens[s][:end]):
                raise self._file.error(name, "shares a block between sequences of different tokens")

    def regrouped(self) -> list[Regrouped]:
        """The blocks of every group in the size of the pool's."""
        lengths = [len(ids) for ids in self.tokens]
        groups = zip(self.tables, self.since, self._groups, self._pool.groups, strict=True)
        return [regroup(tables, lengths, since, old, new) for tables, since, old, new in groups]

    def sequences(self, made: list[Regrouped], taken: list[list[int]]) -> list[Sequence]:
        """Sequences whose stored blocks are the pool's blocks `taken`, every one of which has one reference."""
        pool = self._pool
        found = []
        for s, ids in enumerate(self.tokens):
            tables = []
            for group, manager, blocks in zip(pool.groups, pool.managers, made, strict=True):
                own = np.full(group.n_blocks(len(ids)), -1, np.int32)
                for i in group.held(len(ids)):
                    own[i] = taken[group.index][blocks.tables[s][i]]
                    manager.retain(int(own[i]))
                tables.append(BlockTable(own, group.first_block(len(ids)), group.lead, blocks.since[s]))
            found.append(Sequence.restore(pool, ids.tolist(), tables))
        for manager, numbers in zip(pool.managers, taken, strict=True):
            for b in numbers:
                manager.release(b)
        return found
