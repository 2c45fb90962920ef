"""Runs samples on a model, greedily, and says how each answer ended.

An answer that never came is no wrong answer: empty ones and those that ran out of time are "no data" and do not count.
Answers that reached their budget do count, and are marked, for the budget leaves room for more than was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from typing import Any

from polykv.engine_options import make_request
from polykv.engine_request import Finish, Request
from polykv.evals.ids import ids_digest
from polykv.evals.kept import NOWHERE, Kept
from polykv.evals.sample import Count, Sample, Turns, begun, transcript
from polykv.evals.scoring import clean
from polykv.llm import LLM

# Samples that run side by side: they share nothing, so more of them save little and take more memory.
BATCH = 4


class End(Enum):
    """How an answer ended."""

    STOP = "stop"  # by itself
    LENGTH = "length"  # its budget is used up
    CONTEXT = "context"  # the context is full
    TIMEOUT = "timeout"  # it took too long


_ENDS = {
    Finish.EOG: End.STOP,
    Finish.STOP: End.STOP,
    Finish.LENGTH: End.LENGTH,
    Finish.CONTEXT: End.CONTEXT,
    Finish.CANCELLED: End.TIMEOUT,
}


@dataclass(frozen=True)
class Answer:
    """text: what was generated, without the sample's prefix. tokens: how many. seconds: of the steps that it took part
    in, beside others. mode: "template" (a turn of a chat) or "raw" (text continued)."""

    sample: Sample
    text: str
    tokens: int
    finish: End
    seconds: float
    mode: str

    @property
    def data(self) -> bool:
        """Whether there is anything to score."""
        return self.finish is not End.TIMEOUT and bool(clean(self.text))

    @property
    def capped(self) -> bool:
        """Whether something other than the model ended it."""
        return self.finish in (End.LENGTH, End.CONTEXT)


def prompt_ids(llm: LLM, prompt: str, prefix: str = "", history: Turns = (), raw: bool = False) -> list[int]:
    """Token ids of a conversation up to where the model goes on.

    With a chat template the prefix stands at the beginning of the model's turn. Without one, or with raw, everything is
    one text.
    """
    prompts = llm.prompts
    if raw or prompts.template is None:
        return prompts.text(begun(transcript(history, prompt), prefix))
    turns = [{"role": role, "content": content} for role, content in (*history, ("user", prompt))]
    ids = prompts.messages(turns)
    return ids + prompts.text(prefix, begin=False) if prefix else ids


def counter(llm: LLM) -> Count:
    """Counts tokens as this model will read them."""

    def count(prompt: str, prefix: str = "", history: Turns = (), raw: bool = False) -> int:
        return len(prompt_ids(llm, prompt, prefix, history, raw))

    return count


def run(
    llm: LLM,
    samples: Seq[Sample],
    *,
    time_limit: float | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    kept: Kept = NOWHERE,
) -> list[Answer]:
    """Answer samples, in order. time_limit: seconds for one answer. on_progress(done, total) counts samples.

    kept: answers that are there are not asked for again; those that ran out of time are, for the next machine, or the
    next moment, may be faster.
    """
    # Prompts are made twice for that, so only where it is of use.
    own = [_own(llm, s, time_limit) if kept.store is not None else {} for s in samples]
    found = {i: _from_json(s, known) for i, s in enumerate(samples) if (known := kept.get(**own[i])) is not None}
    missing = [i for i in range(len(samples)) if i not in found]
    if on_progress and found:
        on_progress(len(found), len(samples))
    for at in range(0, len(missing), BATCH):
        now = missing[at : at + BATCH]
        for i, answer in zip(now, _batch(llm, [samples[i] for i in now], time_limit), strict=True):
            found[i] = answer
            if answer.finish is not End.TIMEOUT:
                kept.add(_to_json(answer), **own[i])
        if on_progress:
            on_progress(len(found), len(samples))
    return [found[i] for i in range(len(samples))]


def _own(llm: LLM, sample: Sample, time_limit: float | None) -> dict[str, Any]:
    """What an answer depends on, and what a reader of the store wants to know."""
    d = sample.draft
    told = {"kv": llm.kv, "task": sample.task, "length": sample.length, "seed": sample.seed, "index": sample.index}
    read = {"prompt": ids_digest([prompt_ids(llm, d.prompt, d.prefix, d.history, d.raw)]), "mode": _mode(llm, sample)}
    limits = {"budget": sample.budget, "time_limit": time_limit}
    return {**told, "cache": llm.cache.identity.hash_seed().hex(), **read, **limits}


def _to_json(a: Answer) -> dict[str, Any]:
    return {"text": a.text, "tokens": a.tokens, "finish": a.finish.value, "seconds": a.seconds, "mode": a.mode}


def _from_json(sample: Sample, value: dict[str, Any]) -> Answer:
    return Answer(sample, value["text"], value["tokens"], End(value["finish"]), value["seconds"], value["mode"])


def _batch(llm: LLM, samples: Seq[Sample], time_limit: float | None) -> list[Answer]:
    requests = [_request(llm, s) for s in samples]
    try:
        for r in requests:
            llm.engine.submit(r)
        began = time.perf_counter()
        while not all(r.done for r in requests):
            llm.engine.step()
            # The steps of a batch are common to all in it, so all of them run out of time together.
            if time_limit is not None and time.perf_counter() - began > time_limit * len(requests):
                llm.engine.drop(requests)
    except BaseException:
        llm.engine.drop(requests)
        raise
    return [_answer(llm, s, r) for s, r in zip(samples, requests, strict=True)]


def _request(llm: LLM, sample: Sample) -> Request:
    d = sample.draft
    ids = prompt_ids(llm, d.prompt, d.prefix, d.history, d.raw)
    # A model without turns would go on with the user's next one.
    stop = ("\n\nUser:",) if d.history and _mode(llm, sample) == "raw" else ()
    return make_request(ids, stop=stop, max_tokens=sample.budget)


def _answer(llm: LLM, sample: Sample, request: Request) -> Answer:
    g = request.result()
    seconds = g.stats.prefill_s + g.stats.decode_s
    return Answer(sample, g.text, len(g.tokens), _ENDS[g.finish_reason], seconds, _mode(llm, sample))


def _mode(llm: LLM, sample: Sample) -> str:
    return "raw" if sample.draft.raw or llm.prompts.template is None else "template"
