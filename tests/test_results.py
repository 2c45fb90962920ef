"""Every operation that takes `out` refuses one of another shape, before it writes anything."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from cases import of

from polykv.ops import LoadedOps, Ops, load

TAKING = sorted(
    name
    for name, f in inspect.getmembers(Ops, inspect.isfunction)
    if {"out", "room"} & set(inspect.signature(f).parameters)
)


class Misled:
    """A backend whose operation `name` is given results of a wrong shape."""

    def __init__(self, ops: LoadedOps, name: str, shape: tuple[int, ...]) -> None:
        self.ops, self.name, self.shape = ops, name, shape

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.ops, name)
        if name != self.name:
            return operation
        keyword = "room" if "room" in inspect.signature(getattr(Ops, name)).parameters else "out"

        def misled(*args: Any, **kwargs: Any) -> Any:
            return operation(*args, **{**kwargs, keyword: np.zeros(self.shape, np.float32)})

        return misled


def test_the_operations_that_take_out_are_known() -> None:
    assert len(TAKING) >= 12


# `ref` needs no room for logits, and leaves it alone.
PAIRS = [(name, backend) for name in TAKING for backend in ("ref", "cpu") if (name, backend) != ("greedy", "ref")]


@pytest.mark.parametrize(("name", "backend"), PAIRS)
def test_a_wrong_shape_is_refused(name: str, backend: str) -> None:
    # The first has too little room, the second could be broadcast to.
    for shape in ((1,), (97, 3, 5, 7, 11)):
        call = of(name)[0].prepare(Misled(load(backend), name, shape))
        with pytest.raises(ValueError, match="out has the shape"):
            call()
