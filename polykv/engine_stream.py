"""Text of one request as it appears."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from polykv.engine_request import Generation, Request

if TYPE_CHECKING:
    from polykv.engine import Engine


class Stream(Iterator[str]):
    """Iterates over pieces of text; whole characters only, never a part of a stop string.

    `generation` is there when the iteration is over. Leaving early (`close`, Ctrl-C, an exception in the loop's
    `next`) cancels the request and gives its blocks back.
    """

    _ready = False

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine, self._request, self._ready = engine, request, True

    def __next__(self) -> str:
        text = ""
        try:
            while not text:
                # Asked first: the text that it ended with is there then.
                done = self._engine.tell([self._request])
                text = self._request.take()
                if done:
                    break
                if not text:
                    self._engine.step()
        except BaseException:
            self.close()
            raise
        if not text:
            raise StopIteration
        return text

    def close(self) -> None:
        """Cancel the request if it still runs. Safe to call twice."""
        self._engine.drop([self._request])

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop that was left with `break` drops its iterator: the blocks must not stay behind.
        if self._ready:
            self._request.cancel()

    @property
    def generation(self) -> Generation:
        """The finished (or cancelled) generation."""
        return self._request.result()
