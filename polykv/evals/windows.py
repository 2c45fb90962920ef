"""A text cut into windows that are scored by themselves, as llama.cpp's perplexity tool cuts it.

The text is tokenised once. Every window of n tokens is read from an empty cache; its first token is replaced by the
model's beginning-of-text token if the model wants one. Only the second half is scored, so that every scored token has
at least n / 2 tokens before it: positions n/2 .. n-2 predict tokens n/2+1 .. n-1.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from polykv.counted import counted
from polykv.errors import ConfigError
from polykv.evals.ids import ids_digest
from polykv.text.tokenizer import Tokenizer

# Fewer scored positions than that carry no statistics.
MIN_POSITIONS = 100
# Fewer windows of a text than that are refused, whatever is read of them: a text that just fills one is one that was
# cut, and the tool whose figures these are laid beside refuses it, too.
MIN_WINDOWS = 2


@dataclass(frozen=True)
class Window:
    """ids: tokens as they are read. first: the first position that is scored; it predicts ids[first + 1]."""

    ids: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        return max(0, len(self.ids) - 1 - self.first)

    @property
    def digest(self) -> str:
        """Tells windows apart."""
        return ids_digest([self.ids, [self.first]])


def text_windows(tokenizer: Tokenizer, text: str, size: int, limit: int | None = None) -> list[Window]:
    """The windows of `size` tokens that fit into a text, at most `limit`.

    Raises ConfigError for a text of fewer than MIN_WINDOWS windows, and when there would be fewer than MIN_POSITIONS
    positions to score.
    """
    ids = tokenizer.encode(text, add_bos=None)
    if len(ids) < MIN_WINDOWS * size:
        raise ConfigError(
            f"the text has {counted(len(ids), 'token')}, windows of {size:,} need {MIN_WINDOWS * size:,} or more: take "
            "a longer text or smaller windows (--ctx)"
        )
    found = cut(ids, size, tokenizer.bos if tokenizer.add_bos else None, limit)
    positions = sum(w.scored for w in found)
    if positions < MIN_POSITIONS:
        where = f"{counted(len(found), 'window')} of {size:,} tokens"
        raise ConfigError(
            f"{counted(positions, 'position')} to score in {where}, fewer than "
            f"{MIN_POSITIONS}: no statistics. Take a longer text, or more or longer windows"
        )
    return found


def cut(ids: Seq[int], size: int, bos: int | None, limit: int | None = None) -> list[Window]:
    """Windows of token ids.

    >>> cut([1, 5, 6, 7, 8, 9, 2, 3, 4], 4, 1)
    [Window(ids=(1, 5, 6, 7), first=2), Window(ids=(1, 9, 2, 3), first=2)]
    """
    starts = range(0, len(ids) - size + 1, size)[:limit]
    head = () if bos is None else (bos,)
    return [Window((*head, *ids[at + len(head) : at + size]), size // 2) for at in starts]
