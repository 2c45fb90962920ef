"""Centered keys, exact sinks and exact recent tokens: sharing, splitting, saving and trimming change no bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pool_lengths import NEXT, check_shared_is_separate, digests_elsewhere, prefill, save
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm
from tiny_models import random_ids, tiny_path

import polykv
from polykv.cache.group import Stage
from polykv.cache.sequence import Sequence
from polykv.errors import PolyKVError
from polykv.llm import LLM
from polykv.types import F32

KV = ("turbo3+c,sink=4/turbo3", "q4_0+r+c/q8_0,recent=70", "q8_0/turbo3,sink=64", "turbo3/q4_0,0=q8_0+c/f16,sink=9")
# Around blocks and units; the tiny gemma3 has a window of 16.
LENGTHS = (0, 1, 8, 63, 64, 65, 100, 127, 128, 200, 511)
models = pytest.mark.parametrize("name", ("llama", "gemma3"))
tiers = pytest.mark.parametrize("kv", KV)


def logits_of(llm: LLM, ids: list[int], pieces: list[int]) -> F32:
    """Logits of three more tokens after a prompt that is read in pieces."""
    sequence = Sequence(llm.cache)
    at = 0
    for n in pieces:
        llm.engine.runner.step([(sequence, ids[at : at + n])])
        at += n
    if at < len(ids):
        llm.engine.runner.step([(sequence, ids[at:])])
    logits = llm.engine.runner.step([(sequence, NEXT)])
    sequence.free()
    return logits


@models
@tiers
def test_forks_equal_separate_runs(name: str, kv: str) -> None:
    shared, separate = tiny_llm(name, kv=kv), tiny_llm(name, kv=kv)
    for n in LENGTHS:
        check_shared_is_separate(shared, separate, random_ids(n, seed=n))


@models
@tiers
def test_the_split_of_a_prompt_changes_nothing(name: str, kv: str) -> None:
    llm, ids = tiny_llm(name, kv=kv), random_ids(300, seed=1)
    want = logits_of(llm, ids, [])
    for pieces in ([1] * 130, [63, 1, 64], [65, 100, 27], [256], [5] * 59):
        fresh = tiny_llm(name, kv=kv)
        np.testing.assert_array_equal(logits_of(fresh, ids, pieces), want)


@models
@tiers
def test_a_found_prefix_equals_one_that_is_computed(name: str, kv: str) -> None:
    llm, ids = tiny_llm(name, kv=kv), random_ids(200, seed=3)
    first = prefill(llm, ids)
    want = llm.engine.runner.step([(first, NEXT)])
    first.free()
    again, reused = Sequence.attach(llm.cache, ids)
    # Exact cells of the unit that is not complete may be gone; what is coded is there.
    assert reused in (128, 192)
    llm.engine.runner.step([(again, ids[reused:])])
    np.testing.assert_array_equal(llm.engine.runner.step([(again, NEXT)]), want)
    other, reused = Sequence.attach(llm.cache, [*ids[:150], 1, 2, 3])
    assert reused in (128, 144)
    llm.engine.runner.step([(other, [*ids[reused:150], 1, 2, 3])])
    fresh = tiny_llm(name, kv=kv)
    alone = prefill(fresh, [*ids[:150], 1, 2, 3])
    got, expected = (x.engine.runner.step([(s, NEXT)]) for x, s in ((llm, other), (fresh, alone)))
    np.testing.assert_array_equal(got, expected)


@tiers
def test_files_come_back_bit_equal_in_another_process(kv: str, tmp_path: Path) -> None:
    lengths = (0, 5, 64, 100, 200)
    llm = tiny_llm("gemma3", kv=kv)
    files = [tmp_path / f"{n}.pool" for n in lengths]
    want = [save(llm, random_ids(n, seed=n), file) for n, file in zip(lengths, files, strict=True)]
    assert digests_elsewhere(tiny_path("gemma3"), {"kv": kv, "activations": "f32", "ctx": 2048}, files) == want


@models
@pytest.mark.parametrize("backend", ("ref", "cpu"))
@pytest.mark.parametrize("kv", ("f32+c/f32", "f32,sink=5", "f32+c/f32,sink=64,recent=65"))
def test_without_quantization_nothing_is_lost(name: str, backend: str, kv: str) -> None:
    """<q, k> = <q, k - m> + <q, m>, and parts of a softmax are merged exactly."""
    ids = random_ids(200, seed=5)
    want = logits_of(tiny_llm(name, kv="f32", backend=backend), ids, [])
    np.testing.assert_allclose(logits_of(tiny_llm(name, kv=kv, backend=backend), ids, []), want, rtol=0, atol=1e-5)


@models
@tiers
def test_backends_agree(name: str, kv: str) -> None:
    ids = random_ids(150, seed=6)
    got, want = (logits_of(tiny_llm(name, kv=kv, backend=b), ids, []) for b in ("cpu", "ref"))
    # One code that is turned shows in all that follows.
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-2)


@tiers
def test_a_trimmed_history_goes_on_as_if_nothing_had_been(kv: str) -> None:
    llm, fresh = tiny_llm("llama", kv=kv), tiny_llm("llama", kv=kv)
    with llm.pool(DOCUMENT) as pool, fresh.pool(DOCUMENT) as other:
        agent, twin = pool.fork(), other.fork()
        options = {"max_tokens": 40, "ignore_eog": True}
        first = agent.ask(QUESTIONS[0], **options).tokens
        agent.ask(QUESTIONS[1], **options)
        agent.trim(agent.turns[-1])
        assert twin.ask(QUESTIONS[0], **options).tokens == first
        assert agent.ask(QUESTIONS[2], **options).tokens == twin.ask(QUESTIONS[2], **options).tokens


@models
def test_memory_counts_coded_and_exact_cells(name: str) -> None:
    llm = tiny_llm(name, kv="turbo3+c/turbo3,sink=4")
    with llm.pool("x" * 200) as pool:
        agent = pool.fork()
        agent.ask(QUESTIONS[0], max_tokens=3, ignore_eog=True)
        memory, cache = pool.memory(), llm.cache
        assert (
            memory.total
            == cache.used_nbytes
            == sum(
                len({*pool._sequence.used_blocks()[g.index], *agent.sequence.used_blocks()[g.index]})
                * cache.block_nbytes(g.index)
                for g in cache.groups
            )
        )
        half = tiny_llm(name, kv="f16")
        with half.pool("x" * 200) as plain:
            reader = plain.fork()
            reader.ask(QUESTIONS[0], max_tokens=3, ignore_eog=True)
            assert [reader.sequence.length] == [agent.sequence.length]
            assert plain.memory().f16_per_agent == memory.f16_per_agent
        stages = {g.stage for g in cache.groups}
        assert stages == {Stage.CODED, Stage.EXACT}
        plan = llm.plan(ctx=300, agents=2, shared=200)
        assert plan.nbytes == sum(x.k_nbytes + x.v_nbytes for x in plan.layers) >= memory.total


@pytest.mark.parametrize("kv", ["turbo3+c/turbo3,sink=4", "turbo3/turbo3,recent=100", "q8_0/turbo3,sink=9,recent=70"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_every_token_is_one_cell(name: str, kv: str) -> None:
    """Also where it is coded and exact."""
    llm = tiny_llm(name, kv=kv)
    with llm.pool("x" * 200) as pool:
        assert pool.memory().cells == pool._sequence.length > 128
        agents = [pool.fork() for _ in range(2)]
        for agent in agents:
            agent.ask(QUESTIONS[0], max_tokens=70, ignore_eog=True)
        lengths = [agent.sequence.length for agent in agents]
        memory = pool.memory()
        assert memory.separate_cells == sum(lengths) > memory.cells > max(lengths)


def test_questions_of_a_pool_equal_separate_answers() -> None:
    options = {"max_tokens": 30, "ignore_eog": True}
    llm, separate = (tiny_llm("gemma3", kv="turbo3+c/turbo3,sink=4", cache_tokens=4096) for _ in range(2))
    with llm.pool(DOCUMENT) as pool:
        answers = pool.ask(QUESTIONS, **options)
        for question, answer in zip(QUESTIONS, answers, strict=True):
            ids = separate.prompts.first(question, pool.document)
            assert answer.tokens == separate.generate(ids, stop=separate.prompts.stop, **options).tokens


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        ("turbo4+c", "+c is for K: turbo4+c/turbo4"),
        ("q8_0/turbo3+c", "would hold V"),
        ("turbo3,sink=65", "more than 64"),
        ("turbo3,sink=-1", "not a number of positions"),
        ("turbo3,recent", "not a number of positions"),
        ("turbo3,sink=1/f16,sink=2", "given twice"),
        ("turbo3,sinks=4", "nor is it sink or recent"),
        ("turbo3/f16/q8_0", "unknown K/V type"),
        ("q4_0+c+c", "unknown addition '+c+c'"),
    ],
)
def test_mistakes_in_a_tier_are_named(kv: str, message: str) -> None:
    with pytest.raises(PolyKVError) as error:
        tiny_llm("llama", kv=kv)
    assert message in str(error.value)


def test_vectors_alone_cannot_be_centered() -> None:
    with pytest.raises(PolyKVError, match="exists in caches only"):
        polykv.quantize("turbo4+c", np.ones((2, 64), np.float32))


def test_centered_keys_of_a_model_with_key_biases() -> None:
    """Checked when the model is opened, as other types are; the bias is part of the mean."""
    ids = random_ids(150, seed=7)
    got, want = (logits_of(tiny_llm("qwen2", kv=kv), ids, []) for kv in ("turbo4+c/turbo8,sink=4", "f32"))
    plain = logits_of(tiny_llm("qwen2", kv="turbo4/turbo8,sink=4"), ids, [])
    assert np.abs(got - want).mean() < np.abs(plain - want).mean()
