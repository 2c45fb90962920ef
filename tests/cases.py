"""Every case of every operation: what the equivalence suite proves and what the benchmarks time.

for case in CASES:
    call = case.prepare(ops)      # seeded inputs, backend state
    arrays = call()               # the operation; repeatable
"""

from __future__ import annotations

import case_attention
import case_centered
import case_elementwise
import case_head
import case_kv
import case_model
import case_weights
from case_base import Case

CASES: tuple[Case, ...] = (
    *case_weights.cases(),
    *case_elementwise.cases(),
    *case_kv.cases(),
    *case_attention.cases(),
    *case_model.cases(),
    *case_centered.cases(),
    *case_head.cases(),
)


def of(op: str) -> tuple[Case, ...]:
    """The cases of one operation."""
    return tuple(c for c in CASES if c.op == op)
