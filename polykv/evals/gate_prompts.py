"""Prompts for the gate: a passage of a text with one sentence that is not from it, and a question about that sentence.

The answer is a number that no model can know, so a run that finds it has read it from the cache.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from polykv.counted import counted
from polykv.errors import ConfigError, FormatError, PromptError
from polykv.evals.gate_run import GatePrompt
from polykv.evals.pieces import pieces
from polykv.prompt import Prompts

PLACES = ("harbour", "library", "mill", "orchard", "observatory", "quarry", "theatre", "vineyard", "zoo")
# The fewest pieces of a passage, and the shortest prompt, as a part of what was asked for, that a whole text may give.
LEAST_PIECES, SHORTEST = 8, 0.8


def needle_prompts(prompts: Prompts, text: str, n: int, tokens: int, seed: int) -> list[GatePrompt]:
    """n prompts of about `tokens` tokens; passages and depths differ, and are the same for the same seed.

    Raises ConfigError when the text is too short to take passages from.
    """
    found = []
    cut = pieces(text)
    for i in range(n):
        rng = random.Random(f"{seed}-{i}")
        place, code = rng.choice(PLACES), str(rng.randint(1000000, 9999999))
        needle = f"The number of the {place} is {code}. "
        question = f"What is the number of the {place}? Answer with the number alone."
        # Words of English are 1.3 tokens or more; what is too long is cut, never what is asked for.
        most = len(cut) - 1
        count = min(tokens, most)
        while True:
            if most < LEAST_PIECES:
                raise ConfigError(f"a text of {counted(len(cut), 'word')} is too short for passages")
            if count < LEAST_PIECES:
                raise ConfigError(
                    f"prompts of {tokens:,} tokens have no room for the question and {LEAST_PIECES} words of this text"
                )
            start, at = rng.randrange(len(cut) - count), round(count * (i + 0.5) / n)
            passage = [*_blank(cut[start : start + at]), needle, *cut[start + at : start + count]]
            ids = prompts.first(question, "".join(passage).rstrip())
            if len(ids) <= tokens:
                break
            count = min(count - 1, count * tokens // len(ids))
        if count == most and len(ids) < SHORTEST * tokens:
            raise ConfigError(f"a text of {counted(len(cut), 'word')} is too short for passages of {tokens:,} tokens")
        found.append(GatePrompt(tuple(ids), code))
    return found


def _blank(cut: list[str]) -> list[str]:
    """Pieces that a blank follows, so that the next one is a word of its own."""
    return [*cut[:-1], f"{cut[-1].rstrip()} "] if cut else []


def read_prompts(prompts: Prompts, path: Path) -> list[GatePrompt]:
    """Prompts of a file: a JSON list of {"prompt": text, "answer": text}, the answer may be left out.

    Raises FormatError for anything else, PromptError when it cannot be read.
    """
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise PromptError(f"{path}: cannot be read: {e.strerror or e}") from None
    except (ValueError, RecursionError) as e:
        raise FormatError(path, "", f"not JSON: {e}") from None
    if not isinstance(items, list) or not items:
        raise FormatError(path, "", "must be a list of prompts, and not empty")
    for i, item in enumerate(items):
        texts = [item.get("prompt"), item.get("answer", "")] if isinstance(item, dict) else [None]
        if not all(isinstance(t, str) for t in texts) or not texts[0]:
            raise FormatError(path, f"prompt {i + 1}", 'must be {"prompt": text, "answer": text}')
    return [GatePrompt(tuple(prompts.first(item["prompt"])), item.get("answer", "")) for item in items]
