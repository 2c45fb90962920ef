"""The document that `make run` shows: what its licence note promises, and that the small model answers rightly."""

from __future__ import annotations

from pathlib import Path

import pytest

import polykv
from polykv.commands.ask import DEFAULT_AGENTS, read_document, shipped_questions
from polykv.commands.options import SHORT_ANSWER
from polykv.report import megabytes


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> polykv.LLM:
    return polykv.load(smollm2_path, kv="q8_0/turbo3")


def test_every_answer_is_in_the_document() -> None:
    document = read_document(None)
    questions = shipped_questions()
    assert len(questions) >= DEFAULT_AGENTS
    assert all(q["answer"] in document for q in questions)
    assert len({q["question"] for q in questions}) == len(questions)


@pytest.mark.model
def test_length_of_the_document(llm: polykv.LLM) -> None:
    # README and data/README.md say so; the model finds facts up to 2,000 tokens.
    assert len(llm.tokenize(read_document(None), special=False)) == 1793


@pytest.mark.model
@pytest.mark.parametrize(("kv", "activations"), (("q8_0/turbo3", "q8"), ("q8_0/turbo3", "f32"), ("f16", "q8")))
def test_the_answers_are_right(smollm2_path: Path, kv: str, activations: str) -> None:
    """Not by luck: roundings differ with the types, the answers do not."""
    questions = shipped_questions()
    with polykv.load(smollm2_path, kv=kv, activations=activations).pool(read_document(None)) as pool:
        answers = pool.ask([q["question"] for q in questions], max_tokens=SHORT_ANSWER)
    for q, a in zip(questions, answers, strict=True):
        assert q["answer"] in a.text, f"{q['question']} -> {a.text!r}"


@pytest.mark.model
def test_another_model_reads_it_too(gemma3_path: Path) -> None:
    """Sliding windows and no chat template: other paths through cache and prompts, the same facts."""
    questions = shipped_questions()[:DEFAULT_AGENTS]
    with polykv.load(gemma3_path, kv="q8_0/turbo3").pool(read_document(None)) as pool:
        answers = pool.ask([q["question"] for q in questions], max_tokens=SHORT_ANSWER)
    for q, a in zip(questions, answers, strict=True):
        assert q["answer"] in a.text, f"{q['question']} -> {a.text!r}"


@pytest.mark.model
def test_the_answers_come_from_the_document(llm: polykv.LLM) -> None:
    """Without the document the model cannot know at least the first questions: it did read."""
    for q in shipped_questions()[:DEFAULT_AGENTS]:
        assert q["answer"] not in llm.generate(q["question"], max_tokens=SHORT_ANSWER).text


@pytest.mark.model
def test_sharing_pays(llm: polykv.LLM) -> None:
    """Three agents in the shared compressed pool against three float16 caches, in measured bytes."""
    with llm.pool(read_document(None)) as pool:
        pool.ask([q["question"] for q in shipped_questions()[:DEFAULT_AGENTS]], max_tokens=SHORT_ANSWER)
        memory = pool.memory()
    assert memory.f16_equivalent > 6 * memory.total
    # The transcript shows this number; it depends on block size and types alone.
    assert f"{megabytes(memory.shared)} once" in (Path(__file__).parent.parent / "README.md").read_text(), (
        "paste a new one"
    )
