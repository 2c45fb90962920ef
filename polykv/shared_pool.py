"""SharedKVPool: one document, held once, read by many agents.

The document is prefilled into one pinned sequence. An agent is a fork of it: the same blocks, plus blocks of its own
for what it is asked and answers. Agents that run together are rows of the same steps, and attention reads the
document's codes once per step for all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

from polykv.agent import Agent
from polykv.arguments import check_path
from polykv.cache.persist import load_sequences, read_info, save_sequences
from polykv.cache.sequence import Sequence
from polykv.engine import Engine
from polykv.engine_options import Options, refuse_shift
from polykv.engine_request import Generation
from polykv.errors import ConfigError, FormatError, MismatchError, PromptError
from polykv.memory import PoolMemory, measure
from polykv.prompt import Prompts


class SharedKVPool:
    """A document in the cache. Made by `LLM.pool` and `LLM.load_pool`; close it (or use `with`) to free its blocks."""

    # A pool whose construction was interrupted has nothing to close.
    _closed = True

    def __init__(
        self, engine: Engine, prompts: Prompts, sequence: Sequence, *, document: str, system: str, kv: str
    ) -> None:
        self.document, self.system, self.kv = document, system, kv
        self._engine, self._prompts, self._sequence = engine, prompts, sequence
        # Weak: an agent that nobody holds any more gives its blocks back.
        self._forks: list[weakref.ref[Agent]] = []
        self._asked: list[Agent] = []
        self._closed = False
        sequence.pin()
        engine.idle.add(self)

    @property
    def tokens(self) -> list[int]:
        """Token ids that all agents share."""
        return list(self._sequence.tokens)

    @property
    def agents(self) -> list[Agent]:
        """Agents that hold memory now: forks that are alive, and those of the last `ask`."""
        alive = [agent for ref in self._forks if (agent := ref()) is not None and not agent.freed]
        self._forks = [weakref.ref(a) for a in alive]
        return alive + self._asked

    def ask(self, questions: list[str], **options: Unpack[Options]) -> list[Generation]:
        """Answer all questions at once, each by its own agent, in the order given.

        The answers are those that separate runs would give. The agents stay in memory (so `memory` can measure them)
        until the next `ask`, `release`, `close`, or until another request needs the room.
        """
        if isinstance(questions, str) or not isinstance(questions, Iterable):
            raise PromptError("ask takes a list of questions; for a single one use pool.fork().ask(question)")
        refuse_shift(options)
        questions = list(questions)
        self.release()
        agents = [self._new_agent() for _ in questions]
        try:
            answers = self._engine.run([a.question(q, **options) for a, q in zip(agents, questions, strict=True)])
        except BaseException:
            for a in agents:
                a.free()
            raise
        # Only now, so that nothing reclaims them while they run.
        self._asked = agents
        return answers

    def fork(self) -> Agent:
        """A new agent that has read the document. It holds memory until its `free`, or until the pool is closed."""
        agent = self._new_agent()
        self.adopt(agent)
        return agent

    def adopt(self, agent: Agent) -> None:
        """Count an agent among those of this pool (`Agent.fork` does)."""
        # The document stays while anybody reads it, even if the caller keeps only the agent.
        agent.owner = self
        self._forks.append(weakref.ref(agent))

    def _open(self) -> None:
        if self._closed:
            raise ConfigError("this pool is closed")

    def _new_agent(self) -> Agent:
        self._open()
        return Agent(self._engine, self._prompts, self._sequence.fork(), self.document, self.system)

    def memory(self) -> PoolMemory:
        """Bytes that the document and the agents hold now, from the real arrays."""
        self._open()
        self._engine.sweep()
        return measure(self._engine.pool, self._sequence, [a.sequence for a in self.agents], self.kv)

    def save(self, path: str | Path) -> int:
        """Write the document's cache to one file, codes as they are; `LLM.load_pool` reads it. Returns its bytes."""
        self._open()
        check_path("path", path)
        return save_sequences(path, [self._sequence], extra={"document": self.document, "system": self.system})

    @classmethod
    def load(cls, path: str | Path, engine: Engine, prompts: Prompts, kv: str) -> SharedKVPool:
        """The pool that `save` wrote; see `LLM.load_pool`."""
        info = read_info(path)
        texts = [info.extra.get(name) for name in ("document", "system")]
        document, system = (t if isinstance(t, str) else None for t in texts)
        if document is None or system is None:
            raise FormatError(path, "extra", "has no document: the file holds sequences, but not of a shared pool")
        sequences = load_sequences(path, engine.pool)
        want = prompts.prefix(document, system)
        if len(sequences) != 1 or sequences[0].tokens != want:
            have = [len(s.tokens) for s in sequences]
            for s in sequences:
                s.free()
            # Another chat template or tokenizer: questions would not continue these tokens.
            names = (info.model_name, engine.pool.model.name)
            raise MismatchError("tokens of the document", f"{have} tokens", f"{len(want)} other tokens", names)
        return cls(engine, prompts, sequences[0], document=document, system=system, kv=kv)

    def release(self) -> bool:
        """Free the agents of the last `ask`; True when there were any."""
        agents, self._asked = self._asked, []
        for a in agents:
            a.free()
        return bool(agents)

    def close(self) -> None:
        """Free all agents and the document. Safe to call twice."""
        if self._closed:
            return
        self._engine.idle.discard(self)
        for agent in self.agents:
            agent.free()
        self._asked = []
        self._sequence.unpin()
        self._sequence.free()
        # Last: an interrupted close is begun again by the next one, or by `__del__`.
        self._closed = True

    def __del__(self) -> None:
        if not self._closed:
            self._engine.abandon(self.close)

    def __enter__(self) -> SharedKVPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
