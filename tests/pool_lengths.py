"""Prefixes of chosen lengths, shared and alone, saved and loaded in another process; for tiny and for real models.

Run as a script it is that other process: it loads sequences from files and prints a digest of their next logits.

    python pool_lengths.py MODEL OPTIONS FILE...     # OPTIONS: JSON, keywords of `polykv.load`
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import polykv
from polykv.cache.persist import load_sequences, save_sequences
from polykv.cache.sequence import Sequence
from polykv.llm import LLM

# Around 0, around a block (8), around a unit of attention (64), around the window of gemma3 (512).
LENGTHS = (0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513)
NEXT = [5, 6, 7]
# What three agents go on with.
SUFFIXES = ([9], [10, 11, 12, 13, 14], list(range(20, 40)))


def digest(llm: LLM, sequence: Sequence) -> str:
    """Of the logits after three more tokens."""
    logits = llm.engine.runner.step([(sequence, NEXT)])
    return hashlib.sha256(logits.tobytes()).hexdigest()


def prefill(llm: LLM, ids: list[int]) -> Sequence:
    """A sequence of these tokens, computed in one step, without reusing anything."""
    sequence = Sequence(llm.cache)
    if ids:
        llm.engine.runner.step([(sequence, ids)])
    return sequence


def check_shared_is_separate(shared: LLM, separate: LLM, ids: list[int]) -> None:
    """Three forks of one prefix, stepped together, get bit for bit the logits of three runs alone."""
    parent = prefill(shared, ids)
    forks = [parent.fork() for _ in SUFFIXES]
    got = shared.engine.runner.step(list(zip(forks, SUFFIXES, strict=True)))
    again = shared.engine.runner.step([(f, NEXT) for f in forks])
    for i, suffix in enumerate(SUFFIXES):
        alone = Sequence(separate.cache)
        np.testing.assert_array_equal(separate.engine.runner.step([(alone, [*ids, *suffix])])[0], got[i])
        np.testing.assert_array_equal(separate.engine.runner.step([(alone, NEXT)])[0], again[i])
        alone.free()
    for s in (parent, *forks):
        s.free()


def save(llm: LLM, ids: list[int], path: Path) -> str:
    """Save the prefix; the digest of what follows it here."""
    sequence = prefill(llm, ids)
    save_sequences(path, [sequence])
    want = digest(llm, sequence)
    sequence.free()
    return want


def digests_elsewhere(model: str | Path, options: dict[str, Any], files: list[Path]) -> list[str]:
    """What another process finds after loading each file."""
    line = [sys.executable, __file__, str(model), json.dumps(options), *map(str, files)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The other process."""
    model, options, *files = sys.argv[1:]
    llm = polykv.load(model, **json.loads(options))
    found = []
    for file in files:
        (sequence,) = load_sequences(file, llm.cache)
        found.append(digest(llm, sequence))
        sequence.free()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
