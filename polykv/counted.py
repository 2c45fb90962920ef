"""How many there are of a thing, in words."""

from __future__ import annotations


def counted(n: int, thing: str) -> str:
    """A number of things whose plural ends in s.

    >>> counted(1, "window"), counted(2048, "token")
    ('1 window', '2,048 tokens')
    """
    return f"{n:,} {thing}{'s' * (n != 1)}"
