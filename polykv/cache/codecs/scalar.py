"""Scalar types: 32 consecutive values share one fp16 scale, as in ggml. Rules: docs/FORMATS.md."""

from polykv.types import Codec, Family


def q8_0() -> Codec:
    """d = amax/127, codes int8: 34 bytes per 32 values, 8.5 bits per value."""
    return Codec("q8_0", Family.Q8_0, bits=8, block=32, block_bytes=34)


def q4_0() -> Codec:
    """d = (value of largest magnitude)/-8, codes 0..15 for (q-8)*d: 18 bytes per 32 values, 4.5 bits per value."""
    return Codec("q4_0", Family.Q4_0, bits=4, block=32, block_bytes=18)
