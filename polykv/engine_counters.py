"""What an engine counts, for reports and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineCounters:
    """Sums over the life of an engine. Steps that process any chunk of a prompt, or of what is read again, count as
    prefill, all others as decode. shifts: full contexts that were made room in; shifted_cells: tokens dropped for that.
    """

    requests: int = 0
    prompt_n: int = 0
    cache_n: int = 0
    preempted: int = 0
    shifts: int = 0
    shifted_cells: int = 0
    prefill_rows: int = 0
    prefill_s: float = 0.0
    decode_rows: int = 0
    decode_s: float = 0.0
