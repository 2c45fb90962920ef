"""Screened greedy tokens on the two real models: the same tokens, few logits, and no more memory."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import polykv
from polykv.llm import LLM
from polykv.types import Resident

pytestmark = pytest.mark.model
PROMPTS = [
    "Write a short story about a fox who learns to swim, in simple words.",
    "def quicksort(items):\n    if",
    "Quelle est la capitale de l'Australie ?",
]
# Peak and present resident memory after a load and a generation.
SCRIPT = """
import sys, polykv
llm = polykv.load(sys.argv[1], kv="q8_0/turbo3", screen=sys.argv[2] == "on")
llm.generate("Why is the sky blue?", max_tokens=8)
print(open("/proc/self/status").read())
"""


def loaded(path: Path, screen: bool) -> LLM:
    return polykv.load(path, kv="q8_0/turbo3", ctx=1024, screen=screen)


def test_gemma_is_screened(gemma3_path: Path) -> None:
    on, off = loaded(gemma3_path, True), loaded(gemma3_path, False)
    assert on.unscreened == "" and on.model.head.out.type is Resident.Q8_0_PLANES
    assert on.model.embedding is on.model.head.out
    for raw in (False, True):
        for prompt in PROMPTS:
            a, b = (llm.generate(prompt, max_tokens=24, raw=raw).tokens for llm in (on, off))
            assert a == b
    c = on.engine.runner.counters
    assert c.greedy_rows == off.engine.runner.counters.greedy_rows > 100
    # A few steps rest, after one in which the model was unsure.
    assert c.screened_rows > 0.9 * c.greedy_rows
    assert c.exact_logits < 0.25 * c.screened_rows * on.config.vocab
    pairs = [llm.generate_many(PROMPTS, max_tokens=8) for llm in (on, off)]
    assert [g.tokens for g in pairs[0]] == [g.tokens for g in pairs[1]]


def test_smollm2_says_why_not(smollm2_path: Path) -> None:
    llm = loaded(smollm2_path, True)
    assert "too wide" in llm.unscreened
    assert not any("wide" in note for note in llm.notes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_the_file(gemma3_path: Path) -> None:
    """The converted matrix takes the place of the file's: only its bounds, one number a row, are more."""
    peak = {}
    for state in ("on", "off"):
        # Twice: kernels are compiled in the first process that needs them.
        for _ in range(2):
            run = [sys.executable, "-c", SCRIPT, str(gemma3_path), state]
            out = subprocess.run(run, check=True, capture_output=True, text=True, timeout=300).stdout
        peak[state] = int(re.search(r"VmHWM:\s+(\d+)", out)[1]) * 1024  # type: ignore[index]
    assert peak["on"] - peak["off"] < 16e6
