"""A head that finds greedy tokens in half of its matrix (`polykv.ref.screen`), prepared when a model is loaded.

The screen leaves few rows to be computed exactly when its factors know how large hidden states usually are, column by
column. So a text is run through the model once, some 60 ms, and the prepared head is tried on it: where too many rows
would be left, as for small vocabularies, the head stays as the file has it. Whether or not, tokens are the same.

A prepared matrix replaces that of the file, which is given back piece by piece while it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.config import CacheConfig
from polykv.model.loader import Model
from polykv.model.runner import Logits, Runner
from polykv.ops import Ops
from polykv.types import F32, Activations, WeightType

# Prose, speech, figures, code, questions, lists: what hidden states are like in texts of many kinds. At most LONGEST
# tokens are run; the first ones, whose states are like no others, do not count.
TEXT = """The harbour was quiet when she arrived. "How much is left?" he asked. In 1969 the company had sold 40 % of \
its shares, and the report, which came in March, did not say why. def mean(values): return sum(values) / len(values)
Question: What is the capital of Australia?
Answer: It is Canberra.
1. Le chat dort dans la maison. 2. Water boils at 100 degrees. I am sorry to hear that your parcel has not come yet."""
LONGEST, SKIPPED = 96, 4
# Matrices of fewer bytes are read from a cache anyway.
SMALL = 8 << 20
# Columns whose states are smaller than this part of the largest count as this large.
FLOOR = 1e-3
# Rows of the text that the prepared head is tried on, and the largest part of the matrix that they may compute exactly.
TRIED, MOST = 8, 0.25


def screened(
    ops: Ops, model: Model, cache: CacheConfig, encode: Callable[[str], list[int]], activations: Activations
) -> tuple[Model, str]:
    """The model with a head that has a screen, and "" or, with the model as it was, why it has none. encode: ids of a
    text."""
    head = model.head
    reason = _unfit(model, activations)
    if reason:
        return model, reason
    ids = encode(TEXT)[: min(LONGEST, model.config.context)]
    if len(ids) <= SKIPPED:
        return model, "the tokenizer makes nothing of a text"
    h = _states(ops, model, cache, ids, activations)
    name = "token_embd.weight" if model.config.tied_head else "output.weight"

    def give_back(row: int) -> None:
        model.gguf.give_back(name, row * head.out.data.shape[1])

    # What was read so far: some embeddings, and whatever large pages brought along.
    give_back(head.out.rows)
    inverse = factors(ops.fetch(ops.rms_norm(h, head.norm, head.eps)))
    found = ops.prepare_head(head, inverse, converted=give_back)
    if found.screen is None:
        return model, "the backend reads all of the output matrix, or its scales are not finite"
    rows = h[np.linspace(0, len(h) - 1, TRIED).astype(int)]
    part = np.mean([ops.greedy(r[None], found, activations=activations).exact for r in rows]) / head.out.rows
    if part > MOST:
        return model, f"its bounds are too wide: {part:.0%} of the logits would be computed again"
    embedding = found.out if model.config.tied_head else model.embedding
    return replace(model, head=found, embedding=embedding), ""


def _unfit(model: Model, activations: Activations) -> str:
    out = model.head.out
    if activations is not Activations.Q8:
        return "activations are f32"
    if out.type is not WeightType.Q8_0:
        return f"the output matrix is {out.type.name}, not Q8_0"
    if out.rows % 8:
        return f"the vocabulary of {out.rows:,} is no multiple of 8"
    if out.nbytes < SMALL:
        return "the output matrix is small"
    if model.head.softcap:
        return "logits are capped, and capped ones can be equal"
    return ""


def factors(x: F32) -> F32:
    """1 / S [E] of normed states x [R, E]: S^2 is their usual size, column by column, relative to the largest."""
    size = np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        squared = np.maximum(size / size.max(), FLOOR)
    # A model without numbers, or with nothing but zeros, says so when it is asked for logits.
    return np.sqrt(1 / np.where(np.isfinite(squared), squared, 1)).astype(np.float32)


def _states(ops: Ops, model: Model, cache: CacheConfig, ids: list[int], activations: Activations) -> F32:
    """Hidden states [R, E] of a text but its first tokens, before the final norm."""
    pool = KVPool(ops, model.config, cache, fingerprint=model.fingerprint, max_tokens=len(ids))
    runner = Runner(ops, model, pool, activations)
    return ops.fetch(runner.run([(Sequence(pool), ids)], Logits.ALL, lambda h: h))[SKIPPED:]
