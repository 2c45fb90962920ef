"""`polykv.load(...)` and what it returns: one model, ready for text, logits, chats and shared pools.

llm = polykv.load("smollm2")
llm.generate("Why is the sky blue?").text
with llm.pool(document) as pool:
    answers = pool.ask(["Who wrote it?", "When?"])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from polykv import ops as operations
from polykv.agent import Agent
from polykv.arguments import check_path, check_whole, integers, path_list
from polykv.cache.calibration import Calibration
from polykv.cache.calibration_file import read_calibration
from polykv.cache.codecs import DEFAULT_KV, tiers_text
from polykv.cache.codecs.trellis import with_codebooks
from polykv.cache.plan import MemoryPlan, plan_memory
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.cache.support import cache_config, whole_cells
from polykv.catalogue import resolve
from polykv.device_plan import DevicePlan, Session, reserve, settled
from polykv.engine import Engine
from polykv.engine_options import Options, make_request
from polykv.engine_request import Generation, Request
from polykv.engine_shift import check_shift, check_turns
from polykv.engine_stream import Stream
from polykv.errors import ConfigError, PromptError
from polykv.model.key_bias import AUTO, KeyCheck, asked_tiers, protect_keys
from polykv.model.loader import Model, load_model
from polykv.model.runner import Logits, Runner
from polykv.model.screen import screened
from polykv.model.support import check_model
from polykv.notes import EMPTY_DOCUMENT, NO_TEMPLATE, fewer_sequences, session_notes, shorter_context
from polykv.prompt import Message, Prompts
from polykv.report import Report, make_report
from polykv.shared_pool import SharedKVPool
from polykv.text.chat import ChatTemplate
from polykv.text.tokenizer import Tokenizer
from polykv.types import F32, Activations

DEFAULT_CONTEXT = 8192
# Arrays grow on demand, so room for a few sequences of full length costs nothing until it is used.
SEQUENCES_OF_FULL_LENGTH = 4

Prompt = str | Seq[Message] | Seq[int]
PROMPT_KINDS = "a prompt is a string, a list of messages {role, content}, or a list of token ids"
TOKEN_IDS = "detokenize takes a list of token ids"


def load(
    model: str | Path = "smollm2",
    *,
    backend: str = "cpu",
    kv: str = DEFAULT_KV,
    codebooks: Iterable[str | Path] = (),
    activations: str | None = None,
    ctx: int | None = None,
    cache_tokens: int | None = None,
    threads: int | None = None,
    chunk: int = 512,
    calibration: str | Path | Calibration | None = None,
    calibration_v: str | Path | None = None,
    screen: bool = True,
) -> LLM:
    """Open a model.

    model: path of a GGUF file, a name of the catalogue, or `hf:org/repo[:file]`. backend: "cpu", "cuda" or "ref".
    kv: tier `K/V` of the cache, with optional overrides per layer (`q8_0/turbo3,0-1=f16`), or `auto`, which gives K
    more bits in layers whose key bias needs them (`polykv.model.key_bias`).
    codebooks: files that replace the codebooks of trellis types in `kv` (`polykv.codebook`). activations: "f32" (exact)
    or "q8" (rows rounded to int8 per 32 values before each matrix product; default of cpu and cuda). ctx: longest
    sequence in tokens (default: the model's, at most 8192). cache_tokens: cells of all sequences together (default
    4 * ctx). threads: worker threads of the cpu backend (default: all cores). chunk: prompt tokens per step.
    calibration: file of factors for the channels of K (`polykv calibrate`), or what `polykv.calibrate` found;
    calibration_v: file for V.
    screen: find greedy tokens in half of the output matrix where that pays (`polykv.model.screen`); changes no token.

    Raises a PolyKVError for anything that is wrong with the file or the arguments.
    """
    numbers = {"ctx": ctx, "cache_tokens": cache_tokens, "threads": threads}
    check_whole(chunk=chunk, **{name: value for name, value in numbers.items() if value is not None})
    books = path_list("codebooks", codebooks)
    if not isinstance(kv, str):
        raise ConfigError(f"kv is {kv!r}; it must be a string such as {DEFAULT_KV}")
    check_path("model", model)
    ops = operations.load(backend)
    loaded = load_model(resolve(str(model)))
    limit = loaded.config.context
    context = min(limit, DEFAULT_CONTEXT) if ctx is None else ctx
    if not 1 <= context <= limit:
        raise ConfigError(f"a context of {context} tokens is outside 1..{limit}, the range of this model")
    loaded = loaded.for_context(context)
    set_threads(backend, threads)
    asked, free = asked_tiers(kv, len(loaded.config.layers))
    asked = with_codebooks(asked, books)
    check_model(ops, loaded, cache_config(ops, asked))
    tiers, checks = protect_keys(ops, loaded, asked, free, ops.preferred_block())
    stored = cache_config(ops, tiers)
    mode, unscreened = choose_activations(backend, activations), "switched off"
    most = SEQUENCES_OF_FULL_LENGTH if cache_tokens is None else max(1, -(-cache_tokens // context))
    wanted = Session(ops, loaded, tiers, context, most, chunk=chunk, activations=mode)
    session, planned = settled(wanted, fewer=cache_tokens is None)
    cells = whole_cells(ops, context, session.agents) if cache_tokens is None else cache_tokens
    cache = KVPool(ops, loaded.config, stored, fingerprint=loaded.fingerprint, max_tokens=cells)
    cache.equalize(_calibration(calibration, calibration_v))
    reserve(cache, session, planned)
    tokenizer = Tokenizer.from_gguf(loaded.gguf.metadata)
    if screen:
        loaded, unscreened = screened(ops, loaded, stored, tokenizer.encode, mode)
    runner = Runner(ops, loaded, cache, mode)
    template = ChatTemplate.from_gguf(loaded.gguf.metadata, tokenizer)
    engine = Engine(ops, runner, tokenizer, context=context, chunk=chunk)
    name = tiers_text(tiers) if kv.strip().startswith(AUTO) else kv
    llm = LLM(loaded, ops, engine, Prompts(tokenizer, template), name, checks, unscreened, planned)
    if session.agents < most:
        llm.note(fewer_sequences(session.agents, most))
    if ctx is None and context < limit:
        llm.note(shorter_context(context, limit))
    return llm


def _calibration(k: str | Path | Calibration | None, v: str | Path | None) -> Calibration:
    if not isinstance(k, Calibration):
        for side, file in (("calibration", k), ("calibration_v", v)):
            if file is not None:
                check_path(side, file)
        return read_calibration(k, v)
    if v is not None:
        raise ConfigError("calibration_v goes with a file for K: a Calibration has both sides")
    return k


def choose_activations(backend: str, name: str | None) -> Activations:
    """By name; None is the default of the backend. Raises ConfigError for an unknown name."""
    names = {"f32": Activations.F32, "q8": Activations.Q8}
    name = ("f32" if backend == "ref" else "q8") if name is None else name
    if not isinstance(name, str) or name not in names:
        raise ConfigError(f"activations are {name!r}; known: {', '.join(names)}")
    return names[name]


def set_threads(backend: str, threads: int | None) -> None:
    """Worker threads of a backend; None leaves them. Raises ConfigError for a backend that has none."""
    if threads is None:
        return
    if backend != "cpu":
        raise ConfigError(f"the backend {backend} has no threads to set")
    from polykv.fast.cpu.team import set_threads

    set_threads(threads)


class LLM:
    """One model with its cache and engine. Threads may share it and take turns; an agent or a stream belongs to one."""

    def __init__(
        self,
        model: Model,
        ops: operations.LoadedOps,
        engine: Engine,
        prompts: Prompts,
        kv: str,
        key_checks: tuple[KeyCheck, ...] = (),
        unscreened: str = "",
        device_plan: DevicePlan | None = None,
    ) -> None:
        # key_checks: of the layers whose keys have a bias. unscreened: why greedy tokens take all logits, or "".
        # device_plan: the memory of a device; None where there is none.
        self.key_checks, self.unscreened, self.device_plan = key_checks, unscreened, device_plan
        self.model, self.ops, self.engine, self.prompts, self.kv = model, ops, engine, prompts, kv
        self.config, self.tokenizer, self.context = model.config, prompts.tokenizer, engine.context
        self._said: list[str] = []

    @property
    def cache(self) -> KVPool:
        """K/V storage of all sequences."""
        return self.engine.pool

    @property
    def notes(self) -> tuple[str, ...]:
        """What fell back, was assumed, reduced or ignored, each once; `--strict` refuses to run with any."""
        return tuple(dict.fromkeys([*session_notes(self), *self._said]))

    def note(self, text: str) -> None:
        """Add a note."""
        self._said.append(text)

    @property
    def activations(self) -> Activations:
        return self.engine.runner.transformer.activations

    def equalize(self, calibration: str | Path | Calibration, calibration_v: str | Path | None = None) -> None:
        """Use a calibration (see `load`) from now on. Raises ConfigError once anything was stored without it."""
        self.cache.equalize(_calibration(calibration, calibration_v))

    # -- text ----------------------------------------------------------------------------------------------------
    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids of text, without a beginning-of-text token; special: parse special tokens written in the text."""
        if not isinstance(text, str):
            raise PromptError(f"the text is of type {type(text).__name__}; it must be a string")
        return self.tokenizer.encode(text, special=special, add_bos=False)

    def detokenize(self, ids: Seq[int]) -> str:
        """Text of token ids; bytes that are no valid UTF-8 become U+FFFD."""
        return self.tokenizer.decode(integers(ids, TOKEN_IDS))

    def prompt_ids(self, prompt: Prompt, raw: bool = False) -> list[int]:
        """Token ids that a prompt stands for; see `generate`."""
        if isinstance(prompt, str):
            if raw:
                return self.prompts.text(prompt)
            if self.prompts.template is None:
                self._note_template()
                return self.prompts.text(prompt)
            if not prompt.strip():
                raise PromptError("the prompt is empty: there is nothing to answer")
            return self.prompts.messages([{"role": "user", "content": prompt}])
        if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | dict):
            raise PromptError(PROMPT_KINDS)
        items: list[object] = list(prompt)
        messages = [m for m in items if isinstance(m, dict)]
        if items and len(messages) == len(items):
            return self.prompts.messages(messages)
        return integers(items, PROMPT_KINDS)

    def _note_template(self) -> None:
        if self.prompts.template is None and NO_TEMPLATE not in self._said:
            self.note(NO_TEMPLATE)

    # -- generating ----------------------------------------------------------------------------------------------
    def generate(self, prompt: Prompt, *, raw: bool = False, **options: Unpack[Options]) -> Generation:
        """Answer a prompt.

        prompt: a string is one user turn when the model has a chat template, and text to continue when it has none or
        with raw=True; a list of {"role", "content"} is a chat, where content is a string or a list of text parts
        {"type": "text", "text"}; a list of ints is token ids as they are. An empty text can be continued when the model
        has a beginning-of-text token; an empty user turn is refused, unless it is written as a message.
        options: max_tokens=64, temperature=0 (greedy), top_k, top_p, min_p, repetition_penalty, penalty_window, seed,
        stop, ignore_eog, on_prefill, shift; see `polykv.engine_options.Options`.
        shift=n: when the context is full, keep its first n tokens and the later half of the others, and go on; without
        it the generation ends there (`polykv.engine_shift`). Not for a chat; a user turn must be kept whole.
        """
        return self.engine.run([self._request(prompt, raw, options)])[0]

    def generate_many(self, prompts: Seq[Prompt], *, raw: bool = False, **options: Unpack[Options]) -> list[Generation]:
        """Answer several prompts in one batch; each gets the tokens it would get alone."""
        if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
            raise PromptError("generate_many takes a list of prompts; for a single one use generate(prompt)")
        return self.engine.run([self._request(p, raw, options) for p in prompts])

    def stream(self, prompt: Prompt, *, raw: bool = False, **options: Unpack[Options]) -> Stream:
        """Like `generate`, as an iterator over pieces of text; `.generation` is there when it has ended."""
        return self.engine.stream(self._request(prompt, raw, options))

    def chat(self, system: str = "") -> Agent:
        """An empty conversation whose history stays in the cache."""
        self._note_template()
        return Agent(self.engine, self.prompts, Sequence(self.cache), system=system)

    def _request(self, prompt: Prompt, raw: bool, options: Options) -> Request:
        given: Any = list(prompt) if isinstance(prompt, Iterator) else prompt
        ids = self.prompt_ids(given, raw)
        keep = options.get("shift")
        if keep is not None:
            check_shift(keep, self.context)
            check_turns(given, keep, len(ids), template=not raw and self.prompts.template is not None)
        return make_request(ids, **options)

    def logits(self, ids: Seq[int] | np.ndarray) -> F32:
        """Logits float32 [T, vocab] of every position, given the tokens before it (teacher forcing through the cache).

        The result takes 4 * T * vocab bytes: 0.9 GB for 900 tokens of a vocabulary of 262,144.
        """
        if isinstance(ids, str):
            raise PromptError("logits takes token ids; make them of text with `tokenize`")
        tokens = self.prompt_ids(np.asarray(ids).tolist())
        if len(tokens) > self.context:
            raise PromptError(f"{len(tokens)} tokens do not fit into the context of {self.context} (--ctx)")
        out = np.empty((len(tokens), self.config.vocab), np.float32)
        sequence, chunk = Sequence(self.cache), self.engine.chunk
        try:
            for a in range(0, len(tokens), chunk):
                part = tokens[a : a + chunk]
                self.engine.runner.step([(sequence, part)], Logits.ALL, out=out[a : a + len(part)])
        finally:
            sequence.free()
        return out

    # -- pools ---------------------------------------------------------------------------------------------------
    def pool(
        self, document: str, *, system: str = "", on_prefill: Callable[[int, int], None] | None = None
    ) -> SharedKVPool:
        """Prefill a document once, for many agents. on_prefill(done, total) reports progress in tokens.

        Without a document (and a system message) agents share only what a template writes first; that is noted.
        """
        for name, text in (("document", document), ("system message", system)):
            if not isinstance(text, str):
                raise PromptError(f"the {name} is of type {type(text).__name__}; it must be a string")
        self._note_template()
        if not document.strip() and not system.strip() and EMPTY_DOCUMENT not in self._said:
            self.note(EMPTY_DOCUMENT)
        ids = self.prompts.prefix(document, system)
        if not ids:
            raise PromptError("the document is empty: agents would share nothing")
        sequence, _ = Sequence.attach(self.cache, ids)
        try:
            self.engine.run([make_request(ids, sequence, max_tokens=0, on_prefill=on_prefill)])
            return SharedKVPool(self.engine, self.prompts, sequence, document=document, system=system, kv=self.kv)
        except BaseException:
            sequence.free()
            raise

    def load_pool(self, path: str | Path) -> SharedKVPool:
        """A pool that `SharedKVPool.save` wrote, in this or another process.

        Raises MismatchError, naming the field, when it was made with another model, tier or rope, and FormatError when
        the file is damaged; what this session holds is not touched then.
        """
        check_path("path", path)
        self._note_template()
        return SharedKVPool.load(path, self.engine, self.prompts, self.kv)

    # -- facts ---------------------------------------------------------------------------------------------------
    def plan(self, *, agents: int = 1, shared: int = 0, ctx: int | None = None) -> MemoryPlan:
        """Memory of the cache for `agents` agents of `ctx` tokens each (default: the context), the first `shared`
        common to all."""
        return plan_memory(
            self.config,
            self.cache.tiers,
            ctx=self.context if ctx is None else ctx,
            agents=agents,
            shared=shared,
            block_size=self.cache.block_size,
            chunk=self.engine.chunk,
            ops=self.ops,
        )

    def report(self) -> Report:
        """What ran and what it took, as plain values; `polykv.report.render` makes tables of it."""
        return make_report(self)
