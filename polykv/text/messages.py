"""Chat messages as callers write them, checked and brought into one form: role and content are both text.

Content may be a list of parts, as in the OpenAI API: [{"type": "text", "text": "..."}]. Templates differ in whether
they understand parts, so text parts are joined, a line each, before a template sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polykv.errors import PromptError

Message = Mapping[str, object]


def checked_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages with `content` as one string each; other keys as they are.

    >>> checked_messages([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    [{'role': 'user', 'content': 'Hi'}]

    Raises PromptError for a list that is empty or no list, for messages without role and content, and for parts that
    are no text.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise PromptError("messages must be a non-empty list of {'role': ..., 'content': ...}")
    for i, m in enumerate(messages):
        if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or "content" not in m:
            raise PromptError(f"message {i} must have a `role` (a string) and a `content`")
    return [{**m, "content": _content(m["content"], i)} for i, m in enumerate(messages)]


def _content(content: object, i: int) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        # Templates would print it as Python does ("None"), and the model would read that.
        raise PromptError(
            f"the content of message {i} is of type {type(content).__name__}; it must be a string or a list of parts "
            '{"type": "text", "text": ...}'
        )
    return "\n".join(_text(part, f"part {k} of message {i}") for k, part in enumerate(content))


def _text(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        raise PromptError(f'{where} is of type {type(part).__name__}; it must be {{"type": "text", "text": ...}}')
    if part.get("type") != "text":
        raise PromptError(f"{where} is of type {part.get('type')!r:.60}; this version reads text parts only")
    text = part.get("text")
    if not isinstance(text, str):
        raise PromptError(f"{where} has a `text` of type {type(text).__name__}; it must be a string")
    return text
