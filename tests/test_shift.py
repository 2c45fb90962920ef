"""Context shift: what is kept is what a fresh prompt of it would be, and nobody's tokens are dropped unasked."""

from __future__ import annotations

import json
from functools import cache
from itertools import count

import numpy as np
import pytest
from interrupts import interrupt_at
from test_engine import tiny_engine, used
from tiny_llm import DOCUMENT, QUESTIONS, tiny_llm
from tiny_models import random_ids, tiny_path

from polykv.cache.group import Stage
from polykv.cache.pool import exact_of
from polykv.cache.sequence import Sequence
from polykv.cli import run as cli
from polykv.engine import Engine
from polykv.engine_options import make_request
from polykv.engine_request import Finish, Request
from polykv.errors import ConfigError
from polykv.types import F32

CONTEXT, KEEP, PROMPT = 200, 7, 150
TIERS = ("f16", "q8_0/turbo3", "turbo3_tcq/turbo2", "turbo4+c/turbo3,sink=4", "q8_0/turbo3,recent=64")


def shifting(engine: Engine, n: int = PROMPT, max_tokens: int = 300, keep: int = KEEP, **options) -> Request:
    return make_request(random_ids(n, seed=n), max_tokens=max_tokens, ignore_eog=True, shift=keep, **options)


def by_hand(ids: list[int], max_tokens: int, keep: int, context: int, *engine: str) -> list[int]:
    """The tokens of a request that shifts, from engines that know nothing of shifts: a new one whenever it is full."""
    tokens, cells = list[int](), list(ids)
    while len(tokens) < max_tokens:
        n = min(context - len(cells), max_tokens - len(tokens))
        request = make_request(cells, max_tokens=n, ignore_eog=True)
        got = tiny_engine(*engine, context=context).run([request])[0].tokens
        tokens, cells = tokens + got, cells + got
        if len(cells) == context:
            cells = cells[:keep] + cells[keep + (context - keep) // 2 :]
    return tokens


@cache
def expected(*engine: str) -> list[int]:
    return by_hand(random_ids(PROMPT, seed=PROMPT), 300, KEEP, CONTEXT, *engine)


def until_shifted(engine: Engine, request: Request) -> Sequence:
    """Step until what a first shift kept was read again."""
    engine.submit(request)
    while not request.past.shifts or request.sequence is None or request.sequence.length < request.n_cells - 1:
        assert engine.step() and not request.done
    return request.sequence


def stored(sequence: Sequence) -> list[F32]:
    """K and V of every cell that a sequence holds, by group, decoded."""
    pool, found = sequence.pool, []
    for group, table in zip(pool.groups, sequence.block_tables, strict=True):
        blocks = np.array(table.held(), np.int32)
        # Cells of a last block that is not full are anything.
        rest = -sequence.length % group.size if group.stage is not Stage.CODED else 0
        for i in group.layers:
            kv = exact_of(pool.layer(i)) if group.stage is Stage.EXACT else pool.layer(i)
            for arena in (kv.k, kv.v):
                x = pool.ops.kv_read(arena, blocks)
                cells = x.reshape(-1, *x.shape[2:])
                found.append(cells[: len(cells) - rest])
    return found


@pytest.mark.parametrize("name", ("llama", "gemma3"))
@pytest.mark.parametrize("kv", TIERS)
def test_cells_after_a_shift_are_those_of_a_fresh_prompt(name: str, kv: str) -> None:
    engine, fresh = (tiny_engine(name, "cpu", kv, context=CONTEXT) for _ in range(2))
    request = shifting(engine)
    mine = until_shifted(engine, request)
    assert request.past.shifts == 1 and request.past.dropped == (CONTEXT - KEEP) // 2
    assert (
        mine.tokens
        == request.ids[:KEEP] + request.ids[KEEP + request.past.dropped : mine.length + request.past.dropped]
    )
    other = Sequence(fresh.pool)
    fresh.runner.step([(other, mine.tokens)])
    cells = stored(mine)
    for a, b in zip(cells, stored(other), strict=True):
        assert np.array_equal(a, b)
    assert sum(x.size for x in cells) > 1000
    token = request.ids[-1]
    assert np.array_equal(engine.runner.step([(mine.fork(), [token])]), fresh.runner.step([(other, [token])]))


@pytest.mark.parametrize("name", ("llama", "gemma3", "qwen2_rope_yarn"))
@pytest.mark.parametrize("kv", TIERS)
def test_it_goes_on_as_fresh_prompts_would(name: str, kv: str) -> None:
    engine = tiny_engine(name, "cpu", kv, context=CONTEXT)
    got = engine.run([shifting(engine)])[0]
    assert got.tokens == expected(name, "cpu", kv)
    assert (got.finish_reason, got.stats.shifts, got.stats.shifted_cells) == (Finish.LENGTH, 3, 3 * 96)
    assert (engine.counters.shifts, engine.counters.shifted_cells) == (3, 3 * 96)
    assert used(engine) == 0


@pytest.mark.parametrize(("name", "kv"), [("llama", "q8_0/turbo3"), ("gemma3", "f16"), ("llama", "f16,sink=4")])
def test_the_reference_shifts_alike(name: str, kv: str) -> None:
    engine = tiny_engine(name, "ref", kv, context=CONTEXT)
    tokens = engine.run([shifting(engine, max_tokens=170)])[0].tokens
    assert tokens == expected(name, "cpu", kv)[:170] and engine.counters.shifts == 2


@pytest.mark.parametrize(("keep", "context", "n"), [(0, 65, 64), (63, 65, 3), (64, 130, 129), (1, 8, 2)])
def test_many_shifts_of_odd_sizes(keep: int, context: int, n: int) -> None:
    engine, ids = tiny_engine("gemma3", context=context), random_ids(n)
    got = engine.run([make_request(ids, max_tokens=150, ignore_eog=True, shift=keep)])[0]
    assert got.tokens == by_hand(ids, 150, keep, context, "gemma3")
    assert got.stats.shifts > 1 and got.stats.shifted_cells == got.stats.shifts * ((context - keep) // 2)


def test_company_room_and_chunks_change_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ((150, 90), (20, 250), (199, 40))
    hot = {"temperature": 1.5, "repetition_penalty": 1.1, "seed": 5}
    want = []
    for n, m in sizes:
        engine = tiny_engine("gemma3", context=CONTEXT)
        want.append(engine.run([shifting(engine, n, m, **hot)])[0].tokens)
    for options in ({}, {"chunk": 5}, {"max_batch": 2}, {"max_tokens": 448}):
        engine = tiny_engine("gemma3", context=CONTEXT, **options)
        assert [g.tokens for g in engine.run([shifting(engine, n, m, **hot) for n, m in sizes])] == want
    # Put back for want of room, before and after shifts.
    monkeypatch.setattr("polykv.engine_schedule.fits", lambda *_: True)
    engine = tiny_engine("gemma3", context=CONTEXT, max_tokens=320)
    assert [g.tokens for g in engine.run([shifting(engine, n, m, **hot) for n, m in sizes])] == want
    assert engine.counters.preempted and engine.counters.shifts == 3 and used(engine) == 0


def test_a_prefix_that_others_hold_is_not_touched() -> None:
    engine = tiny_engine("llama", context=CONTEXT)
    holder, _ = Sequence.attach(engine.pool, random_ids(PROMPT, seed=PROMPT))
    engine.runner.step([(holder, random_ids(PROMPT, seed=PROMPT))])
    before = [x.copy() for x in stored(holder)]
    engine.pool.make_room(0, 1)
    got = engine.run([shifting(engine)])[0]
    assert got.stats.cache_n == 128 and got.tokens == expected("llama", "cpu", "q8_0/turbo3")
    assert all(np.array_equal(a, b) for a, b in zip(before, stored(holder), strict=True))


def test_text_and_stop_strings_across_a_shift() -> None:
    engine = tiny_engine("llama", context=CONTEXT)
    whole = engine.run([shifting(engine)])[0]
    stream = engine.stream(shifting(engine))
    pieces = list(stream)
    assert "".join(pieces) == whole.text and len(pieces) > 50 and stream.generation.tokens == whole.tokens
    # A stop string that begins before the first shift, at token 50, and ends after it.
    before = engine.run([make_request(random_ids(PROMPT, seed=PROMPT), max_tokens=50, ignore_eog=True)])[0].text
    for size in range(2, 40):
        stop = whole.text[len(before) - size : len(before) + size]
        if whole.text.index(stop) == len(before) - size:
            break
    else:
        pytest.fail("no text of its own around the shift")
    cut = engine.run([shifting(engine, stop=[stop])])[0]
    assert cut.finish_reason is Finish.STOP and cut.text == whole.text[: len(before) - size]
    assert cut.stats.shifts == 1


def test_the_end_of_a_turn_ends_it_after_a_shift() -> None:
    engine, want = tiny_engine("llama", context=CONTEXT), expected("llama", "cpu", "q8_0/turbo3")
    late = next(i for i, t in enumerate(want) if i > 60 and t not in want[:i])
    engine.tokenizer.eog = frozenset({want[late]})
    request = shifting(engine)
    request.ignore_eog = False
    got = engine.run([request])[0]
    assert got.finish_reason is Finish.EOG and got.tokens == want[: late + 1]


def test_cancelling_while_the_kept_tokens_are_read_again() -> None:
    engine = tiny_engine("llama", context=CONTEXT, chunk=8)
    request = shifting(engine)
    stream = engine.stream(request)
    while not request.past.shifts:
        engine.step()
    engine.step()
    assert request.sequence is not None and KEEP < request.sequence.length < request.n_cells - 8
    n = request.n_generated
    stream.close()
    assert used(engine) == 0 and not engine.busy
    got = stream.generation
    assert got.finish_reason is Finish.CANCELLED and got.tokens == expected("llama", "cpu", "q8_0/turbo3")[:n]
    assert got.stats.shifts == 1 and n == CONTEXT - PROMPT
    again = engine.run([shifting(engine)])[0]
    assert again.tokens == expected("llama", "cpu", "q8_0/turbo3")


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_ctrl_c_at_any_line_of_a_shift(name: str) -> None:
    files, want = ("/polykv/engine", "/polykv/cache/"), expected(name, "cpu", "q8_0/turbo3")[:90]
    for n in count(0, 23):
        engine = tiny_engine(name, context=CONTEXT)
        request = shifting(engine, max_tokens=90)
        engine.submit(request)
        while request.n_cells < CONTEXT:
            engine.step()
        hit = interrupt_at(n, engine.step, files)
        while not request.done:
            engine.step()
        assert request.result().tokens == want, n
        assert request.past.shifts == 1 and used(engine) == 0
        if not hit:
            break
    assert n > 5 * 23


def test_nothing_is_dropped_unasked_or_in_vain() -> None:
    engine = tiny_engine("llama", context=CONTEXT)
    full = engine.run([make_request(random_ids(PROMPT), max_tokens=300, ignore_eog=True)])[0]
    assert (full.finish_reason, len(full.tokens), full.stats.shifts) == (Finish.CONTEXT, CONTEXT - PROMPT, 0)
    # The last token fills the context: there is nothing to go on with.
    exact = engine.run([shifting(engine, max_tokens=CONTEXT - PROMPT)])[0]
    assert (exact.finish_reason, exact.stats.shifts) == (Finish.LENGTH, 0)
    only_read = engine.run([shifting(engine, CONTEXT, 0)])[0]
    assert (only_read.tokens, only_read.stats.shifts) == ([], 0)
    assert engine.counters.shifts == 0


def test_reading_again_counts_as_reading() -> None:
    engine = tiny_engine("llama", context=CONTEXT)
    engine.run([shifting(engine, max_tokens=60)])
    kept = CONTEXT - (CONTEXT - KEEP) // 2
    assert engine.counters.prefill_rows == PROMPT + kept - KEEP
    assert engine.counters.decode_rows == 60 - 2
    assert engine.counters.prefill_s > 0


@pytest.mark.parametrize("keep", (-1, 2.5, True, "4", CONTEXT, CONTEXT - 1))
def test_what_cannot_be_kept_is_refused_before_any_work(keep: object) -> None:
    engine = tiny_engine("llama", context=CONTEXT)
    with pytest.raises(ConfigError, match="shift is"):
        engine.run([make_request([1], max_tokens=5, shift=keep)])  # type: ignore[typeddict-item]
    llm = tiny_llm(ctx=CONTEXT)
    for call in (llm.generate, llm.stream):
        with pytest.raises(ConfigError, match="shift is"):
            call("some text", shift=keep)
    assert engine.runner.counters.steps == llm.engine.runner.counters.steps == 0
    assert engine.run([shifting(engine, keep=CONTEXT - 2, max_tokens=55)])[0].stats.shifts == 5


def test_only_a_generation_of_its_own_may_shift() -> None:
    llm = tiny_llm(chat=True)
    agents = "sequence of its own"
    with llm.pool(DOCUMENT) as pool, pool.fork() as agent, llm.chat() as chat:
        pool.ask(QUESTIONS[:1], max_tokens=2)
        steps, asked = llm.engine.runner.counters.steps, pool.agents
        for call in (agent.ask, agent.generate, agent.stream, chat.ask, chat.stream):
            with pytest.raises(ConfigError, match=agents):
                call(QUESTIONS[0], shift=4)
        with pytest.raises(ConfigError, match=agents):
            pool.ask(QUESTIONS, shift=4)
        assert pool.agents == asked and llm.engine.runner.counters.steps == steps
    with pytest.raises(ConfigError, match=agents):
        make_request([1, 2], Sequence(llm.cache), max_tokens=5, shift=0)
    with pytest.raises(ConfigError, match="needs max_tokens"):
        llm.generate([5], max_tokens=None, shift=4)


def test_turns_are_not_torn() -> None:
    llm = tiny_llm(chat=True, ctx=CONTEXT)
    turn = [{"role": "user", "content": "hello"}]
    for prompt in (turn, iter(turn)):
        with pytest.raises(ConfigError, match="not for a chat"):
            llm.generate(prompt, shift=4)
    whole = len(llm.prompt_ids("hello"))
    with pytest.raises(ConfigError, match=f"a turn of {whole} tokens.*keep {whole} or more"):
        llm.generate("hello", shift=whole - 1)
    options = {"max_tokens": 250, "ignore_eog": True}
    assert llm.generate("hello", shift=whole, **options).stats.shifts > 0
    assert llm.generate("hello", raw=True, shift=4, **options).stats.shifts > 0
    many = llm.generate_many(["hello", "there"], raw=True, shift=4, **options)
    assert [g.tokens for g in many] == [
        llm.generate(p, raw=True, shift=4, **options).tokens for p in ("hello", "there")
    ]
    counters = llm.report()["counters"]["engine"]
    assert counters["shifts"] > 0 and counters["shifted_cells"] > counters["shifts"]


TINY = ("-m", str(tiny_path("llama")), "--activations", "f32")


def test_the_command_says_what_was_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    args = (
        "generate",
        "Once upon a time",
        *TINY,
        "--raw",
        "--ctx",
        "100",
        "-n",
        "200",
        "--json",
        "--strict",
        "--kv",
        "f16",
    )
    assert cli([*args, "--shift", "4", "--report"]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out.splitlines()[-1])
    stats = got["stats"]
    assert stats["shifts"] > 1 and stats["shifted_cells"] == 48 * stats["shifts"] and stats["generated_n"] == 200
    assert got["report"]["counters"]["engine"]["shifted_cells"] == stats["shifted_cells"]
    said = f"the context was full {stats['shifts']} times: {stats['shifted_cells']} tokens were dropped from it"
    assert said in err and "context shifts, tokens they dropped" in out
    assert cli([*args]) == 0
    out, err = capsys.readouterr()
    got = json.loads(out.splitlines()[-1])
    assert got["finish_reason"] == "context" and got["stats"]["shifts"] == 0
    assert "the context is full" in err and "dropped" not in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("generate", "hello", "--raw", "--shift", "-1"), "-1 is not in the range"),
        (("generate", "hello", "--raw", "--shift", "some"), "not a valid integer"),
        (("generate", "hello", "--raw", "--shift", "100", "--ctx", "100"), "at most 98"),
        (("generate", "hello", "--raw", "--shift", "99", "--ctx", "100"), "at most 98"),
        (("generate", "hello", "--raw", "--shift", "5000"), "at most 4,094"),
        (("generate", "hello", "--raw", "--shift", "0", "--ctx", "1"), "a context of 1 token (--ctx) has no room"),
        (("chat", "--shift", "4"), "No such option"),
        (("ask", "--shift", "4"), "No such option"),
    ],
)
def test_the_command_refuses(args: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli([*args, *TINY]) == 2
    out, err = capsys.readouterr()
    assert message in err and not out
