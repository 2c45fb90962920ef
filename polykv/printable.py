"""Text from files that nobody vouches for, made fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text with control characters (other than newline and tab) made visible: output comes from untrusted files.

    >>> printable("red \\x1b[31m")
    'red \\\\x1b[31m'
    """
    return "".join(c if c in "\n\t" or c.isprintable() or not is_control(c) else f"\\x{ord(c):02x}" for c in text)


def is_control(c: str) -> bool:
    """C0 and C1 control characters and DEL."""
    return ord(c) < 32 or 127 <= ord(c) < 160
