"""`polykv ask`: one document is read once, several agents answer one question each from the shared cache."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.compiling import Compiling
from polykv.commands.options import (
    SHORT_ANSWER,
    check_notes,
    open_model,
    run_options,
    sampling,
    sampling_options,
    say_if_cut,
    show_report,
)
from polykv.commands.output import Output
from polykv.errors import ConfigError, PromptError
from polykv.file_kind import FileKind, file_kind
from polykv.report import megabytes
from polykv.whole_file import check_writable

if TYPE_CHECKING:
    from polykv.engine_request import Generation
    from polykv.llm import LLM
    from polykv.memory import PoolMemory
    from polykv.shared_pool import SharedKVPool

DEFAULT_AGENTS = 3
# Files that are taken for documents, and what to do with them.
_NOT_TEXT = {
    FileKind.PDF: "extract its text first, for example with pdftotext",
    FileKind.ZIP: "word processors write such files; save it as plain text first",
    FileKind.GZIP: "decompress it first",
    FileKind.GGUF: "-m takes it",
    FileKind.SAFETENSORS: "--pool takes the pools that --save wrote",
}


@click.command()
@click.argument("document", required=False)
@click.argument("rest", nargs=-1, metavar="")
@click.option("-q", "--question", "questions", multiple=True, help="One agent answers it; may be repeated.")
@click.option("--system", default="", help="System message before the document.")
@click.option("--save", type=click.Path(dir_okay=False), help="Keep the document's cache in this file.")
@click.option("--pool", "pool_file", type=click.Path(dir_okay=False), help="Take the document from such a file.")
@sampling_options
@run_options
def command(document: str | None, rest: tuple[str, ...], questions: tuple[str, ...], **values: Any) -> None:
    """Answer questions about DOCUMENT (a text file, or - for standard input).

    Without DOCUMENT and --pool, the document that comes with polykv is read; without -q, its first three questions
    are asked.
    """
    out = Output(values["as_json"])
    _check(document, rest, questions, values)
    text = "" if values["pool_file"] else read_document(document)
    asked = list(questions) or [item["question"] for item in shipped_questions()[:DEFAULT_AGENTS]]

    compiling = Compiling(values["backend"])
    llm = open_model(values, out, compiling)
    began, compiled_before = time.perf_counter(), compiling.seconds
    with _pool(llm, text, values, out, compiling) as pool:
        prefill_s = time.perf_counter() - began - (compiling.seconds - compiled_before)
        if values["save"]:
            pool.save(values["save"])
        answers, timing = _answer(llm, pool, asked, values, out, compiling)
        check_notes(llm, values["strict"], out)
        memory = pool.memory()
        read_tok_s = 0.0 if values["pool_file"] else memory.prefix_tokens / max(prefill_s, 1e-9)
        timing |= {"prefill_s": prefill_s, "prefill_tok_s": read_tok_s, "compile_s": compiling.seconds}
        _show(out, asked, answers)
        _cost(out, memory, answers, timing, loaded=bool(values["pool_file"]))
        report = show_report(llm, values, out)
        out.json(
            {
                "answers": [a.text.strip() for a in answers],
                "pool": memory.as_dict(),
                "timing": timing,
                "ops": dict(llm.ops.source),
                "notes": list(llm.notes),
                "generations": [_generation(q, a) for q, a in zip(asked, answers, strict=True)],
                **report,
            }
        )


def _check(document: str | None, rest: tuple[str, ...], questions: tuple[str, ...], values: dict[str, Any]) -> None:
    if rest:
        raise ConfigError(f"one document at a time, and questions go after -q: what is {rest[0]!r}?")
    if values["pool_file"] and document:
        raise ConfigError("give a document or --pool, not both: a pool file holds its document")
    if values["pool_file"] and values["system"]:
        raise ConfigError("give --system when the pool is saved, not with --pool: it stands before the document")
    if (document or values["pool_file"]) and not questions:
        raise ConfigError("no question: add -q 'your question' (once per agent)")
    if not all(q.strip() for q in questions):
        raise ConfigError("a question (-q) is empty")
    if values["save"]:
        check_writable(values["save"])


def read_document(name: str | None) -> str:
    """Text of the document argument: the shipped one, standard input, or a file (UTF-8)."""
    if name is None:
        return (files("polykv.data") / "texts" / "jargon-file.txt").read_text(encoding="utf-8").strip()
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        _check_is_text(name, raw)
        text = raw.decode("utf-8-sig").strip()
    except OSError as e:
        raise PromptError(f"{name}: cannot be read: {e.strerror or e}") from None
    except UnicodeDecodeError as e:
        raise PromptError(
            f"{name}: not UTF-8 text (byte {e.start}); convert it first, for example with iconv"
        ) from None
    if not text:
        raise PromptError(f"{name}: the document is empty")
    return text


def _check_is_text(name: str, raw: bytes) -> None:
    """Refuse what is no plain text although its bytes may be valid UTF-8."""
    kind = file_kind(raw[:64])
    utf16 = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    if kind in _NOT_TEXT:
        raise PromptError(f"{name}: not a text but {kind.value}: {_NOT_TEXT[kind]}")
    if b"\0" in raw and not utf16:
        raise PromptError(f"{name}: not a text: it has a zero byte (byte {raw.index(0)})")


def shipped_questions() -> list[dict[str, str]]:
    """Questions about the shipped document, each with words that a right answer contains."""
    text = (files("polykv.data") / "texts" / "jargon-file.questions.json").read_text(encoding="utf-8")
    questions: list[dict[str, str]] = json.loads(text)
    return questions


def _pool(llm: LLM, text: str, values: dict[str, Any], out: Output, compiling: Compiling) -> SharedKVPool:
    with compiling:
        if values["pool_file"]:
            return llm.load_pool(values["pool_file"])
        with out.progress("reading the document") as update:
            return llm.pool(
                text,
                system=values["system"],
                on_prefill=lambda done, total: update(done, total, "reading the document"),
            )


def _answer(
    llm: LLM, pool: SharedKVPool, asked: list[str], values: dict[str, Any], out: Output, compiling: Compiling
) -> tuple[list[Generation], dict[str, float]]:
    """Answers of all agents, and how fast they came."""
    if compiling.kernels or values["pool_file"]:
        # Perhaps the first run on this machine: let kernels be compiled before time is taken.
        with compiling:
            pool.ask(asked, **sampling(values, SHORT_ANSWER) | {"max_tokens": 2})
    counters = llm.engine.counters
    rows, seconds = counters.decode_rows, counters.decode_s
    with out.status(f"{len(asked)} agents are answering"), compiling:
        answers = pool.ask(asked, **sampling(values, SHORT_ANSWER))
    rows, seconds = counters.decode_rows - rows, counters.decode_s - seconds
    return answers, {"decode_s": seconds, "decode_tok_s": rows / seconds if seconds else 0.0}


def _show(out: Output, questions: list[str], answers: list[Generation]) -> None:
    for i, (question, answer) in enumerate(zip(questions, answers, strict=True), 1):
        lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
        out.text(f"agent {i}  {question}")
        out.text(textwrap.indent("\n".join(lines), " " * 9) + "\n")
    say_if_cut(*answers)


def _cost(out: Output, m: PoolMemory, answers: list[Generation], timing: dict[str, float], *, loaded: bool) -> None:
    n = len(answers)
    agents, caches = ("1 agent", "1 f16 cache") if n == 1 else (f"{n} agents", f"{n} separate f16 caches")
    computed = sum(a.stats.prompt_n - a.stats.cache_n for a in answers) + (0 if loaded else m.prefix_tokens)
    rows = [
        ["K/V of the document", f"{megabytes(m.shared)} once", "-"],
        ["K/V of each agent", megabytes(sum(m.private) / n), megabytes(m.f16_equivalent / n)],
        [f"K/V of {agents}", megabytes(m.total), megabytes(m.f16_equivalent)],
        ["compared", "1x", f"{m.f16_equivalent / m.total:.1f}x"],
        ["prompt tokens to read", f"{computed:,}", f"{sum(a.stats.prompt_n for a in answers):,}"],
    ]
    source = "loaded from a file" if loaded else f"read once at {timing['prefill_tok_s']:,.0f} tokens/s"
    answered = f"{timing['decode_tok_s']:,.0f} tokens/s for {agents}" + (" together" if n > 1 else "")
    caption = f"Document: {m.prefix_tokens:,} tokens, {source}. Answers: {answered}. Bytes are those of the arrays."
    out.table("What it cost", ["", f"one pool, {m.kv}", caches], rows, caption)


def _generation(question: str, a: Generation) -> dict[str, Any]:
    return {
        "question": question,
        "text": a.text,
        "tokens": a.tokens,
        "finish_reason": a.finish_reason.value,
        "stats": a.stats.as_dict(),
    }
