"""The numba backend: a function for every operation of `polykv.ops.Ops`, and its `Limits`."""

from polykv.fast.cpu.attend import attend
from polykv.fast.cpu.attention_block import attention_block
from polykv.fast.cpu.compilations import compiling
from polykv.fast.cpu.dequantize import dequantize
from polykv.fast.cpu.embed import embed
from polykv.fast.cpu.encode import decode, encode
from polykv.fast.cpu.fwht import fwht
from polykv.fast.cpu.glu import glu
from polykv.fast.cpu.head import head
from polykv.fast.cpu.kv import kv_append, kv_pack, kv_read, kv_unpack
from polykv.fast.cpu.kv_memory import kv_alloc, kv_grow
from polykv.fast.cpu.kv_seal import kv_seal
from polykv.fast.cpu.layers import layers
from polykv.fast.cpu.limits import supports_kv, supports_weight
from polykv.fast.cpu.linear import linear
from polykv.fast.cpu.merge import merge
from polykv.fast.cpu.mlp import mlp_block
from polykv.fast.cpu.norm import rms_norm
from polykv.fast.cpu.planes import prepare_head
from polykv.fast.cpu.rope import rope
from polykv.fast.cpu.sample import penalize, sample
from polykv.fast.cpu.screen import greedy
from polykv.host_facts import (
    begin_fetch,
    compiled,
    fetch,
    footprint,
    held,
    memory,
    preferred_block,
    runs_ahead,
    settle,
    supports_stages,
    unusable,
    wait,
)

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
