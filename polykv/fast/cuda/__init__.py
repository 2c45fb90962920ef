"""The CUDA backend: operations of `polykv.ops.Ops` on CuPy arrays, kernels in `kernels/`.

`polykv.ops.load` binds bound.py, which takes arrays of the host. tests/cuda/test_cuda_equivalence.py names what is
missing.

    device.py       CuPy and the GPU, or one sentence that says what is missing
    source.py       one text out of a kernel's files and defines
    compile.py      the only way to a compiled kernel; nvrtc.py compiles for any architecture without a GPU
    shipped.py      all kernels with all defines that operations ask for
    arrays.py       the only crossings between NumPy and the device
    weights.py      weight matrices on the device, cut into fields
    attend.py       attention: of few rows on codes (attend_run.py), of many on halves (prefill_run.py, lift.py)
    layout.py       tiles of codes as attention reads them, and which codecs lie so
    forms.py        what kernels are told about a codec at a head_dim
    kv.py           the cache: tiles read, and turned into the bytes of files and back; kv_write.py: new cells
    kv_seal.py      cells that are exact first become codes, in whole units
    layers.py       the layers of a step; few_rows.py: of few rows, without the host between kernels; graphs.py: a graph
    step_tables.py  what the kernels of a step read beside weights and K/V; upload.py: in one copy
    placed.py       weights taken to the device once; workspace.py: memory of a step
    arena.py        pieces of memory straight from the driver; footprint.py: what a session takes, for plans
    follow.py       kernels that start before the one before them has ended
    bound.py        the operations for arrays of the host
"""

from polykv.fast.cuda.attend import attend
from polykv.fast.cuda.codec import decode, encode
from polykv.fast.cuda.dequantize import dequantize
from polykv.fast.cuda.embed import embed
from polykv.fast.cuda.fwht import fwht
from polykv.fast.cuda.glu import glu
from polykv.fast.cuda.head import head
from polykv.fast.cuda.kv import kv_alloc, kv_grow, kv_pack, kv_read, kv_unpack
from polykv.fast.cuda.kv_seal import kv_seal
from polykv.fast.cuda.kv_write import kv_append
from polykv.fast.cuda.layers import attention_block, layers, mlp_block
from polykv.fast.cuda.limits import supports_kv, supports_weight
from polykv.fast.cuda.linear import linear
from polykv.fast.cuda.merge import merge
from polykv.fast.cuda.norm import rms_norm
from polykv.fast.cuda.rope import rope
from polykv.fast.cuda.sample import penalize, sample
from polykv.fast.cuda.screen import greedy, prepare_head

__all__ = [
    "attend",
    "attention_block",
    "decode",
    "dequantize",
    "embed",
    "encode",
    "fwht",
    "glu",
    "greedy",
    "head",
    "kv_alloc",
    "kv_append",
    "kv_grow",
    "kv_pack",
    "kv_read",
    "kv_seal",
    "kv_unpack",
    "layers",
    "linear",
    "merge",
    "mlp_block",
    "penalize",
    "prepare_head",
    "rms_norm",
    "rope",
    "sample",
    "supports_kv",
    "supports_weight",
]
