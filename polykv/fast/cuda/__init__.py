"""The CUDA backend: operations of `polykv.ops.Ops` on CuPy arrays, kernels in `kernels/`.

It is not complete, so `polykv.ops.load` does not offer it; tests/cuda/test_cuda_equivalence.py names what is missing.

    device.py       CuPy and the GPU, or one sentence that says what is missing
    source.py       one text out of a kernel's files and defines
    compile.py      the only way to a compiled kernel; nvrtc.py compiles for any architecture without a GPU
    shipped.py      all kernels with all defines that operations ask for
    arrays.py       the only crossings between NumPy and the device
    weights.py      weight matrices on the device, cut into fields
"""

from polykv.fast.cuda.dequantize import dequantize
from polykv.fast.cuda.embed import embed
from polykv.fast.cuda.fwht import fwht
from polykv.fast.cuda.glu import glu
from polykv.fast.cuda.head import head
from polykv.fast.cuda.limits import supports_weight
from polykv.fast.cuda.linear import linear
from polykv.fast.cuda.merge import merge
from polykv.fast.cuda.mlp import mlp_block
from polykv.fast.cuda.norm import rms_norm
from polykv.fast.cuda.rope import rope
from polykv.fast.cuda.sample import penalize, sample
from polykv.fast.cuda.screen import greedy, prepare_head

__all__ = [
    "dequantize",
    "embed",
    "fwht",
    "glu",
    "greedy",
    "head",
    "linear",
    "merge",
    "mlp_block",
    "penalize",
    "prepare_head",
    "rms_norm",
    "rope",
    "sample",
    "supports_weight",
]
