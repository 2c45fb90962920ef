"""Documents that end at, before and behind every border: block, unit of attention, sliding window, nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pool_lengths import LENGTHS, check_shared_is_separate, digests_elsewhere, save
from tiny_llm import QUESTIONS, tiny_llm
from tiny_models import random_ids, tiny_path

from polykv.llm import LLM

OPTIONS = {"max_tokens": 6, "ignore_eog": True}
KV = ("f32", "q8_0/turbo3", "turbo3/q4_0", "turbo3+c/turbo3,sink=4")
# The tiny gemma3 has a window of 16.
BORDERS = (*LENGTHS, 15, 16, 17)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_forks_of_a_prefix_of_any_length_equal_separate_runs(name: str, kv: str) -> None:
    shared, separate = tiny_llm(name, kv=kv), tiny_llm(name, kv=kv)
    for n in BORDERS:
        check_shared_is_separate(shared, separate, random_ids(n, seed=n))


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_prefixes_of_any_length_come_back_bit_equal_in_another_process(name: str, kv: str, tmp_path: Path) -> None:
    options = {"kv": kv, "activations": "f32", "ctx": 2048}
    llm = tiny_llm(name, kv=kv)
    files = [tmp_path / f"{n}.pool" for n in BORDERS]
    want = [save(llm, random_ids(n, seed=n), file) for n, file in zip(BORDERS, files, strict=True)]
    assert digests_elsewhere(tiny_path(name), options, files) == want


def document_of(llm: LLM, n: int) -> str:
    """A text of exactly n tokens."""
    text = "x" * n
    assert len(llm.tokenize(text, special=False)) == n
    return text


@pytest.mark.parametrize(("name", "chat"), [("llama", True), ("llama", False), ("gemma3", False)])
@pytest.mark.parametrize("n", LENGTHS)
def test_a_pool_over_a_document_of_any_length(name: str, chat: bool, n: int, tmp_path: Path) -> None:
    llm, separate = (tiny_llm(name, chat=chat, kv="q8_0/turbo3") for _ in range(2))
    with llm.pool(document_of(llm, n)) as pool:
        answers = pool.ask(QUESTIONS, **OPTIONS)
        for question, answer in zip(QUESTIONS, answers, strict=True):
            ids = separate.prompts.first(question, pool.document)
            assert answer.tokens == separate.generate(ids, stop=separate.prompts.stop, **OPTIONS).tokens
        pool.save(tmp_path / "p")
    with llm.load_pool(tmp_path / "p") as pool:
        assert [a.tokens for a in pool.ask(QUESTIONS, **OPTIONS)] == [a.tokens for a in answers]
        assert json.loads(json.dumps(pool.memory().as_dict()))["prefix_tokens"] == len(pool.tokens) >= n
