"""`polykv chat`: a conversation whose history stays in the cache; turns can be edited and retried."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from polykv.commands.ask import read_document
from polykv.commands.compiling import Compiling
from polykv.commands.options import (
    DEFAULT_ANSWER,
    check_notes,
    open_model,
    run_options,
    sampling,
    sampling_options,
    say_if_cut,
    show_report,
)
from polykv.commands.output import Output
from polykv.commands.streams import error
from polykv.errors import PolyKVError
from polykv.report import megabytes

if TYPE_CHECKING:
    from polykv.agent import Agent
    from polykv.llm import LLM

HELP = """/retry          answer the last question again (another seed when --temperature is above 0)
/edit TEXT      ask TEXT instead of the last question
/undo           take the last question and its answer back
/memory         bytes that this conversation holds
/quit           leave (also Ctrl-D)
Ctrl-C stops an answer; what was said so far stays."""


@click.command()
@click.option("--doc", "document", default=None, metavar="FILE", help="Talk about this text file.")
@click.option("--system", default="", help="System message.")
@sampling_options
@run_options
def command(document: str | None, system: str, **values: Any) -> None:
    """Talk to the model. /help lists what can be typed besides questions."""
    out = Output(values["as_json"])
    text = None if document is None else read_document(document)
    compiling = Compiling(values["backend"])
    llm = open_model(values, out, compiling)
    if text is None:
        agent = llm.chat(system)
    else:
        with compiling, out.progress("reading the document") as update:
            pool = llm.pool(
                text, system=system, on_prefill=lambda done, total: update(done, total, "reading the document")
            )
        agent = pool.fork()
    if sys.stdin.isatty():
        # Gives input() line editing and history; the module is missing on some systems, input() works without.
        try:
            import readline  # noqa: F401
        except ImportError:
            out.note("this Python has no readline: no line editing")
        out.text("/help lists commands, /quit ends")
    chat = Chat(agent, out, compiling, sampling(values, DEFAULT_ANSWER))
    chat.loop()
    check_notes(llm, values["strict"], out)
    _finish(llm, chat, values, out)


def _finish(llm: LLM, chat: Chat, values: dict[str, Any], out: Output) -> None:
    report = show_report(llm, values, out)
    out.json({"turns": chat.turns, "ops": dict(llm.ops.source), "notes": list(llm.notes), **report})


class Chat:
    """The loop. turns: question and answer of every turn that still counts."""

    def __init__(self, agent: Agent, out: Output, compiling: Compiling, options: dict[str, Any]) -> None:
        self.turns: list[dict[str, str]] = []
        self._agent, self._out, self._compiling, self._options = agent, out, compiling, options
        # How often the last question was retried; each time draws with the next seed.
        self._attempt = 0

    def loop(self) -> None:
        """Read lines until the end of input or /quit. An error ends a turn, not the conversation."""
        prompt = "> " if sys.stdin.isatty() else ""
        while True:
            try:
                line = input(prompt).strip()
            except EOFError:
                return
            if line == "/quit":
                return
            try:
                self.handle(line)
            except PolyKVError as e:
                error(e)

    def handle(self, line: str) -> None:
        """One line: a command or a question."""
        word, _, rest = line.partition(" ")
        match word:
            case "":
                return
            case "/help":
                self._out.text(HELP)
            case "/memory":
                sequence = self._agent.sequence
                blocks = [len(held) for held in sequence.used_blocks()]
                nbytes = sum(n * sequence.pool.block_nbytes(group) for group, n in enumerate(blocks))
                self._out.text(f"{sequence.length:,} tokens, {megabytes(nbytes)}")
            case "/undo":
                self._undo()
            case "/retry":
                self._again(None)
            case "/edit":
                self._again(rest.strip())
            case _ if word.startswith("/"):
                self._out.text(f"no command {word}; /help lists them")
            case _:
                self.ask(line)

    def ask(self, question: str, seed: int = 0) -> None:
        """Put a question and print the answer as it appears; Ctrl-C stops it and keeps what was said."""
        options = {**self._options, "seed": self._options["seed"] + seed}
        text = ""
        with self._compiling, self._agent.stream(question, **options) as stream:
            try:
                for piece in stream:
                    text += piece
                    self._out.text(piece, end=False)
            except KeyboardInterrupt:
                self._out.text(" [stopped]", end=False)
            self._out.text()
        say_if_cut(stream.generation)
        self.turns.append({"question": question, "answer": text})

    def _undo(self) -> dict[str, str] | None:
        if not self.turns:
            self._out.text("nothing was asked yet")
            return None
        # A turn that was stopped before its first token counts for the agent as well: both lists stay in step.
        self._agent.trim(self._agent.turns[-1])
        return self.turns.pop()

    def _again(self, question: str | None) -> None:
        if question == "":
            self._out.text("/edit needs the new question")
            return
        attempt = self._attempt + 1 if question is None else 0
        last = self._undo()
        if last is not None:
            self.ask(question or last["question"], attempt)
            self._attempt = attempt
