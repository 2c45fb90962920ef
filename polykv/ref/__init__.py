"""The reference backend: every operation of `polykv.ops` in NumPy, written to be read.

It defines what the operations mean; fast backends are tested against it. One idea a file:

    weights     dequantize; block layouts in quants_legacy, quants_k, quants_iq
    linear      matrix products with packed weights
    norm, rope, glu, fwht
    codec       layouts of K and V; rules in plain, scalar, rotation, lloyd_max and trellis
    tables      makes the levels and thresholds of Lloyd-Max types
    storage     where a cache keeps its codes
    attention   attention over segments, on codes; merge
    sampling    penalties and the choice of a token
    composites  attention block, MLP block, embedding, head
    screen      greedy tokens, and why half of the output matrix is enough for them
    limits      what cannot be stored or multiplied
"""

from polykv.host_facts import (
    begin_fetch,
    compiled,
    compiling,
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
from polykv.ref.attention import attend
from polykv.ref.codec import decode, encode
from polykv.ref.composites import attention_block, embed, head, layers, mlp_block
from polykv.ref.fwht import fwht
from polykv.ref.glu import glu
from polykv.ref.limits import supports_kv, supports_weight
from polykv.ref.linear import linear
from polykv.ref.merge import merge
from polykv.ref.norm import rms_norm
from polykv.ref.rope import rope
from polykv.ref.sampling import penalize, sample
from polykv.ref.screen import greedy, prepare_head
from polykv.ref.storage import kv_alloc, kv_append, kv_grow, kv_pack, kv_read, kv_seal, kv_unpack
from polykv.ref.weights import dequantize

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
