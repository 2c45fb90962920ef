"""The numba backend: a function for every operation of `polykv.ops.Ops`."""

from polykv.fast.cpu.attend import attend
from polykv.fast.cpu.attention_block import attention_block
from polykv.fast.cpu.encode import decode, encode
from polykv.fast.cpu.fwht import fwht
from polykv.fast.cpu.glu import glu
from polykv.fast.cpu.kv import kv_alloc, kv_append, kv_pack, kv_read, kv_unpack
from polykv.fast.cpu.merge import merge
from polykv.fast.cpu.norm import rms_norm
from polykv.fast.cpu.rope import rope
from polykv.fast.cpu.sample import penalize, sample

__all__ = [
    "attend",
    "attention_block",
    "decode",
    "encode",
    "fwht",
    "glu",
    "kv_alloc",
    "kv_append",
    "kv_pack",
    "kv_read",
    "kv_unpack",
    "merge",
    "penalize",
    "rms_norm",
    "rope",
    "sample",
]
