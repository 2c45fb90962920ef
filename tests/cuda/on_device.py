"""Operations of the CUDA backend for cases that are written with NumPy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from polykv.fast import cuda
from polykv.fast.cuda.arrays import asarray, asnumpy
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.kv import CudaArena
from polykv.fast.cuda.weights import DeviceTensor, matrix
from polykv.types import Codec, Greedy, QuantTensor, Segments


class DeviceOps:
    """Takes arrays and matrices to the device, and results back; what is changed in place is copied back too."""

    supports_kv, supports_weight = staticmethod(cuda.supports_kv), staticmethod(cuda.supports_weight)

    def __getattr__(self, op: str) -> Any:
        fn = getattr(cuda, op)

        def call(*args: Any, **kwargs: Any) -> Any:
            there = [to_device(a) for a in args]
            out = to_device(kwargs)
            result = fn(*there, **out)
            if result is None:
                for mine, theirs in zip(args, there, strict=True):
                    if isinstance(mine, np.ndarray):
                        mine[...] = asnumpy(theirs)
            # An operation returns the array that it was given for its result.
            if out.get("out") is not None:
                assert (result[0] if isinstance(result, tuple) else result) is out["out"]
            return to_host(result)

        return call


def to_device(x: Any) -> Any:
    """`x` with all arrays and matrices in it on the device; what is there already stays."""
    if isinstance(x, np.ndarray):
        return asarray(x)
    # Arenas are changed in place, the constants of codecs are taken there by those who need them, and segments stay on
    # the host until there is a plan.
    if isinstance(x, DeviceTensor | CudaArena | Codec | Segments):
        return x
    if isinstance(x, QuantTensor):
        return matrix(x)
    if isinstance(x, list | tuple):
        return type(x)(map(to_device, x))
    if isinstance(x, dict):
        return {k: to_device(v) for k, v in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(x, **{f.name: to_device(getattr(x, f.name)) for f in dataclasses.fields(x)})
    return x


def to_host(x: Any) -> Any:
    """Results as NumPy arrays; prepared weights stay on the device."""
    if isinstance(x, cupy().ndarray):
        return asnumpy(x)
    if isinstance(x, tuple):
        return tuple(map(to_host, x))
    if isinstance(x, Greedy):
        return Greedy(asnumpy(x.ids), asnumpy(x.logits), asnumpy(x.exact))
    return x
