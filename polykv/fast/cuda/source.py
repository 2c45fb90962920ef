"""One self-contained source text for every kernel that is compiled.

    text = source("norm.cu", {"NORM_THREADS": 256})

A kernel is a real file in `kernels/`. Its `#include "x.cuh"` are pasted here, each once, and its defines are put before
it, so the text alone says what is compiled, and what is kept of it on disk is found by the text.
System headers are refused: NVRTC then needs no include path, on any machine. `#line` keeps the places in messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import resources

# A number, or a name: the type or function that a template is instantiated with.
Define = int | str
Defines = Mapping[str, Define]

_INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([\w./]+)"|(.*))$')
_NAME = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+")
_VALUE = re.compile(r"-?\d+|[A-Za-z_]\w*")


def source(file: str, defines: Defines | None = None, *, instead: Mapping[str, str] | None = None) -> str:
    """The whole text of kernels/`file`.

    defines: macros, put first in the order of their names, which are upper-case words joined by underscores: a macro D
    would break every `template <int D>` after it. instead: texts that stand for files, by name (tests compile device
    functions for the host with it).

    Raises ValueError for a bad define or an include of anything but a file of `kernels/`.
    """
    lines = [_define(name, value) for name, value in sorted((defines or {}).items())]
    lines += _paste(file, instead or {}, set())
    return "\n".join(lines) + "\n"


def _define(name: str, value: Define) -> str:
    text = str(int(value)) if isinstance(value, int) else value
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(text):
        raise ValueError(
            f"#define {name} {text}: the name is made of two or more upper-case words, the value is one word"
        )
    return f"#define {name} {text}"


def _paste(file: str, instead: Mapping[str, str], seen: set[str]) -> Iterator[str]:
    """Lines of a file, those of its includes in their places."""
    seen.add(file)
    yield f'#line 1 "{file}"'
    for number, line in enumerate(_text(file, instead).splitlines(), 1):
        found = _INCLUDE.match(line)
        if not found:
            yield line
        elif found[1] is None:
            raise ValueError(f"{file}:{number}: kernels include files of their own folder only, not {found[2]}")
        elif found[1] not in seen:
            yield from _paste(found[1], instead, seen)
            yield f'#line {number + 1} "{file}"'
        else:
            yield ""


def _text(file: str, instead: Mapping[str, str]) -> str:
    if file in instead:
        return instead[file]
    return (resources.files(__package__) / "kernels" / file).read_text(encoding="utf-8")
