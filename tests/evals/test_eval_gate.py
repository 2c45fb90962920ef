"""The gate: kinds of disagreement as pure functions, recorded runs on a model, and faults that it must refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_models import tiny_path

from polykv.errors import ConfigError
from polykv.evals.arms import Setting, make_arm, open_setting
from polykv.evals.damage import DAMAGES
from polykv.evals.gate import EQUAL_TV, Kind, Run, Step, compare, summary, total_variation
from polykv.evals.gate_prompts import needle_prompts
from polykv.evals.gate_run import GatePrompt, record
from polykv.prompt import Prompts
from polykv.text.tokenizer import Tokenizer


def step(**probabilities: float) -> Step:
    """t5=0.7 is token 5 with probability 0.7."""
    ids = np.array([int(name[1:]) for name in probabilities])
    logs = np.log(list(probabilities.values()))
    order = np.argsort(-logs, kind="stable")
    return Step(ids[order], logs[order])


def run(steps: list[Step | None], said: str = "", capped: bool = False) -> Run:
    """said: one character per position."""
    said = said or "." * len(steps)
    return Run(steps, [said[: i + 1] for i in range(len(said))], capped)


SURE, OTHER = step(t1=0.9, t2=0.1), step(t2=0.9, t1=0.1)
TORN = step(t2=0.51, t1=0.49)


@pytest.mark.parametrize(
    ("reference", "candidate", "answer", "kinds"),
    [
        (run([SURE, SURE]), run([SURE, SURE]), "", {}),
        (run([SURE, SURE]), run([SURE, OTHER]), "", {1: Kind.REAL}),
        (run([SURE]), run([TORN]), "", {0: Kind.TIE}),  # either run's tie counts
        (run([TORN]), run([SURE]), "", {0: Kind.TIE}),
        (run([SURE] * 3, "x7y"), run([SURE, SURE, OTHER], "x7z"), "7", {2: Kind.POST_ANSWER}),
        (run([SURE] * 3, "x7y"), run([SURE, OTHER, SURE], "x7z"), "7", {1: Kind.REAL}),  # at the answer, not after
        (run([SURE] * 3, "7yz"), run([SURE, OTHER, SURE], "a7z"), "7", {1: Kind.REAL}),  # only one has given it
        (run([SURE], "7"), run([TORN], "8"), "7", {0: Kind.REAL}),  # a tie that costs the answer
    ],
)
def test_kinds(reference: Run, candidate: Run, answer: str, kinds: dict[int, Kind]) -> None:
    assert compare(reference, candidate, answer, forced=True).disagreements == kinds


def test_free_runs_are_compared_up_to_the_first_difference() -> None:
    found = compare(run([SURE, SURE, SURE]), run([SURE, OTHER, OTHER]), "", forced=False)
    assert found.disagreements == {1: Kind.REAL} and len(found.tv) == 2
    assert compare(run([SURE] * 3), run([SURE, OTHER, OTHER]), "", forced=True).real == 2


def test_a_lost_answer_is_real_whatever_the_tokens() -> None:
    found = compare(run([SURE], "7"), run([SURE], "8"), "7", forced=True)
    assert found.recall_mismatch and found.real == 1 and not found.cap_limited
    assert not summary([found], 1.0)["passes"]
    assert compare(run([SURE], "7"), run([SURE], "8", capped=True), "7", forced=True).cap_limited
    # Found by the candidate only: a mismatch too, and the reference is the one that may have been cut.
    assert compare(run([SURE], "8", capped=True), run([SURE], "7"), "7", forced=True).cap_limited


def test_positions_without_a_record_are_counted_not_judged() -> None:
    found = compare(run([SURE, None, SURE]), run([SURE, SURE, None]), "", forced=True)
    assert (found.missing, len(found.tv)) == (2, 1)
    nothing = summary([compare(run([None]), run([None]), "", forced=True)], 1.0)
    assert nothing["n_missing"] == 1 and not nothing["passes"]
    assert not summary([], 1.0)["passes"]


def test_total_variation() -> None:
    a = step(t1=0.6, t2=0.3)  # 0.1 elsewhere
    b = step(t1=0.5, t3=0.2)  # 0.3 elsewhere
    assert total_variation(a, b) == pytest.approx(0.5 * (0.1 + 0.3 + 0.2 + 0.2))
    assert total_variation(a, a) == 0


def test_summary_counts() -> None:
    prompts = [
        compare(run([SURE, SURE]), run([SURE, SURE]), "", forced=True),
        compare(run([SURE, SURE]), run([SURE, TORN]), "", forced=True),
        compare(run([SURE, SURE]), run([OTHER, OTHER]), "", forced=True),
    ]
    cell = summary(prompts, 0.34)
    assert (cell["real_frac"], cell["frac_full_agree"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert (cell["tie"], cell["real"], cell["post_answer"]) == (1, 2, 0)
    assert cell["real_frac_tokens"] == pytest.approx(2 / 6)
    assert cell["top1_mae"] == pytest.approx((math.log(0.9 / 0.49) + 2 * math.log(9)) / 6)
    assert not cell["passes"] and cell["mean_tv"] > 0.3  # too far apart, though few prompts are
    assert summary(prompts[:2], 0.0)["passes"] and not summary(prompts, 0.3)["passes"]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return open_setting(str(tiny_path(request.param)), ctx=256)


def _prompts(setting: Setting) -> list[GatePrompt]:
    tokenizer = Tokenizer.from_gguf(setting.model.gguf.metadata)
    texts = ["The bridge has seven arches. " * 3, "It was paid for with salt.", "Who paid, and how much was it?"]
    return [GatePrompt(tuple(tokenizer.encode(t, add_bos=None)), "") for t in texts]


def test_runs_repeat_and_exact_types_pass(setting: Setting) -> None:
    prompts, exact = _prompts(setting), make_arm(setting, "f16")
    reference = record(setting, exact, prompts, 12)
    assert reference.equals(record(setting, exact, prompts, 12))
    led = record(setting, exact, prompts, 12, lead=reference)
    assert led.equals(reference)
    cell = summary([compare(r, c, "", forced=True) for r, c in zip(reference.runs, led.runs, strict=True)], 0, EQUAL_TV)
    assert cell["passes"] and cell["mean_tv"] == cell["p95_tv"] == cell["top1_mae"] == 0
    # One prompt alone gives what it gives in company.
    alone = record(setting, exact, prompts[1:2], 12)
    assert alone.tokens[0] == reference.tokens[1]
    coarse = record(setting, make_arm(setting, "turbo2"), prompts, 12, lead=reference)
    assert not coarse.equals(reference) and coarse.tokens == reference.tokens


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_refused(setting: Setting, name: str) -> None:
    prompts, exact = _prompts(setting), make_arm(setting, "f16")
    reference = record(setting, exact, prompts, 12)
    damaged = record(setting, exact, prompts, 12, lead=reference, damage=DAMAGES[name])
    found = [compare(r, c, "", forced=True) for r, c in zip(reference.runs, damaged.runs, strict=True)]
    assert not summary(found, 0.0, EQUAL_TV)["passes"]


def test_needle_prompts_hold_their_answer_once() -> None:
    setting = open_setting(str(tiny_path("llama")), ctx=256)
    prompts = Prompts(Tokenizer.from_gguf(setting.model.gguf.metadata), None)
    text = " ".join(f"word{i}" for i in range(900))
    made = needle_prompts(prompts, text, 4, 200, 1)
    assert made == needle_prompts(prompts, text, 4, 200, 1) != needle_prompts(prompts, text, 4, 200, 2)
    for p in made:
        assert len(p.ids) <= 200
        assert prompts.tokenizer.decode(list(p.ids)).count(p.answer) == 1


@pytest.mark.parametrize(
    ("text", "tokens", "message"),
    [("word " * 900, 64, "no room"), ("光是一条溪流" * 9, 300, "too short"), ("word " * 30, 300, "too short")],
)
def test_texts_that_give_no_prompts(text: str, tokens: int, message: str) -> None:
    setting = open_setting(str(tiny_path("llama")), ctx=256)
    prompts = Prompts(Tokenizer.from_gguf(setting.model.gguf.metadata), None)
    with pytest.raises(ConfigError, match=message):
        needle_prompts(prompts, text, 2, tokens, 0)
