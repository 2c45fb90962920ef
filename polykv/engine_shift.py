"""Context shift: a request that was told to drops the older part of a full context and goes on.

    full       F F F - - - - - - - - x x x x x x x x      F: the first `keep` tokens   -: dropped, half of the others
    shifted    F F F x x x x x x x x                      x: kept, each at a new position

What is kept is read again, as a prompt, at its new positions. Moving its cells would be cheaper and not
exact: a key is turned by its position, so it would have to be turned again, which for a compressed key means decoding,
turning and coding once more, with a further loss at every shift; and what was read after the dropped tokens holds
traces of them, in all layers but the first. So after a shift, tokens are those that a fresh prompt of the kept ones
would give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polykv.errors import ConfigError

NOT_OWN = (
    "shift is for a generation with a sequence of its own: conversations and agents of a pool keep, and share, what "
    "was said before, so they end when the context is full; trim them or start again"
)
CHAT = "shift is not for a chat: its turns would be torn; continue plain text or token ids, or ask one question"
NO_END = "shift needs max_tokens: without a number of tokens, a generation that may shift need never end"


@dataclass(frozen=True)
class Past:
    """What is left of the tokens of a request in its context: the first `keep`, and all after the `dropped` that follow
    these. shifts: how often tokens were dropped."""

    keep: int = 0
    dropped: int = 0
    shifts: int = 0

    def cells(self, ids: list[int], start: int = 0, n: int | None = None) -> list[int]:
        """Tokens at positions start..start+n-1 of the context (None: all from start on), of all `ids` of the request.

        >>> Past(keep=2, dropped=3).cells([10, 11, 12, 13, 14, 15, 16], 1)
        [11, 15, 16]
        """
        end = len(ids) if n is None else start + n
        if start >= self.keep:
            return ids[start + self.dropped : end + self.dropped]
        return (ids[: self.keep] + ids[self.keep + self.dropped :])[start:end]

    def again(self, keep: int, cells: int) -> Past:
        """After one more shift, of a context of `cells` tokens.

        >>> Past().again(keep=3, cells=19)
        Past(keep=3, dropped=8, shifts=1)
        """
        return Past(keep, self.dropped + (cells - keep) // 2, self.shifts + 1)


def check_shift(keep: object, context: int | None = None) -> None:
    """Raise ConfigError unless `keep` is a number of tokens to keep in a shift, of a context of so many if given."""
    whole = isinstance(keep, int | np.integer) and not isinstance(keep, bool)
    if not whole or int(keep) < 0:  # type: ignore[call-overload]
        raise ConfigError(f"shift is {keep!r}; it must be a whole number >= 0, the tokens to keep from the beginning")
    # Of the others, one is dropped and one is the token to be read next.
    if context is not None and context < 2:
        raise ConfigError("shift: a context of 1 token (--ctx) has no room for one; 2 would do")
    if context is not None and int(keep) > context - 2:  # type: ignore[call-overload]
        raise ConfigError(
            f"shift is {keep}: a context of {context:,} tokens (--ctx) can keep at most {context - 2:,} from "
            "its beginning, for two must be free to go on"
        )


def check_turns(prompt: object, keep: int, n: int, *, template: bool) -> None:
    """Raise ConfigError where a shift would tear the turns of a chat.

    prompt: text, messages or token ids, which are n tokens. template: a text becomes the turn of a user. Plain text and
    token ids have no turns.
    """
    if isinstance(prompt, list | tuple) and any(isinstance(m, dict) for m in prompt):
        raise ConfigError(CHAT)
    if isinstance(prompt, str) and template and keep < n:
        raise ConfigError(
            f"shift is {keep}, but the chat template makes the prompt a turn of {n:,} tokens, which must not be torn: "
            f"keep {n:,} or more, or continue plain text (raw=True, --raw)"
        )
