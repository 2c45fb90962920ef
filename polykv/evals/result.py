"""One evaluation as one JSON object: how it was made, its cells, and whether it holds.

    {"format": 1, "kind": "kld", "stamp": {...}, "settings": {...}, "cells": [{"kv": "q8_0/turbo3", ...}, ...],
     "verdict": "ok", "reasons": [], "notes": []}

A verdict comes with its reasons in words. "invalid": a control failed, so the figures mean nothing (exit code 3);
"below floor": they hold, and something is worse than the user allows (exit code 1). Notes are for whoever reads the
figures, and change no verdict.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from polykv.errors import FormatError
from polykv.evals.files import write_text

FORMAT = 1
Cell = dict[str, Any]


class Verdict(Enum):
    """How an evaluation came out."""

    OK = "ok"
    BELOW = "below floor"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {Verdict.OK: 0, Verdict.BELOW: 1, Verdict.INVALID: 3}[self]


@dataclass
class Result:
    """See above. cells: figures of one arm or one combination of settings each."""

    kind: str
    stamp: dict[str, Any]
    settings: dict[str, Any]
    cells: list[Cell]
    verdict: Verdict = Verdict.OK
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def judge(self, invalid: list[str], below: list[str]) -> Result:
        """Set the verdict from reasons against the whole, and against single figures."""
        self.verdict = Verdict.INVALID if invalid else Verdict.BELOW if below else Verdict.OK
        self.reasons = [*invalid, *below]
        return self

    def to_json(self) -> dict[str, Any]:
        """A JSON-serialisable object of text that can be encoded; what is not a finite number becomes null."""
        value: dict[str, Any] = _plain({"format": FORMAT, **asdict(self), "verdict": self.verdict.value})
        return value

    def save(self, path: Path) -> None:
        """Write the object to a file, whole or not at all. Raises FormatError when it cannot be written."""
        write_text(path, json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> Result:
        """Read a file that `save` wrote. Raises FormatError for anything else, OSError when it cannot be read."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as e:
            raise FormatError(path, "", f"not JSON: {e}") from None
        return Result.from_json(value, path)

    @staticmethod
    def from_json(value: object, where: object = "result") -> Result:
        """The result of an object of `to_json`. Raises FormatError when it is none."""
        if not isinstance(value, dict) or "format" not in value or "kind" not in value:
            raise FormatError(where, "", "not a result of `polykv eval`")
        if value["format"] != FORMAT:
            raise FormatError(where, "format", f"{value['format']!r:.20} is not {FORMAT}, the one that is read here")
        kinds = {"kind": str, "stamp": dict, "settings": dict, "cells": list, "verdict": str, "reasons": list}
        for name, kind in kinds.items():
            if not isinstance(value.get(name), kind):
                raise FormatError(where, name, f"must be of type {kind.__name__}")
        if not all(isinstance(cell, dict) for cell in value["cells"]):
            raise FormatError(where, "cells", "must be objects")
        verdicts = {v.value: v for v in Verdict}
        if value["verdict"] not in verdicts:
            raise FormatError(where, "verdict", f"{value['verdict']!r:.40} is not one of {', '.join(verdicts)}")
        notes = value.get("notes", [])
        return Result(
            value["kind"],
            value["stamp"],
            value["settings"],
            value["cells"],
            verdicts[value["verdict"]],
            [str(r) for r in value["reasons"]],
            [str(n) for n in notes] if isinstance(notes, list) else [],
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    # Names of files may have bytes that are no text.
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
