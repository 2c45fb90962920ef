"""What a user should know about a session: fallbacks, assumptions, things that were reduced, ignored or done slowly.

One list, `LLM.notes`: the command line prints it on stderr, reports hold it, `--strict` makes an error of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from polykv.cache.clamped import at_limit
from polykv.types import WEIGHT_BLOCK, Activations, KVArena

if TYPE_CHECKING:
    from polykv.llm import LLM

NO_TEMPLATE = (
    "the model has no chat template: text is continued as it is, and questions are put as 'Question: ... Answer:'"
)

EMPTY_DOCUMENT = "the document of a pool is empty: its agents share only what stands before every question"


# Query heads of a K/V head that the attention of many rows takes on a GPU (polykv/fast/cuda/attend.py).
MOST_HEADS = 32


def session_notes(llm: LLM) -> Iterator[str]:
    """Notes that follow from what the session is; `LLM.notes` adds those of what it has done."""
    yield from llm.model.notes
    yield from llm.tokenizer.notes
    yield from _activations(llm)
    yield from _padding(llm)
    yield from (str(check) for check in llm.key_checks if check.lost)
    yield from _clamped(llm)
    yield from _device(llm)
    if llm.ops.name == "cpu":
        yield from _cpu()
    if llm.ops.name in ("cpu", "cuda"):
        yield from _kernels()


def shorter_context(context: int, limit: int) -> str:
    """Note of a context that was not asked for."""
    return f"the context is {context:,} tokens, of {limit:,} that the model could have: --ctx (ctx=) sets another"


def fewer_sequences(n: int, asked: int) -> str:
    """Note of a cache that is smaller than usual."""
    return f"the GPU has room for {n} sequences of full length, of the usual {asked}: a shorter --ctx has more of them"


def _device(llm: LLM) -> Iterator[str]:
    """What took more memory of a device than was planned."""
    plan = llm.device_plan
    if plan is None:
        return
    grown = llm.cache.counters["grown"]
    if grown:
        yield f"K/V grew {grown:,} times beyond what was planned, which copies it: more cells are `cache_tokens`"
    wide = sum(layer.n_heads > MOST_HEADS * layer.n_kv for layer in llm.config.layers)
    if wide:
        yield (
            f"{wide} layers have more than {MOST_HEADS} query heads to a K/V head: prompts are read there as few rows "
            "are, K and V again for every eight queries"
        )
    steps = llm.ops.held(llm.model.weights, llm.engine.runner.transformer.stack)["steps"]
    if steps > plan.parts["steps"]:
        more = steps - plan.parts["steps"]
        yield f"steps took {more / 1e6:,.0f} MB of the GPU more than was planned ({plan.parts['steps'] / 1e6:,.0f} MB)"


def _activations(llm: LLM) -> Iterator[str]:
    if llm.activations is not Activations.Q8:
        return
    matrices = llm.model.matrices
    floats = Counter(w.type.name for w in matrices if WEIGHT_BLOCK[w.type][0] == 1)
    for kind, n in floats.items():
        yield (
            f"{n} of {len(matrices)} weight matrices are {kind}: activations q8 has no effect on them, "
            "they are multiplied in float32, which is exact and slower"
        )
    if llm.ops.name == "cuda" and any(WEIGHT_BLOCK[w.type][0] == 1 for w in matrices if w is not llm.model.head.out):
        yield "steps of few rows start kernel by kernel: graphs are made of layers whose matrices are all quantized"


def _clamped(llm: LLM) -> Iterator[str]:
    for side, n in at_limit(llm.cache).items():
        if n:
            yield (
                f"{side}: {n:,} stored vectors are at the limit of their type's fp16 scale (65,504), what lay beyond "
                "it was clamped: bf16 and f32 hold such values"
            )


def _padding(llm: LLM) -> Iterator[str]:
    padded: Counter[tuple[str, str, int, int]] = Counter()
    for i in range(len(llm.config.layers)):
        kv = llm.cache.layer(i)
        for side, arena in (("K", kv.k), ("V", kv.v)):
            stored = _stored(arena)
            if stored > arena.head_dim:
                padded[side, arena.codec.name, arena.head_dim, stored] += 1
    for (side, name, head_dim, stored), layers in padded.items():
        yield (
            f"{side} as {name}: head_dim {head_dim} is padded to {stored} in {layers} layers, which costs "
            f"{stored / head_dim - 1:.0%} more memory"
        )


def _stored(arena: KVArena) -> int:
    """Values that memory holds for a head vector. Vectors of plain types are filled up as the backend likes."""
    codec = arena.codec
    if codec.block > 1:
        return codec.resident_dim(arena.head_dim)
    nbytes = arena.block_nbytes // arena.n_kv - codec.mean_bytes(arena.head_dim)
    return nbytes // (arena.block_size * codec.block_bytes)


def _cpu() -> Iterator[str]:
    from polykv.fast.cpu.simd_core import Level, level

    if level() is Level.PORTABLE:
        yield "this processor has no AVX2 with FMA: portable kernels run, several times slower"


def _kernels() -> Iterator[str]:
    from polykv.fast.kernel_store import cache_note

    note = cache_note()
    if note is not None:
        yield note
