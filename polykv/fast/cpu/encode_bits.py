"""Codes <-> fields of bits: plain streams, and nibbles with upper bits. Addresses; codes are int32.

A stream holds the codes of a group one after the other, lowest bits first, in whole bytes. That of a trellis begins
with the bits of the first state that are older than its symbol, and goes on with symbols.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.encode_simd import pack1, pack2, pack3, pack4
from polykv.fast.cpu.simd import get_i32, get_u8, load_i, put_i8, put_i32, store_i8x8
from polykv.fast.cpu.simd_math import field


@kernel()
def _packed(codes: int, shift: int, bits: int) -> Any:
    """8 fields of `bits` bits from bit `shift` of codes, as one number."""
    v = field(load_i(codes), np.int32(shift), np.int32((1 << bits) - 1))
    if bits == 1:
        word = pack1(v)
    elif bits == 2:
        word = pack2(v)
    elif bits == 3:
        word = pack3(v)
    else:
        word = pack4(v)
    return np.int64(np.uint32(word))


@kernel()
def put_stream(codes: int, g: int, shift: int, bits: int, prefix: int, out: int) -> None:
    """Bits shift .. shift + bits - 1 of g codes (a multiple of 8), after the `prefix` lowest bits of the first."""
    if bits == 8:
        for j in range(0, g, 8):
            store_i8x8(out + j, load_i(codes + 4 * j))
        return
    held = np.int64(get_i32(codes) & ((1 << prefix) - 1))
    for j in range(0, g, 8):
        held |= _packed(codes + 4 * j, shift, bits) << prefix
        for _ in range(bits):
            put_i8(out, np.int32(held & 255))
            held >>= 8
            out += 1
    if prefix:
        put_i8(out, np.int32(held))


@kernel()
def get_stream(data: int, g: int, shift: int, bits: int, prefix: int, codes: int) -> None:
    """Inverse of `put_stream`: fields of bits + prefix bits, which overlap, added to what is below bit `shift`."""
    held, have, width = np.int64(0), 0, bits + prefix
    for j in range(0, 4 * g, 4):
        while have < width:
            held |= np.int64(get_u8(data)) << have
            data += 1
            have += 8
        below = get_i32(codes + j) & ((1 << shift) - 1)
        put_i32(codes + j, np.int32(below | (held & ((1 << width) - 1)) << shift))
        held >>= bits
        have -= bits


@kernel()
def nibble_pair(codes: int, j: int) -> Any:
    """Low four bits of value j (0 .. 15) of 32 and of value j + 16, in a byte."""
    return (get_i32(codes + 4 * j) & 15) | (get_i32(codes + 4 * j + 64) & 15) << 4


@kernel()
def set_nibbles(codes: int, j: int, byte: int) -> None:
    """Inverse of `nibble_pair`; clears upper bits."""
    put_i32(codes + 4 * j, np.int32(byte & 15))
    put_i32(codes + 4 * j + 64, np.int32(byte >> 4))


@kernel()
def upper_word(codes: int, w: int, bits: int) -> Any:
    """Word w of 32 bits with what codes of 5 or 6 bits have above the nibble, as memory has it (`kv_layout`)."""
    extra = bits - 4
    count, word = 32 // extra, np.uint32(0)
    for j in range(count):
        upper = np.uint32(get_i32(codes + 4 * (count * w + j)) >> 4)
        word |= upper << np.uint32(8 * (j & 3) + extra * (j >> 2))
    return np.int32(word)


@kernel()
def add_upper(codes: int, w: int, bits: int, word: int) -> None:
    """Inverse of `upper_word`."""
    extra = bits - 4
    count = 32 // extra
    for j in range(count):
        at = codes + 4 * (count * w + j)
        upper = (np.int64(np.uint32(word)) >> (8 * (j & 3) + extra * (j >> 2))) & ((1 << extra) - 1)
        put_i32(at, np.int32(get_i32(at) | upper << 4))
