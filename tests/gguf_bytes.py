"""Writing GGUF files by hand, right or wrong on purpose: every field can be given a false value."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from case_base import normal, seeded

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: Any) -> bytes:
    """Type and value."""
    return struct.pack("<I", kind) + (text(value) if kind == STRING else struct.pack("<" + FORMATS[kind], value))


def array(kind: int, values: list[Any], count: int | None = None) -> bytes:
    """Type ARRAY, element type, count (false when given), elements."""
    body = b"".join(text(v) if kind == STRING else struct.pack("<" + FORMATS[kind], v) for v in values)
    return struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count) + body


def any_value(v: Any) -> bytes:
    """A Python value with the type that converters use for it."""
    if isinstance(v, bytes):
        return v
    if isinstance(v, bool):
        return scalar(BOOL, v)
    if isinstance(v, int):
        return scalar(U32, v)
    if isinstance(v, float):
        return scalar(F32, v)
    if isinstance(v, str):
        return scalar(STRING, v)
    if isinstance(v[0], str):
        return array(STRING, v)
    return array(BOOL if isinstance(v[0], bool) else I32 if isinstance(v[0], int) else F32, v)


@dataclass
class Tensor:
    """dims: fastest first, as in the file. offset None: the next aligned place."""

    name: str | bytes
    dims: list[int]
    type: int = 0
    data: bytes | None = None
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class Gguf:
    """A file to be. kv values: Python values, or bytes made by `scalar` and `array`."""

    kv: list[tuple[str | bytes, Any]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    n_kv: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        head = self.magic + struct.pack("<I", self.version)
        head += struct.pack("<Q", len(self.tensors) if self.n_tensors is None else self.n_tensors)
        head += struct.pack("<Q", len(self.kv) if self.n_kv is None else self.n_kv)
        for key, value in self.kv:
            head += text(key) + any_value(value)
        data = b""
        for t in self.tensors:
            offset = len(data) if t.offset is None else t.offset
            head += text(t.name) + struct.pack("<I", len(t.dims) if t.n_dims is None else t.n_dims)
            head += b"".join(struct.pack("<Q", d) for d in t.dims) + struct.pack("<IQ", t.type, offset)
            data += payload(t)
            data += b"\0" * (-len(data) % self.alignment)
        return head + b"\0" * (-len(head) % self.alignment) + data


def payload(t: Tensor) -> bytes:
    """The tensor's bytes: given, or zeros of the right size."""
    if t.data is not None:
        return t.data
    try:
        values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(t.type)]
    except ValueError:
        values, size = 1, 4
    return bytes(min(int(np.prod([float(d) for d in t.dims])) // values * size, 1 << 20))


def tiny(arch: str = "llama", **changes: Any) -> Gguf:
    """A 2-layer model of zeros (head_dim 8, 5 tokens). changes: keys with `__` for `.` under the architecture, None
    deletes; `tok__...` for tokenizer.ggml keys."""
    kv: dict[str, Any] = {
        "general.architecture": arch,
        f"{arch}.embedding_length": 32,
        f"{arch}.block_count": 2,
        f"{arch}.context_length": 64,
        f"{arch}.feed_forward_length": 64,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.tokens": list("abcde"),
        "tokenizer.ggml.token_type": [1] * 5,
        "tokenizer.ggml.scores": [0.0] * 5,
        "tokenizer.ggml.bos_token_id": 1,
    }
    gemma = arch == "gemma3"
    if gemma:
        kv[f"{arch}.attention.sliding_window"] = 16
    for key, value in changes.items():
        name = key.replace("__", ".")
        name = f"tokenizer.ggml.{name[4:]}" if name.startswith("tok.") else f"{arch}.{name}"
        if value is None:
            kv.pop(name, None)
        else:
            kv[name] = value
    tensors = [Tensor("token_embd.weight", [32, 5]), Tensor("output_norm.weight", [32])]
    for i in range(2):
        shapes = {"attn_norm": [32], "attn_q": [32, 32], "attn_k": [32, 16], "attn_v": [32, 16], "ffn_norm": [32]}
        shapes |= {"attn_output": [32, 32], "ffn_gate": [32, 64], "ffn_up": [32, 64], "ffn_down": [64, 32]}
        if gemma:
            shapes |= {"attn_q_norm": [8], "attn_k_norm": [8], "post_attention_norm": [32], "post_ffw_norm": [32]}
        tensors += [Tensor(f"blk.{i}.{n}.weight", dims) for n, dims in shapes.items()]
    return Gguf(list(kv.items()), tensors)


def head_of(tmp_path: Path, dim: int, arch: str = "llama", **changes: Any) -> Path:
    """A random model whose heads have so many values. changes: see `tiny`."""
    file = tiny(arch, tok__model="llama", attention__key_length=dim, attention__value_length=dim, **changes)
    wide = {"attn_q": [32, 4 * dim], "attn_k": [32, 2 * dim], "attn_v": [32, 2 * dim], "attn_output": [4 * dim, 32]}
    wide |= {"attn_q_norm": [dim], "attn_k_norm": [dim]}
    rng = seeded(arch)
    for t in file.tensors:
        assert isinstance(t.name, str)
        t.dims = wide.get(t.name.split(".")[-2], t.dims)
        t.data = normal(rng, *t.dims, scale=t.dims[0] ** -0.5).tobytes()
    path = tmp_path / f"{arch}-{dim}.gguf"
    path.write_bytes(file.build())
    return path
