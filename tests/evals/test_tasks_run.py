"""Tasks on a tiny model whose answers are noise: what is run, what counts, what a user sees and is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_llm import tiny_llm
from tiny_models import tiny_path

from polykv.cli import run as polykv
from polykv.errors import ConfigError, PromptError
from polykv.evals.answers import Answer, End, counter, prompt_ids, run
from polykv.evals.counting import Counting
from polykv.evals.fit import fitted, samples
from polykv.evals.haystack import Essay
from polykv.evals.needles import niah
from polykv.evals.result import Result
from polykv.evals.rewrites import Rewrites
from polykv.evals.sample import Sample
from polykv.evals.suite import Arms, Suite, blind, objections, settings, shortfalls
from polykv.evals.tracking import Tracking
from polykv.llm import LLM

MODEL = str(tiny_path("llama"))
ESSAY = Essay.of("The rain fell on the old mill. Nobody came by the road that day. " * 20)
NEEDLE = niah(["niah_single_1"], ESSAY)[0]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return tiny_llm()


@pytest.fixture(scope="module")
def chat() -> LLM:
    return tiny_llm(chat=True)


# -- running -------------------------------------------------------------------------------------------------------
def test_prompts(llm: LLM, chat: LLM) -> None:
    history = (("user", "Hi"), ("assistant", "Yes"))
    raw = llm.detokenize(prompt_ids(llm, "Who?", "It is"))
    assert raw.endswith("Who? It is")
    assert llm.detokenize(prompt_ids(llm, "Who?", "", history)).endswith("User: Who?\n\nAssistant:")
    ids = prompt_ids(chat, "Who?", "It is")
    turn = chat.prompts.messages([{"role": "user", "content": "Who?"}])
    assert ids == turn + chat.prompts.text("It is", begin=False)
    assert prompt_ids(chat, "1, 2,", raw=True) == prompt_ids(llm, "1, 2,")
    assert "Yes" in chat.detokenize(prompt_ids(chat, "Who?", "", history))
    assert counter(chat)("Who?", "It is") == len(ids)


@pytest.mark.parametrize("template", [False, True])
def test_answers(template: bool, llm: LLM, chat: LLM) -> None:
    model = chat if template else llm
    found = samples(NEEDLE, length=900, n=5, seed=42, count=counter(model))
    told: list[tuple[int, int]] = []
    answers = run(model, found, on_progress=lambda *now: told.append(now))
    assert told == [(4, 5), (5, 5)]
    assert [a.sample for a in answers] == found
    assert {a.mode for a in answers} == {"template" if template else "raw"}
    for a in answers:
        ids = prompt_ids(model, a.sample.prompt, a.sample.prefix)
        assert len(ids) == a.sample.tokens and a.tokens <= a.sample.budget
        alone = model.generate(ids, max_tokens=a.sample.budget)
        assert (a.text, a.tokens) == (alone.text, len(alone.tokens))
    assert run(model, []) == []


def test_time_runs_out(llm: LLM) -> None:
    found = samples(NEEDLE, length=900, n=2, seed=42, count=counter(llm))
    answers = run(llm, found, time_limit=1e-9)
    assert {a.finish for a in answers} == {End.TIMEOUT} and not any(a.data for a in answers)
    assert not llm.engine.busy


def test_a_failure_leaves_nothing_behind(llm: LLM) -> None:
    good = samples(NEEDLE, length=900, n=1, seed=42, count=counter(llm))
    long = fitted(NEEDLE, 100_000, 400, 42, 1, counter(llm))
    with pytest.raises(PromptError, match="shorten it"):
        run(llm, [*good, long])
    assert not llm.engine.busy


# -- arms ----------------------------------------------------------------------------------------------------------
def oracle(monkeypatch: pytest.MonkeyPatch, right: dict[str, int]) -> None:
    """Let answers of an arm be right for so many samples of every task, then empty once, then wrong."""
    import polykv.evals.suite as suite

    def answer(llm: LLM, found: list[Sample], **options: object) -> list[Answer]:
        n = right[llm.kv]
        texts = [", ".join(s.expected) if s.index < n else "" if s.index == n else "no" for s in found]
        return [Answer(s, text, 3, End.STOP, 0.1, "raw") for s, text in zip(found, texts, strict=True)]

    monkeypatch.setattr(suite, "run", answer)


def test_arms_are_compared_on_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle(monkeypatch, {"f16": 4, "turbo3": 1})
    suite = Suite(((NEEDLE, 900), (Tracking(), 1900)), n=5, seed=1)
    arms = Arms(suite)
    for kv in ("f16", "turbo3"):
        arms.add(kv, tiny_llm(kv=kv))
    exact, _, coarse, _ = arms.cells
    assert (exact["n"], exact["no_data"], exact["score"]) == (4, 1, 100)
    assert (coarse["n"], coarse["score"]) == (4, 25)
    assert "against" not in exact
    assert coarse["against"] == {"kv": "f16", "n": 3, "difference": -66.67, "worse": 2, "better": 0, "p": 0.5}
    assert [a["expected"] for a in exact["answers"]] == [a["expected"] for a in coarse["answers"]]
    assert not objections(arms.cells)
    assert shortfalls(arms.cells, 30) == [
        "turbo3, niah_single_1 at 900: 25 is below the floor of 30",
        "turbo3, vt at 1,900: 25 is below the floor of 30",
    ]
    assert shortfalls(arms.cells, None) == []
    assert blind(arms.cells) == []
    made = settings(suite, suite.remarks(), corpus="x")
    assert made["grid"][1] == "vt at 1,900" and exact["budget"] == 128
    assert "one answer moves a score by 20 points" in made["remarks"][0]


def test_what_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle(monkeypatch, {"f16": 0, "turbo3": 2})
    suite = Suite(((NEEDLE, 900),), n=2, seed=1)
    arms = Arms(suite)
    arms.add("f16", tiny_llm(kv="f16"))
    assert not objections(arms.cells) and not blind(arms.cells)
    arms.add("turbo3", tiny_llm(kv="turbo3"))
    assert objections(arms.cells) == ["f16 scores 0 everywhere: what the other types lose cannot be seen"]
    assert blind(arms.cells) == ["f16, niah_single_1 at 900 scores 0: that says nothing about the other types"]
    empty = Arms(Suite(((NEEDLE, 900),), n=1, seed=1))
    empty.add("f16", tiny_llm(kv="f16"))
    assert objections(empty.cells) == ["f16, niah_single_1 at 900: no data, every answer was empty or ran out of time"]
    assert shortfalls(empty.cells, 1) == []


def test_counting_is_measured_against_the_control(monkeypatch: pytest.MonkeyPatch) -> None:
    import polykv.evals.suite as suite

    reach = {"f16": 40, "turbo3": 10}

    def answer(llm: LLM, found: list[Sample], **options: object) -> list[Answer]:
        firsts = [int(s.expected[0]) for s in found]
        texts = [" ".join(str(f + i) for i in range(reach[llm.kv])) for f in firsts]
        return [Answer(s, text, 3, End.STOP, 0.1, "raw") for s, text in zip(found, texts, strict=True)]

    monkeypatch.setattr(suite, "run", answer)
    arms = Arms(Suite(((Counting(100), 200),), n=2, seed=1))
    for kv in reach:
        arms.add(kv, tiny_llm(kv=kv))
    assert [c["score"] for c in arms.cells] == [100, 25] and [c["figures"]["run"] for c in arms.cells] == [40, 10]
    assert not objections(arms.cells)
    reach["f16"] = 5
    vain = Arms(arms.suite)
    vain.add("f16", tiny_llm(kv="f16"))
    assert objections(vain.cells) == [
        "f16, countup at 200: the control counts 5 numbers, too few to compare with (at least 20)"
    ]


def test_what_the_control_did_not_answer_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count beside none is no share of anything: left out, not full marks."""
    import polykv.evals.suite as suite

    said = {"f16": [40, 0], "turbo3": [10, 10]}

    def answer(llm: LLM, found: list[Sample], **options: object) -> list[Answer]:
        counts = [(int(s.expected[0]), n) for s, n in zip(found, said[llm.kv], strict=True)]
        texts = [" ".join(str(first + i) for i in range(n)) for first, n in counts]
        return [Answer(s, text, 3, End.STOP, 0.1, "raw") for s, text in zip(found, texts, strict=True)]

    monkeypatch.setattr(suite, "run", answer)
    arms = Arms(Suite(((Counting(100), 200),), n=2, seed=1))
    for kv in said:
        arms.add(kv, tiny_llm(kv=kv))
    assert [(c["score"], c["n"], c["no_data"]) for c in arms.cells] == [(100, 1, 1), (25, 1, 1)]


def test_suites_are_checked(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="0 samples"):
        Suite(((NEEDLE, 900),), 0, 1)
    with pytest.raises(ConfigError, match="no task"):
        Suite((), 1, 1)
    with pytest.raises(ConfigError, match="beyond the context of 2,048"):
        Suite(((NEEDLE, 4000),), 1, 1).samples(llm)
    assert "50 or more" in Suite(((Rewrites(2), 900),), 20, 1).remarks()[0]
    assert not Suite(((NEEDLE, 900),), 10, 1).remarks()


# -- the command ---------------------------------------------------------------------------------------------------
def ask(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict, str]:
    kind, *rest = args
    code = polykv(["eval", kind, "-m", MODEL, "--json", *rest])
    out = capsys.readouterr()
    return code, json.loads(out.out.splitlines()[-1]) if out.out.strip() else {}, out.out + out.err


def test_niah(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "niah.json"
    tasks = ("--tasks", "niah_single_1, niah_multivalue", "--lengths", "800,900", "--samples", "1")
    code, result, text = ask(capsys, "niah", "--kv", "f16", "--kv", "turbo3", *tasks, "-o", str(out))
    # A model of noise finds nothing, so nothing can be said about the types.
    assert code == 3 and result["verdict"] == "invalid" and "INVALID: f16 scores 0 everywhere" in text
    assert [(c["kv"], c["task"], c["length"]) for c in result["cells"][:4]] == [
        ("f16", "niah_single_1", 800),
        ("f16", "niah_single_1", 900),
        ("f16", "niah_multivalue", 800),
        ("f16", "niah_multivalue", 900),
    ]
    assert len(result["cells"]) == 8 and all("against" in c for c in result["cells"][4:])
    assert result["kind"] == "niah" and result["settings"]["corpus"] == "opticks"
    assert result["stamp"]["backend"] == "cpu"
    assert Result.load(out).to_json() == result
    for part in (
        "niah: f16 (string_match_all, plain text)",
        "niah by depth and length: turbo3",
        "niah: turbo3 less f16, on the same samples",
        "80% - 100%",
    ):
        assert part in text
    assert "n = 1: one answer moves a score by 100 points" in text
    html, mark = tmp_path / "niah.html", tmp_path / "niah.md"
    assert polykv(["eval", "report", str(out), "--html", str(html), "--markdown", str(mark)]) == 0
    assert "niah by depth and length: turbo3" in capsys.readouterr().out
    assert "Needles in a haystack" in mark.read_text() and "Score by depth and length" in html.read_text()
    assert polykv(["eval", "compare", str(out), str(out)]) == 0
    assert "8 cells in common, 0 figures differ" in capsys.readouterr().out
    for name in ("score", "by_depth", "figures", "kv"):
        damaged = json.loads(out.read_text())
        del damaged["cells"][1][name]
        (tmp_path / "damaged.json").write_text(json.dumps(damaged))
        assert polykv(["eval", "report", str(tmp_path / "damaged.json")]) == 2
        assert "damaged.json: cells: " in capsys.readouterr().err
    alone, again, _ = ask(capsys, "niah", "--kv", "f16", *tasks)
    assert alone == 0

    def answers(cells: list[dict]) -> list[str]:
        return [a["text"] for c in cells for a in c["answers"]]

    assert answers(again["cells"]) == answers(result["cells"][:4])


@pytest.mark.parametrize(
    ("args", "tasks", "column"),
    [
        (["vt", "--lengths", "2000", "--samples", "1"], ["vt"], "precision"),
        (["mrcr", "--needles", "2,4", "--lengths", "2000", "--samples", "1"], ["mrcr_2", "mrcr_4"], "mark in front"),
        (["copy", "--lengths", "1500", "--samples", "1", "--depths", "50"], [], "fits schema"),
    ],
)
def test_other_kinds(
    args: list[str], tasks: list[str], column: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("A short text. It is mine. " * 3)
    more = ["--haystack-file", str(text)] if args[0] == "copy" else []
    code, result, printed = ask(capsys, *args, *more, "--kv", "q8_0")
    assert code == 0, printed
    found = [c["task"] for c in result["cells"]]
    assert found == (tasks or ["copy_id", "copy_hex", "copy_json", "copy_tool"])
    assert column in printed or all(c["precision"] is None for c in result["cells"])
    if more:
        assert result["settings"]["corpus"] == "mine.txt" and len(result["settings"]["text"]) == 16
        before = text.read_bytes()
        code, _, printed = ask(capsys, *args, *more, "-o", str(text))
        assert code == 2 and "--haystack-file and --out name the same file" in printed and text.read_bytes() == before


def test_countup(capsys: pytest.CaptureFixture[str]) -> None:
    code, result, text = ask(capsys, "countup", "--tokens", "30", "--samples", "1", "--kv", "f16")
    assert code == 3 and "the control counts" in text
    assert "by depth" not in text and result["cells"][0]["by_depth"] == []


def test_floor(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("niah", "--kv", "f16", "--lengths", "900", "--samples", "1", "--floor")
    code, result, text = ask(capsys, *args, "score=50")
    assert code == 1 and result["verdict"] == "below floor" and "0 is below the floor of 50" in text
    assert ask(capsys, *args, "score=0")[0] == 0


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["niah", "--tasks", "niah_9"], "unknown task 'niah_9'; known: niah_single_1"),
        (["niah", "--tasks", ","], "--tasks names none"),
        (["copy", "--tasks", "niah_single_1"], "unknown task 'niah_single_1'; known: copy_id"),
        (["niah", "--samples", "0"], "0 is not in the range x>=1"),
        (["niah", "--lengths", "900,x"], "--lengths '900,x': whole numbers of 1 or more"),
        (["niah", "--lengths", ""], "whole numbers of 1 or more"),
        (["niah", "--lengths", "99999"], "sequences of 99,999 tokens are outside"),
        (["niah", "--lengths", "200"], "niah_single_1 does not fit into 200 tokens"),
        (["niah", "--lengths", "200", "--tasks", "all"], "niah_multiquery does not fit into 200 tokens"),
        (["niah", "--lengths", "900", "--kv", "f16", "--kv", "f17"], "f17"),
        (["niah", "--depths", "120"], "--depths '120': percentages of 0 to 100"),
        (["niah", "--depths", "half"], "percentages"),
        (["niah", "--tasks", "niah_multiquery", "--depths", "50"], "hides 4 needles"),
        (["niah", "--haystack-file", "nowhere.txt"], "nowhere.txt: cannot be read"),
        (["niah", "--haystack-file", "x.txt", "--corpus", "news"], "give one of them"),
        (["niah", "--corpus", "news"], "no text is read for niah_single_1: take other --tasks"),
        (["niah", "-o", "nowhere/niah.json"], "cannot be written"),
        (["niah", "--floor", "kld=1"], "names score"),
        (["niah", "--time-limit", "0"], "0.0 is not in the range"),
        (["vt", "--hops", "0"], "0 is not in the range"),
        (["mrcr", "--needles", "3"], "3 equal requests; the task is defined for 2, 4, 8"),
        (["countup", "--tokens", "0"], "whole numbers of 1 or more"),
    ],
)
def test_refusals(
    args: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import polykv.evals.suite as suite

    monkeypatch.setattr(suite, "run", lambda *a, **k: pytest.fail("the model ran"))
    code = polykv(["eval", args[0], "-m", MODEL, *args[1:]])
    out = capsys.readouterr()
    assert code == 2 and not out.out and sentence in out.err
    assert len(re.findall("polykv: error", out.err)) == 1


@pytest.mark.model
def test_a_real_model_finds_needles(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them with exact K/V, as with llama.cpp; three here, ten in docs/EVALS.md."""
    args = ["eval", "niah", "-m", str(smollm2_path), "--kv", "f16", "--lengths", "384", "--samples", "3", "--json"]
    assert polykv(args) == 0
    cell = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"][0]
    assert cell["score"] == 100 and cell["mode"] == "template" and cell["precision"] == 100
