"""Nothing as input: empty and blank prompts, messages, documents and questions, with and without a template and BOS."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_llm import DOCUMENT, tiny_llm
from tiny_models import tiny_path

from polykv import cli
from polykv.errors import PromptError
from polykv.llm import LLM
from polykv.notes import EMPTY_DOCUMENT

# llama has no BOS in front of prompts, gemma3 has.
VARIANTS = [("llama", False), ("llama", True), ("gemma3", False), ("gemma3", True)]
BLANK = ("", " ", "\n\n")
OPTIONS: dict[str, Any] = {"max_tokens": 3, "ignore_eog": True}


@pytest.fixture(params=VARIANTS, ids=str)
def llm(request: pytest.FixtureRequest) -> LLM:
    name, chat = request.param
    return tiny_llm(name, chat=chat)


def used(llm: LLM) -> int:
    llm.engine.sweep()
    return sum(m.n_used for m in llm.cache.managers)


@pytest.mark.parametrize("text", BLANK)
def test_an_empty_user_turn_is_refused_and_a_blank_text_is_continued(llm: LLM, text: str) -> None:
    if llm.prompts.template is not None:
        for use in (llm.generate, llm.stream, lambda p: llm.generate_many(["Hi", p])):
            with pytest.raises(PromptError, match="the prompt is empty"):
                use(text)
        # Whoever writes messages means them.
        assert len(llm.generate([{"role": "user", "content": text}], **OPTIONS).tokens) == 3
    if text or llm.tokenizer.add_bos:
        assert len(llm.generate(text, raw=True, **OPTIONS).tokens) == 3
        assert len(llm.chat().generate(text, **OPTIONS).tokens) == 3
    else:
        for use in (lambda p: llm.generate(p, raw=True), llm.chat().generate):
            with pytest.raises(PromptError, match="the prompt is empty: it has no tokens"):
                use(text)
    assert used(llm) == 0 and not llm.engine.busy


def test_empty_lists(llm: LLM) -> None:
    for use in (llm.generate, llm.stream):
        with pytest.raises(PromptError, match="the prompt is empty"):
            use([])
    assert llm.generate_many([]) == []
    assert llm.logits([]).shape == (0, llm.config.vocab)
    with llm.pool(DOCUMENT) as pool:
        assert pool.ask([]) == []
    if llm.prompts.template is not None:
        with pytest.raises(PromptError, match="non-empty list"):
            llm.prompts.messages([])


@pytest.mark.parametrize("question", BLANK)
def test_an_empty_question_is_refused(llm: LLM, question: str) -> None:
    with llm.pool(DOCUMENT) as pool:
        want = pool.ask(["Who?"], **OPTIONS)[0].tokens
        agent, chat = pool.fork(), llm.chat()
        uses: list[Callable[[], object]] = [
            lambda: pool.ask(["Who?", question]),
            lambda: agent.ask(question),
            lambda: agent.stream(question),
            lambda: chat.ask(question),
        ]
        for use in uses:
            with pytest.raises(PromptError, match="the question is empty"):
                use()
        # Nothing happened: the agent is where it was, and answers.
        assert agent.turns == [] and agent.tokens == pool.tokens
        assert agent.ask("Who?", **OPTIONS).tokens == want
        # Text to continue may be blank: the document is there.
        assert len(pool.fork().generate(question, **OPTIONS).tokens) == 3
        assert pool.ask(["Who?"], **OPTIONS)[0].tokens == want


@pytest.mark.parametrize("document", BLANK)
def test_an_empty_document_is_noted_and_works(llm: LLM, document: str) -> None:
    with llm.pool(document) as pool:
        assert llm.notes.count(EMPTY_DOCUMENT) == 1
        answers = pool.ask(["Who?", "Why?"], **OPTIONS)
        for question, answer in zip(("Who?", "Why?"), answers, strict=True):
            ids = llm.prompts.first(question, document)
            assert answer.tokens == llm.generate(ids, stop=llm.prompts.stop, **OPTIONS).tokens
    # A system message alone is something to share.
    other = tiny_llm("llama", chat=True)
    other.pool(document, system="Be brief.").close()
    assert EMPTY_DOCUMENT not in other.notes
    assert used(llm) == 0


@pytest.mark.parametrize(
    "args",
    [
        ["generate", ""],
        ["generate", " \n"],
        ["generate", "-"],
        ["ask", "DOCUMENT", "-q", ""],
        ["ask", "DOCUMENT", "-q", "Who?", "-q", " "],
        ["ask", "BLANK", "-q", "Who?"],
        ["ask", "-", "-q", "Who?"],
        ["chat", "--doc", "BLANK"],
        ["generate", "", "--raw"],
    ],
)
def test_the_command_line_refuses_nothing_in_one_line(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "DOCUMENT").write_text(DOCUMENT)
    (tmp_path / "BLANK").write_text(" \n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b" \n")))
    assert cli.run([*args, "-m", str(tiny_path("llama"))]) == 2
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if "note:" not in line]
    assert out == ""
    assert len(errors) == 1 and errors[0].startswith("polykv: error: ") and "empty" in errors[0]


def test_the_command_line_continues_blanks_and_bos(capsys: pytest.CaptureFixture[str]) -> None:
    for name, prompt in (("llama", " "), ("gemma3", "")):
        assert cli.run(["generate", prompt, "--raw", "-n", "2", "-m", str(tiny_path(name))]) == 0, capsys.readouterr()
