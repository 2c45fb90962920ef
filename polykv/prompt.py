"""How questions, documents and turns become token ids.

With a chat template, a document and its question make one user message: the document first, the question last, so all
questions about it have the same beginning, token by token; that beginning is what agents share. Without a template:
the document, then `Question: ... Answer:`.

Boundaries are found by comparing tokens, not text: a tokenizer may join characters across the end of the document, and
a template may put anything around a message.
"""

from __future__ import annotations

from typing import Any

from polykv.errors import PromptError
from polykv.text.chat import ChatTemplate
from polykv.text.tokenizer import Tokenizer

Message = dict[str, Any]

# Questions that begin with different kinds of characters, so that no token of a question counts as common.
_PROBES = ("What", "0", "é", "(")


class Prompts:
    """Builds token ids for one model. stop: strings that end an answer in addition to end-of-turn tokens."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self.tokenizer, self.template = tokenizer, template
        # A model without turns would go on and ask the next question itself.
        self.stop: tuple[str, ...] = () if template else ("\nQuestion:",)

    def text(self, text: str, *, begin: bool = True) -> list[int]:
        """Ids of plain text; with begin, after the model's beginning-of-text token if it wants one."""
        return self.tokenizer.encode(text, special=False, add_bos=None if begin else False)

    def messages(self, messages: list[Message]) -> list[int]:
        """Ids of a chat up to where the assistant answers. Raises PromptError when the model has no template."""
        if self.template is None:
            raise PromptError("this model has no chat template: pass a string, not messages")
        return self.template.encode(messages)

    def first(self, question: str, document: str = "", system: str = "") -> list[int]:
        """Ids of the first question about a document (or about nothing)."""
        question = question.strip()
        if self.template is None:
            head = "\n\n".join(part for part in (system, document) if part)
            return self.text(f"{head}\n\nQuestion: {question}\nAnswer:" if head else f"Question: {question}\nAnswer:")
        content = f"{document}\n\n{question}" if document else question
        chat = [{"role": "system", "content": system}] if system else []
        return self.template.encode([*chat, {"role": "user", "content": content}])

    def prefix(self, document: str = "", system: str = "") -> list[int]:
        """Ids that the first question about the document has in any case."""
        return common_prefix(*[self.first(q, document, system) for q in _PROBES])

    def next(self, question: str, last: int) -> list[int]:
        """Ids that ask the next question after an answer whose last token was `last`."""
        question = question.strip()
        if self.template is None:
            return self.text(f"\n\nQuestion: {question}\nAnswer:", begin=False)
        # What follows the answer is what two chats with different answers have in common at their ends.
        chats = [
            self.template.encode(
                [
                    {"role": "user", "content": "?"},
                    {"role": "assistant", "content": answer},
                    {"role": "user", "content": question},
                ]
            )
            for answer in ("A", "B")
        ]
        turn = common_prefix(*[c[::-1] for c in chats])[::-1]
        return turn[1:] if turn[:1] == [last] else turn


def common_prefix(*lists: list[int]) -> list[int]:
    """The longest list that all the given ones begin with.

    >>> common_prefix([1, 2, 3], [1, 2, 4])
    [1, 2]
    """
    n = 0
    for column in zip(*lists, strict=False):
        if len(set(column)) > 1:
            break
        n += 1
    return lists[0][:n]
