"""SharedKVPool: held once, read by many, and nobody can tell from the answers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm

from polykv.cache.persist import save_sequences
from polykv.cache.sequence import Sequence
from polykv.engine_request import Finish
from polykv.errors import CapacityError, ConfigError, FormatError, MismatchError, PromptError
from polykv.llm import LLM
from polykv.shared_pool import SharedKVPool
from polykv.types import UNIT

VARIANTS = [("llama", True), ("llama", False), ("gemma3", False)]
OPTIONS = {"max_tokens": 9, "ignore_eog": True}


def in_use(llm: LLM) -> int:
    return sum(m.n_used for m in llm.cache.managers)


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
@pytest.mark.parametrize("sampling", ({}, {"temperature": 2.0, "seed": 5}))
def test_agents_of_a_pool_answer_as_separate_runs(name: str, chat: bool, sampling: dict) -> None:
    llm = tiny_llm(name, chat=chat)
    pool = llm.pool(DOCUMENT)
    answers = pool.ask(QUESTIONS, **OPTIONS, **sampling)
    counters = llm.cache.counters
    assert counters["shared_segments"] > 0
    assert counters["shared_rows"] >= len(QUESTIONS) * counters["shared_segments"] // len(llm.cache.groups) // 2
    for question, answer, agent in zip(QUESTIONS, answers, pool.agents, strict=True):
        separate = tiny_llm(name, chat=chat)
        ids = separate.prompts.first(question, DOCUMENT)
        alone = separate.generate(ids, stop=separate.prompts.stop, **OPTIONS, **sampling)
        assert answer.tokens == alone.tokens
        assert answer.text == alone.text
        assert alone.stats.cache_n == 0
        assert answer.stats.cache_n >= len(pool.tokens) - 3
        # Not only the choice: the logits behind it are equal bit for bit.
        fresh = Sequence(separate.cache)
        want = separate.engine.runner.step([(fresh, [*agent.sequence.tokens, 7])])
        np.testing.assert_array_equal(llm.engine.runner.step([(agent.sequence, [7])]), want)


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
def test_the_document_is_read_once_per_step_for_all(name: str, chat: bool) -> None:
    llm = tiny_llm(name, chat=chat)
    pool = llm.pool(DOCUMENT)
    agents = [pool.fork() for _ in range(6)]
    for a in agents:
        a.ask("What?", **OPTIONS)
    before, counters = Counter(llm.cache.counters), llm.cache.counters
    steps = llm.engine.runner.counters.steps
    batch = [(a.sequence, [9]) for a in agents]
    llm.engine.runner.step(batch)
    assert llm.engine.runner.counters.steps == steps + 1
    # Full attention: the whole units of the document once, the rest per agent.
    whole = len(pool.tokens) // UNIT * UNIT
    own = sum(a.sequence.length - whole for a in agents)
    shared = counters["shared_cells"] - before["shared_cells"]
    assert shared >= whole
    if len(llm.cache.groups) == 1:
        assert counters["cells"] - before["cells"] == whole + own


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
@pytest.mark.parametrize("kv", ("q8_0/turbo3", "f16"))
def test_memory_is_the_blocks_that_are_there(name: str, chat: bool, kv: str) -> None:
    llm = tiny_llm(name, chat=chat, kv=kv)
    pool = llm.pool(DOCUMENT)
    assert (pool.memory().shared, pool.memory().private) == (llm.cache.used_nbytes, [])
    answers = pool.ask(QUESTIONS, **OPTIONS)
    m = pool.memory()
    assert m.total == llm.cache.used_nbytes
    assert len(m.private) == len(m.f16_per_agent) == 4
    assert m.prefix_tokens == len(pool.tokens)
    assert m.separate_cells == sum(a.stats.prompt_n + a.stats.generated_n - 1 for a in answers)
    assert m.cells < m.separate_cells / 2
    agents = [a.sequence for a in pool.agents]
    if kv == "f16":
        # One agent alone would hold exactly its own table.
        held = [sum(len(b) * llm.cache.block_nbytes(g) for g, b in enumerate(s.used_blocks())) for s in agents]
        assert m.f16_per_agent == held
    else:
        assert m.f16_equivalent > 1.5 * m.total
    assert json.loads(json.dumps(m.as_dict()))["bytes_shared"] == m.shared
    assert pool.release()
    assert (pool.memory().private, llm.cache.used_nbytes) == ([], m.shared)
    pool.close()
    assert in_use(llm) == 0


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
def test_cells_are_counted_once_however_they_are_shared(name: str, chat: bool) -> None:
    """Forks of forks share tokens that are not the document's; equal tokens that were computed twice are held twice."""
    llm = tiny_llm(name, chat=chat)
    size = llm.cache.block_size
    with llm.pool(DOCUMENT) as pool:
        document = len(pool.tokens)
        agent = pool.fork()
        agent.ask("How many arches does it have?", max_tokens=20, ignore_eog=True)
        alone, length = pool.memory(), agent.sequence.length
        # The agent has a copy of the document's last block, if that is not full.
        assert alone.cells == len(held_cells(llm, [pool._sequence, agent.sequence])) == length + document % size
        twins = [agent.fork(), agent.fork()]
        m = pool.memory()
        assert (m.cells, m.separate_cells) == (alone.cells, 3 * length)
        for i, twin in enumerate(twins):
            twin.ask(QUESTIONS[i], **OPTIONS)
        m = pool.memory()
        new = sum(t.sequence.length - length for t in twins)
        # Each twin added its own turn and copied at most one open block.
        assert alone.cells + new <= m.cells <= alone.cells + new + 2 * (size - 1)
        assert m.separate_cells == length + sum(t.sequence.length for t in twins)
        pool.ask([QUESTIONS[0]] * 2, **OPTIONS)
        assert pool.memory().cells >= m.cells + 2 * (pool.agents[-1].sequence.length - document)


def held_cells(llm: LLM, sequences: list[Sequence]) -> set[tuple[int, int]]:
    """(block, offset) of every token in the full-attention group."""
    size = llm.cache.block_size
    return {(s.tables[0][i // size], i % size) for s in sequences for i in range(s.length)}


def test_eight_agents_on_a_long_document_hold_six_times_fewer_cells() -> None:
    for name in ("llama", "gemma3"):
        llm = tiny_llm(name)
        pool = llm.pool("x" * 860)
        pool.ask(["y?"] * 8, max_tokens=8, ignore_eog=True)
        m = pool.memory()
        assert m.prefix_tokens > 800
        assert m.separate_cells >= 6 * m.cells


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
def test_saved_and_loaded_in_another_process_bit_for_bit(name: str, chat: bool, tmp_path: Path) -> None:
    llm = tiny_llm(name, chat=chat)
    pool = llm.pool(DOCUMENT, system="Be brief." if chat else "")
    assert pool.save(tmp_path / "p.pool") == (tmp_path / "p.pool").stat().st_size
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import hashlib, json
from tiny_llm import *
llm = tiny_llm({name!r}, chat={chat})
pool = llm.load_pool({str(tmp_path / "p.pool")!r})
with pool.fork() as agent:
    logits = llm.engine.runner.step([(agent.sequence, [5, 6])])
answers = pool.ask(QUESTIONS, max_tokens=9, ignore_eog=True)
print(json.dumps([hashlib.sha256(logits.tobytes()).hexdigest(), pool.document == DOCUMENT,
    [a.tokens for a in answers], [a.stats.cache_n for a in answers], llm.engine.counters.prefill_rows]))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    digest, document, tokens, cache_n, rows = json.loads(run.stdout)
    with pool.fork() as agent:
        logits = llm.engine.runner.step([(agent.sequence, [5, 6])])
    answers = pool.ask(QUESTIONS, **OPTIONS)
    assert document
    assert digest == hashlib.sha256(logits.tobytes()).hexdigest()
    assert tokens == [a.tokens for a in answers]
    assert cache_n == [a.stats.cache_n for a in answers]
    # The document was restored, not computed again.
    assert rows < len(pool.tokens)


def test_pools_of_others_are_refused_with_the_field_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "p.pool"
    tiny_llm().pool(DOCUMENT).save(path)
    for field, other in (
        ("model", tiny_llm("llama_rope_linear")),
        ("tier of layer 0", tiny_llm(kv="q8_0")),
        ("tier of layer 2", tiny_llm(kv="q8_0/turbo3,2=f16")),
    ):
        mine = other.pool("Something else. " * 8)
        want, used = mine.ask(["Why?"], **OPTIONS)[0].tokens, other.cache.used_nbytes
        with pytest.raises(MismatchError) as error:
            other.load_pool(path)
        assert error.value.field == field
        assert other.cache.used_nbytes == used
        assert mine.ask(["Why?"], **OPTIONS)[0].tokens == want
    with pytest.raises(MismatchError, match="tokens of the document"):
        tiny_llm(chat=True).load_pool(path)


def test_damaged_files_are_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    llm = tiny_llm()
    pool, path = llm.pool(DOCUMENT), tmp_path / "p.pool"
    pool.save(path)
    want, data = pool.ask(QUESTIONS, **OPTIONS)[0].tokens, path.read_bytes()
    used = llm.cache.used_nbytes
    for where in range(9, len(data), len(data) // 9):
        for broken in (data[:where], data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]):
            path.write_bytes(broken)
            with pytest.raises((FormatError, MismatchError)):
                llm.load_pool(path)
    assert llm.cache.used_nbytes == used
    assert pool.ask(QUESTIONS, **OPTIONS)[0].tokens == want
    sequence = Sequence(llm.cache)
    llm.engine.runner.step([(sequence, [1, 2, 3])])
    save_sequences(path, [sequence])
    with pytest.raises(FormatError, match="no document"):
        llm.load_pool(path)


@pytest.mark.parametrize(("name", "chat"), VARIANTS)
def test_an_agent_keeps_its_history_private(name: str, chat: bool) -> None:
    llm = tiny_llm(name, chat=chat)
    pool = llm.pool(DOCUMENT)
    a, b = pool.fork(), pool.fork()
    first = a.ask(QUESTIONS[0], **OPTIONS)
    other = b.ask(QUESTIONS[1], **OPTIONS)
    second = a.ask(QUESTIONS[2], **OPTIONS)
    assert second.stats.prompt_n > first.stats.prompt_n + 9
    # Everything but the new question, and the last token of the answer before it, was in the cache.
    assert second.stats.cache_n == first.stats.prompt_n + 8
    separate = tiny_llm(name, chat=chat)
    prompt = a.tokens[: len(a.tokens) - 9]
    assert separate.generate(prompt, stop=llm.prompts.stop, **OPTIONS).tokens == second.tokens
    assert separate.generate(prompt, stop=llm.prompts.stop, **OPTIONS).stats.cache_n > 0
    assert b.tokens[-9:] == other.tokens

    # Take the last turn back and ask again: the same answer; a fork of that goes its own way.
    a.trim(a.turns[-1])
    twin = a.fork()
    assert a.ask(QUESTIONS[2], **OPTIONS).tokens == second.tokens
    assert "".join(twin.stream(QUESTIONS[2], **OPTIONS)) == second.text
    assert twin.turns == a.turns
    assert twin.generate(" and", **OPTIONS).tokens == a.generate(" and", **OPTIONS).tokens


def test_an_agent_refuses_what_it_cannot_do() -> None:
    llm = tiny_llm()
    pool = llm.pool(DOCUMENT)
    agent = pool.fork()
    with pytest.raises(ConfigError, match="cannot keep 3 tokens"):
        agent.trim(3)
    with pytest.raises(ConfigError, match="cannot keep"):
        agent.trim(len(pool.tokens) + 1)
    stream = agent.stream("Why?", **OPTIONS)
    next(stream)
    with pytest.raises(ConfigError, match="still answering"):
        agent.ask("What?")
    stream.close()
    assert stream.generation.finish_reason is Finish.CANCELLED
    n = len(agent.tokens)
    with pytest.raises(PromptError, match="context"):
        agent.ask("long " * 2000)
    assert len(agent.tokens) >= n
    assert agent.ask("What?", **OPTIONS).tokens
    agent.free()
    agent.free()
    with pytest.raises(ConfigError, match="freed"):
        agent.ask("What?")
    pool.close()
    pool.close()
    with pytest.raises(ConfigError, match="closed"):
        pool.fork()


def test_what_a_pool_refuses() -> None:
    llm = tiny_llm()
    with pytest.raises(PromptError, match="context"):
        llm.pool("x" * 3000)
    assert in_use(llm) == 0
    with llm.pool("") as pool, pytest.raises(PromptError, match="list of questions"):
        pool.ask("Why?")
    assert in_use(llm) == 0


def test_agents_that_nobody_holds_give_their_blocks_back() -> None:
    llm = tiny_llm()
    pool = llm.pool(DOCUMENT)
    used = in_use(llm)
    agent = pool.fork()
    agent.ask("Why?", **OPTIONS)
    assert in_use(llm) > used
    del agent
    # A finalizer may run in the middle of a step, so the blocks come back at the next sweep (every step makes one).
    llm.engine.sweep()
    assert in_use(llm) == used
    assert pool.agents == []
    del pool
    llm.engine.sweep()
    assert in_use(llm) == 0


def test_idle_agents_make_room_for_others() -> None:
    llm = tiny_llm(cache_tokens=448)
    pool = llm.pool("x" * 120)
    pool.ask(["Why?", "Who?"], max_tokens=40, ignore_eog=True)
    assert len(pool.agents) == 2
    got = llm.generate("a " * 100, max_tokens=100, raw=True, ignore_eog=True)
    assert len(got.tokens) == 100
    assert pool.agents == []
    assert isinstance(pool, SharedKVPool)
    assert len(pool.ask(["Why?"], **OPTIONS)) == 1


def test_interrupting_ask_keeps_the_document(monkeypatch) -> None:
    llm = tiny_llm()
    pool = llm.pool(DOCUMENT)
    want, used = pool.ask(QUESTIONS, **OPTIONS)[1].tokens, pool.memory().shared
    step, calls = llm.engine.runner.next_tokens, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(llm.engine.runner, "next_tokens", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.ask(QUESTIONS, **OPTIONS)
    monkeypatch.undo()
    assert llm.cache.used_nbytes == used
    assert pool.ask(QUESTIONS, **OPTIONS)[1].tokens == want


def test_a_turn_can_be_taken_back_when_the_window_is_gone(monkeypatch) -> None:
    llm = tiny_llm("gemma3")
    agent = llm.pool(DOCUMENT).fork()
    first = agent.ask(QUESTIONS[0], **OPTIONS)
    want = agent.ask(QUESTIONS[1], **OPTIONS).tokens

    def gone(self: Sequence, length: int) -> None:
        raise CapacityError("cells are gone")

    monkeypatch.setattr(Sequence, "trim", gone)
    agent.trim(agent.turns[-1])
    monkeypatch.undo()
    again = agent.ask(QUESTIONS[1], **OPTIONS)
    assert again.tokens == want
    # Whole blocks were found again in the prefix cache, the rest was computed.
    assert again.stats.cache_n == (first.stats.prompt_n + 9) // llm.cache.block_size * llm.cache.block_size


def test_a_closed_pool_refuses_everything(tmp_path) -> None:
    pool = tiny_llm(chat=True).pool(DOCUMENT)
    pool.close()
    for use in (pool.fork, pool.memory, lambda: pool.save(tmp_path / "empty.pool"), lambda: pool.ask(["x"])):
        with pytest.raises(ConfigError, match="closed"):
            use()
    assert not list(tmp_path.iterdir())


def test_paths_that_cannot_be_pool_files(tmp_path) -> None:
    llm = tiny_llm(chat=True)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with llm.pool(DOCUMENT) as pool:
        for path in (pipe, tmp_path, "a\0b", tmp_path / "none" / "x", tmp_path / ("n" * 300)):
            with pytest.raises(FormatError, match="cannot be written"):
                pool.save(path)
            with pytest.raises(FormatError):
                llm.load_pool(path)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]
