"""The text of an answer as its tokens are chosen.

Ctrl-C may hit one party while the engine does the work of another, between any two lines. A stream of text changes in
several steps, so while one is at work nobody has it; one that was lost on the way is made again from the tokens.
"""

from __future__ import annotations

from polykv.text.stream import TextStream
from polykv.text.tokenizer import Tokenizer


class AnswerText:
    """Text of chosen tokens, piece by piece: whole characters, nothing of a stop string (`TextStream`).

    Interrupted anywhere, it has either taken a token or not.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._stream: TextStream | None = None
        # Every token with the text that it added; None: the end, with what was held back.
        self._pieces: list[tuple[int | None, str]] = []
        self._taken = 0

    @property
    def n(self) -> int:
        """Tokens that it has."""
        return len(self._pieces) - self._ended

    @property
    def _ended(self) -> bool:
        return bool(self._pieces) and self._pieces[-1][0] is None

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        self._stream = stream = self._claim()
        return stream.stopped

    def put(self, token: int) -> None:
        """Take the next token."""
        stream = self._claim()
        self._pieces.append((token, stream.push(token)))
        self._stream = stream

    def finish(self) -> None:
        """No more tokens come: what was held back is text, too. May be called again."""
        if not self._ended:
            self._pieces.append((None, self._claim().finish()))

    def _claim(self) -> TextStream:
        """The stream after all tokens so far, for whoever gives it back."""
        stream, self._stream = self._stream, None
        if stream is None:
            stream = TextStream(self._tokenizer, self._stop, skip_special=True)
            for token, _ in self._pieces:
                if token is not None:
                    stream.push(token)
        return stream

    def take(self) -> str:
        """Text since the last call."""
        pieces = self._pieces[self._taken :]
        self._taken += len(pieces)
        return "".join(text for _, text in pieces)

    @property
    def whole(self) -> str:
        """All of it."""
        return "".join(text for _, text in self._pieces)
