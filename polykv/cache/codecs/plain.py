"""Uncompressed types: float32 (tests, truth), float16 (the control that every claim is measured against), bfloat16."""

from polykv.types import Codec, Family


def f32() -> Codec:
    """IEEE float32, little-endian."""
    return Codec("f32", Family.F32, bits=32, block=1, block_bytes=4)


def f16() -> Codec:
    """IEEE float16, little-endian; values beyond +-65504 are clamped."""
    return Codec("f16", Family.F16, bits=16, block=1, block_bytes=2)


def bf16() -> Codec:
    """The upper half of a float32, rounded to nearest even; the range of float32 with 8 significant bits."""
    return Codec("bf16", Family.BF16, bits=16, block=1, block_bytes=2)
