"""The operations as `polykv.ops.load("cuda")` binds them: for NumPy arrays and matrices of files.

What an operation takes from the host is copied to the device on the way, weights that a model is run with once
(placed.py); results stay there until `fetch` brings them back. The operations of this package themselves take arrays of
the device only, so that what they cost is seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, wraps
from threading import Lock
from typing import Any, TypeVar, cast

import numpy as np

from polykv.fast import cuda
from polykv.fast.cuda.arena import no_room
from polykv.fast.cuda.arrays import asarray
from polykv.fast.cuda.device import cupy
from polykv.fast.cuda.download import begin_fetch
from polykv.fast.cuda.footprint import footprint, held, memory, settle
from polykv.fast.cuda.images import compiled, compiling
from polykv.fast.cuda.kv import CudaArena
from polykv.fast.cuda.limits import (
    fetch,
    preferred_block,
    runs_ahead,
    supports_kv,
    supports_stages,
    supports_weight,
    unusable,
    wait,
)
from polykv.fast.cuda.placed import head_of, placed
from polykv.fast.cuda.screen import prepare_head
from polykv.fast.cuda.step_tables import spare
from polykv.fast.cuda.upload import Upload
from polykv.fast.cuda.weights import DeviceTensor, matrix
from polykv.types import F32, I32, Activations, Codec, Greedy, HeadWeights, QuantTensor, Segments

F = TypeVar("F", bound=Callable[..., Any])


def there(x: Any) -> Any:
    """`x` with all arrays and matrices in it on the device; what is there already stays."""
    if isinstance(x, np.ndarray):
        return asarray(x)
    # Constants of codecs are taken there by those who need them, and segments stay until there is a plan.
    if isinstance(x, DeviceTensor | CudaArena | Codec | Segments):
        return x
    if isinstance(x, QuantTensor):
        return matrix(x)
    if isinstance(x, list | tuple):
        return type(x)(map(there, x))
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(x, **{f.name: there(getattr(x, f.name)) for f in dataclasses.fields(x)})
    return x


def _room_is_told(fn: F) -> F:
    """The operation; that the device has no memory left for its arrays is a CapacityError, as of a full cache."""

    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except MemoryError as e:
            raise no_room(f"{fn.__name__} needs more memory") from e

    return cast(F, call)


def _of_host(fn: F) -> F:
    """The operation, with arguments of the host; an `out` of the host is filled."""

    @_room_is_told
    @wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", None)
        given = {name: there(value) for name, value in kwargs.items()}
        if out is None:
            return fn(*map(there, args), **given)
        if not isinstance(out, np.ndarray):
            return fn(*map(there, args), out=out, **given)
        result = fn(*map(there, args), **given)
        out[...] = fetch(result[0] if isinstance(result, tuple) else result)
        return (out, *result[1:]) if isinstance(result, tuple) else out

    return cast(F, call)


attend = _of_host(cuda.attend)
decode = _of_host(cuda.decode)
dequantize = _of_host(cuda.dequantize)
encode = _of_host(cuda.encode)
fwht = _of_host(cuda.fwht)
glu = _of_host(cuda.glu)
kv_alloc = cuda.kv_alloc
kv_append = _of_host(cuda.kv_append)
kv_grow = cuda.kv_grow
kv_pack = _of_host(cuda.kv_pack)
kv_read = _of_host(cuda.kv_read)
kv_seal = _of_host(cuda.kv_seal)
kv_unpack = _of_host(cuda.kv_unpack)
linear = _of_host(cuda.linear)
merge = _of_host(cuda.merge)
penalize = _of_host(cuda.penalize)
rms_norm = _of_host(cuda.rms_norm)
rope = _of_host(cuda.rope)
sample = _of_host(cuda.sample)
attention_block = _room_is_told(cuda.attention_block)
layers = _room_is_told(cuda.layers)
mlp_block = _room_is_told(cuda.mlp_block)


@_room_is_told
def embed(w: QuantTensor, ids: I32, scale: float) -> F32:
    """Rows `ids` of the embedding matrix times scale, [R, E]."""
    if not isinstance(ids, np.ndarray):
        return cuda.embed(placed(w), ids, scale)
    # A step begins with this copy: from pinned memory it takes a tenth of the time.
    matrix_there, upload = placed(w), _ids_of(spare(len(ids)), cupy().cuda.runtime.getDevice())
    # Sessions of several threads share the place: no other ids may come between copy and kernel.
    with _IDS:
        upload.send([ids])
        return cuda.embed(matrix_there, upload.array(0, ids.shape), scale)


_IDS = Lock()


@cache
def _ids_of(room: int, _: int) -> Upload:
    return Upload([room])


@_room_is_told
def head(h: F32, w: HeadWeights, *, activations: Activations, out: F32 | None = None) -> F32:
    """Logits [R, V] = softcap(W norm(h))."""
    logits = cuda.head(there(h), head_of(w), activations=activations)
    if out is None:
        return logits
    out[...] = fetch(logits)
    return out


@_room_is_told
def greedy(h: F32, w: HeadWeights, *, activations: Activations, room: F32 | None = None) -> Greedy:
    """The lowest id with the largest logit of every row h [R, E]."""
    return cuda.greedy(there(h), head_of(w), activations=activations)


__all__ = [
    "attend",
    "attention_block",
    "begin_fetch",
    "compiled",
    "compiling",
    "decode",
    "dequantize",
    "embed",
    "encode",
    "fetch",
    "footprint",
    "fwht",
    "glu",
    "greedy",
    "head",
    "held",
    "kv_alloc",
    "kv_append",
    "kv_grow",
    "kv_pack",
    "kv_read",
    "kv_seal",
    "kv_unpack",
    "layers",
    "linear",
    "memory",
    "merge",
    "mlp_block",
    "penalize",
    "preferred_block",
    "prepare_head",
    "rms_norm",
    "rope",
    "runs_ahead",
    "sample",
    "settle",
    "supports_kv",
    "supports_stages",
    "supports_weight",
    "unusable",
    "wait",
]
