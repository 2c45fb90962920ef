"""Prefixes that are found again: the same bits as a miss, for every tier, after eviction, with a useless hash, from a
file with several sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm
from tiny_models import random_ids

from polykv.cache import blocks
from polykv.cache.persist import load_sequences, save_sequences
from polykv.cache.sequence import Sequence
from polykv.errors import MismatchError
from polykv.llm import LLM
from polykv.types import F32

TIERS = ("f32", "f16", "q8_0", "q4_0", "turbo3", "q8_0/turbo3", "turbo3/q4_0")
OPTIONS = {"max_tokens": 8, "ignore_eog": True}


def next_logits(llm: LLM, ids: list[int]) -> tuple[int, F32]:
    """How many tokens of the prompt were found, and the logits behind it."""
    sequence, reused = Sequence.attach(llm.cache, ids)
    logits = llm.engine.runner.step([(sequence, ids[reused:])])
    sequence.free()
    return reused, logits


@pytest.mark.parametrize("kv", TIERS)
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_miss_hit_and_hit_after_eviction_are_equal_bit_for_bit(name: str, kv: str) -> None:
    llm, ids = tiny_llm(name, kv=kv, cache_tokens=304), random_ids(200, seed=3)
    reused, miss = next_logits(llm, ids)
    assert reused == 0
    reused, hit = next_logits(llm, ids)
    assert reused == 192
    np.testing.assert_array_equal(hit, miss)
    # A prompt that takes the free blocks and some of these; then one that takes all.
    for other, most in ((random_ids(150, seed=4), 191), (random_ids(300, seed=5), 0)):
        next_logits(llm, other)
        reused, again = next_logits(llm, ids)
        assert reused <= most
        np.testing.assert_array_equal(again, miss)
        np.testing.assert_array_equal(next_logits(llm, ids)[1], miss)
    assert sum(m.counters["evicted"] for m in llm.cache.managers) > 0


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_a_hash_that_always_collides_changes_no_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = random_ids(40, seed=1)
    prompts = [start + random_ids(60, seed=i) for i in (2, 3, 4)] + [random_ids(100, seed=5), start]
    want = [tiny_llm(name).generate(p, **OPTIONS).tokens for p in prompts]
    with tiny_llm(name).pool(DOCUMENT) as pool:
        answers = [a.tokens for a in pool.ask(QUESTIONS, **OPTIONS)]
    monkeypatch.setattr(blocks, "chain_hash", lambda parent, tokens: b"same")
    llm = tiny_llm(name)
    for _ in range(3):
        assert [llm.generate(p, **OPTIONS).tokens for p in prompts] == want
    assert [g.tokens for g in llm.generate_many(prompts, **OPTIONS)] == want
    with llm.pool(DOCUMENT) as pool:
        assert [a.tokens for a in pool.ask(QUESTIONS, **OPTIONS)] == answers


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_one_file_keeps_several_sessions_and_all_are_found_again(name: str, tmp_path: Path) -> None:
    llm = tiny_llm(name)
    with llm.pool(DOCUMENT) as pool:
        sessions = [pool.fork(), pool.fork(), llm.chat()]
        for i, agent in enumerate(sessions):
            agent.ask(QUESTIONS[i], **OPTIONS)
            agent.ask(QUESTIONS[i + 1], **OPTIONS)
        save_sequences(tmp_path / "p", [a.sequence for a in sessions])
        prompts = [[*a.sequence.tokens, 7] for a in sessions]
    want = [next_logits(tiny_llm(name), p)[1] for p in prompts]

    other = tiny_llm(name)
    for s in load_sequences(tmp_path / "p", other.cache):
        s.free()
    # A side task between them takes nobody's place.
    side = random_ids(50, seed=8)
    for _ in range(2):
        for prompt, logits in zip(prompts, want, strict=True):
            reused, got = next_logits(other, prompt)
            assert reused == (len(prompt) - 1) // other.cache.block_size * other.cache.block_size
            np.testing.assert_array_equal(got, logits)
            other.generate(side, **OPTIONS)


@pytest.mark.parametrize("kv", ["turbo4/turbo2_tcq", "turbo3_tcq/turbo8", "bf16/iq4_nl", "q6_0/q4_1", "q5_0/turbo4_ep"])
def test_types_without_kernels_survive_a_file(kv: str, tmp_path: Path) -> None:
    """On ref, in heads of 16 values: the codes of a file are those of memory, so the next logits are equal."""
    llm, other = (tiny_llm(kv=kv, backend="ref") for _ in range(2))
    with llm.pool(DOCUMENT) as pool, pool.fork() as agent:
        pool.save(tmp_path / "p")
        want = llm.engine.runner.step([(agent.sequence, [7])])
    with other.load_pool(tmp_path / "p") as pool, pool.fork() as agent:
        assert np.array_equal(other.engine.runner.step([(agent.sequence, [7])]), want)


# -- format versions -----------------------------------------------------------------------------------------------
def test_a_file_of_format_version_1_is_refused_with_what_to_do(golden: Path) -> None:
    llm = tiny_llm(kv="q8_0/turbo3")
    with pytest.raises(MismatchError) as error:
        llm.load_pool(golden / "pools" / "llama-q8_0-turbo3-v1.pool")
    message = str(error.value)
    assert "cache format version differs: the file has 1, this session has 2" in message
    assert "read the document again and save it anew" in message and "--save" in message


@pytest.mark.parametrize("backend", ["cpu", "ref"])
def test_a_file_of_format_version_2_is_still_read(golden: Path, tmp_path: Path, backend: str) -> None:
    """Saved on cpu; when it cannot be read any more, `identity.FORMAT_VERSION` must change."""
    path = golden / "pools" / "llama-q8_0-turbo3-v2.pool"
    llm = tiny_llm(kv="q8_0/turbo3", backend=backend)
    with llm.load_pool(path) as pool:
        assert pool.document == "The bridge of Brellin has seven arches."
        with pool.fork() as agent:
            got = llm.engine.runner.step([(agent.sequence, [7])])
        tokens = pool.tokens
        pool.save(tmp_path / "p")
    old, new = load_file(path), load_file(tmp_path / "p")
    assert old.keys() == new.keys()
    assert all(np.array_equal(old[name], new[name]) for name in old)
    with tiny_llm(kv="q8_0/turbo3").pool(pool.document) as fresh:
        assert fresh.tokens == tokens
    # Computed again: another processor may round a key to the code beside.
    np.testing.assert_allclose(got, next_logits(tiny_llm(kv="q8_0/turbo3"), [*tokens, 7])[1], atol=0.05)
