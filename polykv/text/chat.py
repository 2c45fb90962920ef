"""Chat messages to one prompt, by the template that a model brings in its metadata.

    {% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}

A user may type the text of a control token. It must not become one, yet the template's own must. So control tokens in
message texts are replaced by single private-use characters before rendering, and put back as text after the control
tokens of the rendered prompt have been found. A prompt without such text is encoded exactly as it is rendered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from jinja2 import Template
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError

from polykv.errors import FormatError, PolyKVError, PromptError
from polykv.text.messages import Message, checked_messages
from polykv.text.template_budget import Budget
from polykv.text.template_filters import TemplateRaisedError
from polykv.text.template_sandbox import MAX_SOURCE, ChatEnvironment
from polykv.text.tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
_PRIVATE = range(0xF0000, 0xFFFFE)
_MAX_DEPTH = 16


class ChatTemplate:
    """The chat template of one model. It is compiled when it is first used; a broken one raises then."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._environment = ChatEnvironment()
        self._template: Template | None = None
        self._lock = threading.Lock()

    @staticmethod
    def from_gguf(metadata: Mapping[str, object], tokenizer: Tokenizer, name: str = "default") -> ChatTemplate | None:
        """The template called `name` (a file may have several), or None if the model has none at all.

        Raises FormatError for one that is not text or is larger than 1 MB, PromptError for an unknown name.
        """
        prefix = _KEY + "."
        named = {k[len(prefix) :]: v for k, v in metadata.items() if k.startswith(prefix)}
        if _KEY in metadata:
            named["default"] = metadata[_KEY]
        if name not in named:
            if name == "default" and not named:
                return None
            raise PromptError(f"the model has no chat template {name!r} (it has: {', '.join(sorted(named))})")
        source = named[name]
        if not isinstance(source, str):
            raise FormatError("model metadata", _KEY, "the template is not a string")
        if len(source) > MAX_SOURCE:
            raise FormatError("model metadata", _KEY, f"{len(source):,} characters; a template may have {MAX_SOURCE:,}")
        return ChatTemplate(source, tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt as text. messages: dicts with `role` and `content` (a string, or a list of text parts, which are
        joined). variables: more names for the template.

        Raises PromptError when the messages do not fit the template (with the template's own message) and FormatError
        when the template is malformed, unsafe or without end.
        """
        tok = self._tokenizer
        names = {"bos_token": tok.bos, "eos_token": tok.eos}
        special = {k: "" if i is None else tok.token_text(i) for k, i in names.items()}
        data = {"tools": None, "documents": None, **special, **(variables or {})}
        data |= {
            "messages": [dict(m) for m in checked_messages(messages)],
            "add_generation_prompt": add_generation_prompt,
        }
        with self._lock:
            return self._run(data)

    def encode(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The prompt as ids: control tokens come from the template only, and BOS stands in front once if the model
        wants it, whether or not the template writes it."""
        messages = checked_messages(messages)
        quotes = _Quotes(self._tokenizer, self.source, messages, variables)
        text = self.render(
            [quotes.quote_message(m) for m in messages], add_generation_prompt, quotes.quote_map(variables)
        )
        tok = self._tokenizer
        ids = tok.encode(text, special=True, add_bos=False, quoted=quotes.table)
        if tok.add_bos and tok.bos is not None and ids[:1] != [tok.bos]:
            ids.insert(0, tok.bos)
        return ids

    def _run(self, data: dict[str, object]) -> str:
        try:
            self._environment.budget = Budget(_length(data))
            if self._template is None:
                self._template = self._environment.compile_chat(self.source)
            return self._template.render(data)
        except PolyKVError:
            raise
        except TemplateSyntaxError as e:
            raise FormatError("chat template", f"line {e.lineno}", str(e.message)) from e
        except SecurityError as e:
            raise FormatError("chat template", "", f"refused: {e}") from e
        except TemplateRaisedError as e:
            raise PromptError(f"the chat template refuses these messages: {e}") from e
        except TemplateError as e:
            raise PromptError(f"the chat template failed: {e}") from e
        except (RecursionError, MemoryError) as e:
            raise FormatError("chat template", "", "it is nested without end") from e
        except Exception as e:
            # A template is a program: any Python error can come out of its expressions.
            raise PromptError(f"the chat template failed: {type(e).__name__}: {str(e)[:300]}") from e


class _Quotes:
    """Private-use characters that stand for control tokens typed in messages. table: for `str.translate`."""

    def __init__(self, tokenizer: Tokenizer, *in_use: object) -> None:
        self._tokenizer = tokenizer
        self._used = set("".join(_strings(in_use)))
        self._free = iter(_PRIVATE)
        self._of: dict[int, str] = {}
        self.table: dict[int, str] = {}

    def quote_message(self, message: Message) -> dict[str, object]:
        return {k: self._quote(v) for k, v in message.items()}

    def quote_map(self, variables: Mapping[str, object] | None) -> dict[str, object] | None:
        return None if variables is None else {k: self._quote(v) for k, v in variables.items()}

    def _quote(self, value: object) -> object:
        if isinstance(value, str):
            pieces = self._tokenizer.control_pieces(value)
            return "".join([p if isinstance(p, str) else self._char(p) for p in pieces])
        if isinstance(value, Mapping):
            return {self._quote(k): self._quote(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self._quote(v) for v in value]
        return value

    def _char(self, token_id: int) -> str:
        if token_id not in self._of:
            code = next((c for c in self._free if chr(c) not in self._used), None)
            if code is None:
                raise PromptError("the messages use all private-use characters of Unicode plane 15")
            self._of[token_id] = chr(code)
            self.table[code] = self._tokenizer.token_text(token_id)
        return self._of[token_id]


def _strings(value: object, depth: int = 0) -> list[str]:
    """All strings in nested plain data."""
    if depth > _MAX_DEPTH:
        raise PromptError(f"messages are nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return [s for v in value for s in _strings(v, depth + 1)]
    return []


def _length(data: Mapping[str, object]) -> int:
    return sum(map(len, _strings(data)))
