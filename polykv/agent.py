"""One reader of a document: shares its beginning with others, has a history of its own."""

from __future__ import annotations

from typing import Protocol, Unpack

from polykv.cache.sequence import Sequence
from polykv.engine import Engine
from polykv.engine_options import Options, make_request, refuse_shift
from polykv.engine_request import NO_TOKENS, Generation, Request
from polykv.engine_stream import Stream
from polykv.errors import CapacityError, ConfigError, PromptError
from polykv.prompt import Prompts, common_prefix


class Owner(Protocol):
    """What agents belong to."""

    def adopt(self, agent: Agent) -> None:
        """Take an agent in: it ends when its owner ends."""
        ...


class Agent:
    """A conversation whose K/V stays in the cache from turn to turn; made by `SharedKVPool.fork` and `LLM.chat`."""

    _sequence: Sequence | None = None

    def __init__(self, engine: Engine, prompts: Prompts, sequence: Sequence, document: str = "", system: str = ""):
        self._engine, self._prompts, self._document, self._system = engine, prompts, document, system
        self._tokens: list[int] = list(sequence.tokens)
        self._prefix_n = len(self._tokens)
        self._turns: list[int] = []
        self._active: Request | None = None
        # The pool, kept alive by this agent, which closes it together with its agents.
        self.owner: Owner | None = None
        # Last: from here on there is something to free.
        self._sequence = sequence

    @property
    def sequence(self) -> Sequence:
        """The agent's sequence. Raises ConfigError after `free`."""
        if self._sequence is None:
            raise ConfigError("this agent was freed; fork the pool again")
        return self._sequence

    @property
    def tokens(self) -> list[int]:
        """Everything said so far, document included; the last one may not be in the cache yet."""
        self._settle()
        return list(self._tokens)

    @property
    def turns(self) -> list[int]:
        """Number of tokens before each turn; empty = nothing asked yet."""
        self._settle()
        return list(self._turns)

    @property
    def freed(self) -> bool:
        return self._sequence is None

    # -- turns ---------------------------------------------------------------------------------------------------
    def ask(self, question: str, **options: Unpack[Options]) -> Generation:
        """Put a question as the next turn and return the answer."""
        return self._run(self.question(question, **options))

    def generate(self, text: str, **options: Unpack[Options]) -> Generation:
        """Continue after `text`, appended to the tokens as it is, without a template."""
        refuse_shift(options)
        said = self._idle().tokens
        ids = said + self._prompts.text(text, begin=not said)
        return self._run(self._request(ids, (), options))

    def stream(self, question: str, **options: Unpack[Options]) -> Stream:
        """Like `ask`, as an iterator of text pieces. The turn counts when the stream is finished or closed."""
        request = self.question(question, **options)
        try:
            return self._engine.stream(request)
        except BaseException:
            self._discard()
            raise

    def question(self, question: str, **options: Unpack[Options]) -> Request:
        """The request of a question, for callers that run several agents in one `Engine.run`."""
        refuse_shift(options)
        if not isinstance(question, str):
            raise PromptError(f"a question is of type {type(question).__name__}; it must be a string")
        if not question.strip():
            raise PromptError("the question is empty")
        said = self._idle().tokens
        if len(said) == self._prefix_n:
            ids = self._prompts.first(question, self._document, self._system)
        else:
            ids = said + self._prompts.next(question, said[-1])
        return self._request(ids, self._prompts.stop, options)

    def _request(self, ids: list[int], stop: tuple[str, ...], options: Options) -> Request:
        if not ids:
            raise PromptError(NO_TOKENS)
        # A question may share a little less than the document's end with the others (the tokenizer joined characters),
        # and at least one token must be computed to predict the next.
        if self.sequence.length == 0:
            self._sequence, _ = Sequence.attach(self.sequence.pool, ids)
        keep = min(len(common_prefix(self.sequence.tokens, ids)), len(ids) - 1)
        if keep < self.sequence.length:
            self._rewind(keep)
        self._active = make_request(ids, self.sequence, stop, **options)
        return self._active

    def _run(self, request: Request) -> Generation:
        try:
            generation = self._engine.run([request])[0]
        except BaseException:
            self._discard()
            raise
        self._settle()
        return generation

    def _discard(self) -> None:
        """Forget a request that failed or was interrupted: the history is as before it."""
        self._active = None
        self._rewind(len(self._tokens))

    def _settle(self) -> None:
        """Take over what the last request added, once it is done."""
        if self._active is not None and self._active.cancelled:
            # A stream that was dropped in the middle: it ends now, not at somebody's next step.
            self._engine.sweep()
        if self._active is None or not self._active.done:
            return
        # All at once, so that Ctrl-C finds either the old history or the new one.
        turns, tokens = [*self._turns, len(self._tokens)], list(self._active.ids)
        self._turns, self._tokens, self._active = turns, tokens, None

    def _idle(self) -> Agent:
        """Raises ConfigError while an answer is on its way."""
        self._settle()
        if self._active is not None and not self._engine.holds(self._active):
            # Interrupted before the engine had it.
            self._discard()
        if self._active is not None:
            raise ConfigError("this agent is still answering; finish or close its stream first")
        return self

    # -- memory --------------------------------------------------------------------------------------------------
    def trim(self, n_tokens: int) -> None:
        """Forget everything after the first n_tokens; `agent.trim(agent.turns[-1])` takes the last turn back.

        Raises ConfigError for a number beyond the tokens there are or inside the shared document.
        """
        if not isinstance(n_tokens, int):
            raise ConfigError(f"cannot keep {n_tokens!r} tokens: a whole number is needed")
        said = self._idle().tokens
        if not self._prefix_n <= n_tokens <= len(said):
            raise ConfigError(f"cannot keep {n_tokens} tokens: the agent has {self._prefix_n} to {len(said)}")
        self._tokens = said[:n_tokens]
        self._turns = [t for t in self._turns if t < n_tokens]
        self._rewind(n_tokens)

    def _rewind(self, length: int) -> None:
        """Shorten the sequence to `length` tokens at most."""
        sequence = self.sequence
        if sequence.length <= length:
            return
        try:
            sequence.trim(length)
        except CapacityError:
            # Cells that a sliding window needs at that position are gone: start again from what the cache still has;
            # the next request computes the rest.
            ids = sequence.tokens[: length + 1]
            sequence.free()
            self._sequence, _ = Sequence.attach(sequence.pool, ids)

    def fork(self) -> Agent:
        """A second agent with the same history; both go on independently and share what they have."""
        self._idle()
        twin = Agent(self._engine, self._prompts, self.sequence.fork(), self._document, self._system)
        twin._tokens, twin._turns, twin._prefix_n = self.tokens, self.turns, self._prefix_n
        if self.owner is not None:
            self.owner.adopt(twin)
        return twin

    def free(self) -> None:
        """Give the private blocks back. Safe to call twice."""
        if self._active is not None and not self._active.done:
            self._engine.drop([self._active])
        self._active = None
        if self._sequence is not None:
            self._sequence.free()
            self._sequence = None

    def __del__(self) -> None:
        if not self.freed:
            self._engine.abandon(self.free)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()
