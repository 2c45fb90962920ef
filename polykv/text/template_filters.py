"""The filters, methods and functions that chat templates may use, each with a bound on what it produces.

Everything that is not listed does not exist for a template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import NoReturn

from jinja2 import Undefined
from jinja2 import filters as std
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.utils import Namespace

from polykv.text.template_budget import CELL, Budget, BudgetError

MAX_RANGE = 100_000
_MAX_INDENT = 16
_MAX_BITS = 4096

# Of Jinja's own filters, those whose result is not larger than their input by more than a constant factor.
_STANDARD = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "last", "length"),
    *(
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "reverse",
        "round",
        "select",
        "selectattr",
        "sort",
        "title",
    ),
    *("trim", "unique", "upper", "wordcount"),
)

_STR_METHODS = (
    *("capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit"),
    *("islower", "isnumeric", "isspace", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
    *("startswith", "strip", "swapcase", "title", "upper"),
)
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_STR_METHODS),
    dict: frozenset(["items", "keys", "values", "get"]),
    list: frozenset(["index", "count"]),
    tuple: frozenset(["index", "count"]),
}


class TemplateRaisedError(TemplateRuntimeError):
    """The template called `raise_exception`."""


def raise_exception(message: object = "") -> NoReturn:
    raise TemplateRaisedError(str(message)[:1000])


def strftime_now(pattern: str) -> str:
    """Local time by a strftime pattern without widths."""
    if not isinstance(pattern, str) or not re.fullmatch(r"(?:[^%]|%-?[A-Za-z%]){0,100}", pattern):
        raise SecurityError("strftime_now takes a short pattern of plain directives")
    return datetime.now().astimezone().strftime(pattern)


def bounded_range(*args: int) -> range:
    """range() of at most MAX_RANGE elements."""
    values = range(*args)
    if len(values) > MAX_RANGE:
        raise BudgetError(f"range of {len(values):,} elements (at most {MAX_RANGE:,})")
    return values


GLOBALS: dict[str, Callable[..., object]] = {
    "range": bounded_range,
    "dict": dict,
    "namespace": Namespace,
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
}


def charge_method(budget: Budget, method: Callable[..., object], args: tuple[object, ...]) -> None:
    """Charge a call of a method of a built-in value before it runs, or refuse it."""
    owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
    allowed = next((names for kind, names in METHODS.items() if type(owner) is kind), frozenset())
    if name not in allowed:
        raise SecurityError(f"a template may not call {type(owner).__name__}.{name or 'this'}")
    if not isinstance(owner, str):
        budget.charge(budget.size(owner) if name in ("index", "count") else CELL)
    elif name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        budget.charge(len(owner) + owner.count(args[0]) * len(args[1]))
    elif name in ("split", "rsplit", "splitlines"):
        cut = args[0] if args and isinstance(args[0], str) and args[0] else None
        budget.charge(len(owner) + CELL * (owner.count(cut) if cut else len(owner) // 2 + 1))
    elif name == "join":
        if not (args and isinstance(args[0], list | tuple)):
            raise SecurityError("the method `join` takes a list; use the filter `join`")
        budget.charge(budget.size(args[0]) + len(owner) * len(args[0]))
    else:
        budget.charge(3 * len(owner))


class BoundedOperators:
    """`+ - * / // % **` and `~`, charged before they run."""

    def __init__(self, budget: Callable[[], Budget]) -> None:
        self._budget = budget

    def check(self, operator: str, left: object, right: object) -> None:
        """Charge `left operator right`."""
        budget = self._budget()
        if operator == "*" and any(isinstance(v, str | bytes | list | tuple) for v in (left, right)):
            many, times = (left, right) if not isinstance(left, int) else (right, left)
            budget.charge(budget.size(many) * max(0, times if isinstance(times, int) else 0))
        elif operator == "%" and isinstance(left, str):
            if re.search(r"\*|\d{3}", left):
                raise SecurityError("a template may not use wide fields in string formatting")
            budget.charge(100 * len(left) + left.count("%") * budget.size(right))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (max(0, right) if operator == "**" else 1) + right.bit_length()
            if bits > _MAX_BITS:
                raise BudgetError("works with numbers of more than 4,096 bits")
            budget.step()
        elif operator == "+" and not isinstance(left, float | int):
            budget.charge(budget.size(left) + budget.size(right))
        else:
            budget.step()


class Filters:
    """Filters bound to the budget of the running rendering."""

    def __init__(self, budget: Callable[[], Budget], text: Callable[[object], str]) -> None:
        self._budget, self._text = budget, text

    def table(self) -> dict[str, Callable[..., object]]:
        """name -> filter."""
        table = {name: self._charged(std.FILTERS[name]) for name in _STANDARD}
        own = ("join", "replace", "indent", "tojson", "string", "list", "sum", "safe", "e", "escape")
        return table | {name: getattr(self, "_" + name) for name in own}

    def _charged(self, function: Callable[..., object]) -> Callable[..., object]:
        # `wraps` also carries over the mark by which Jinja knows that it must pass its environment or context.
        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            self._budget().step()
            return self._budget().checked(function(*args, **kwargs))

        return call

    def _join(self, value: object, d: object = "", attribute: str | None = None) -> str:
        parts = [self._text(v if attribute is None else v[attribute]) for v in self._list(value)]  # type: ignore[index]
        sep = self._text(d)
        self._budget().charge(sum(map(len, parts)) + len(sep) * len(parts))
        return sep.join(parts)

    def _replace(self, value: object, old: object, new: object, count: int = -1) -> str:
        text, a, b = self._text(value), self._text(old), self._text(new)
        self._budget().charge(len(text) + text.count(a) * len(b))
        return text.replace(a, b, -1 if count is None else count)

    def _indent(self, value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        text, pad = self._text(value), width if isinstance(width, str) else " " * min(max(0, width), 1000)
        self._budget().charge(len(text) + (text.count("\n") + 1) * (len(pad) + 1))
        lines = text.split("\n")
        out = [pad + s if (s or blank) and (i or first) else s for i, s in enumerate(lines)]
        return "\n".join(out)

    def _tojson(
        self,
        value: object,
        indent: int | None = None,
        ensure_ascii: bool = False,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not 0 <= indent <= _MAX_INDENT:
            raise BudgetError(f"tojson with an indent of {indent} (at most {_MAX_INDENT})")
        # Escapes make up to 6 characters of one; indentation grows with the depth, which nesting has paid for.
        self._budget().charge(6 * self._budget().size(value) * (1 + (indent or 0)))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _string(self, value: object) -> str:
        return self._text(value)

    _safe = _string

    def _e(self, value: object) -> str:
        text = self._text(value)
        self._budget().charge(5 * len(text))
        for char, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ('"', "&#34;")):
            text = text.replace(char, name)
        return text

    _escape = _e

    def _list(self, value: object) -> list[object]:
        budget, out = self._budget(), []
        if isinstance(value, Undefined):
            return []
        for item in value:  # type: ignore[attr-defined]
            budget.step()
            out.append(item)
        budget.charge(budget.size(out))
        return out

    def _sum(self, value: object, attribute: str | None = None) -> float:
        total: float = 0
        for item in self._list(value):
            number = item if attribute is None else item[attribute]  # type: ignore[index]
            if not isinstance(number, int | float):
                raise TemplateRuntimeError("sum takes numbers")
            total += number
        return total
