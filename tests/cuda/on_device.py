"""Operations of the CUDA backend for cases that are written with NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast import cuda
from polykv.fast.cuda.arrays import asnumpy
from polykv.fast.cuda.bound import there
from polykv.fast.cuda.device import cupy
from polykv.types import Greedy


class DeviceOps:
    """Takes arrays and matrices to the device, and results back; what is changed in place is copied back too."""

    supports_kv, supports_weight = staticmethod(cuda.supports_kv), staticmethod(cuda.supports_weight)

    def __getattr__(self, op: str) -> Any:
        fn = getattr(cuda, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = [there(a) for a in args]
            out = {name: there(value) for name, value in kwargs.items()}
            result = fn(*given, **out)
            if result is None:
                for mine, theirs in zip(args, given, strict=True):
                    if isinstance(mine, np.ndarray):
                        mine[...] = asnumpy(theirs)
            # An operation returns the array that it was given for its result.
            if out.get("out") is not None:
                assert (result[0] if isinstance(result, tuple) else result) is out["out"]
            return to_host(result)

        return call


def to_host(x: Any) -> Any:
    """Results as NumPy arrays; prepared weights stay on the device."""
    if isinstance(x, cupy().ndarray):
        return asnumpy(x)
    if isinstance(x, tuple):
        return tuple(map(to_host, x))
    if isinstance(x, Greedy):
        return Greedy(asnumpy(x.ids), asnumpy(x.logits), asnumpy(x.exact))
    return x
