"""Scalar types: 32 consecutive values share one fp16 scale d (and a minimum m), as in ggml. Rules: docs/FORMATS.md."""

from polykv.types import Codec, Family


def q8_0() -> Codec:
    """d = amax/127, codes int8: 34 bytes per 32 values, 8.5 bits per value."""
    return Codec("q8_0", Family.Q8_0, bits=8, block=32, block_bytes=34)


def q6_0() -> Codec:
    """d = (value of largest magnitude)/-32, codes 0..63 for (q-32)*d: 26 bytes per 32 values, 6.5 bits per value."""
    return Codec("q6_0", Family.Q6_0, bits=6, block=32, block_bytes=26)


def q5_1() -> Codec:
    """d = (max-min)/31, m = min, codes 0..31 for q*d+m: 24 bytes per 32 values, 6 bits per value."""
    return Codec("q5_1", Family.Q5_1, bits=5, block=32, block_bytes=24)


def q5_0() -> Codec:
    """d = (value of largest magnitude)/-16, codes 0..31 for (q-16)*d: 22 bytes per 32 values, 5.5 bits per value."""
    return Codec("q5_0", Family.Q5_0, bits=5, block=32, block_bytes=22)


def q4_1() -> Codec:
    """d = (max-min)/15, m = min, codes 0..15 for q*d+m: 20 bytes per 32 values, 5 bits per value."""
    return Codec("q4_1", Family.Q4_1, bits=4, block=32, block_bytes=20)


def q4_0() -> Codec:
    """d = (value of largest magnitude)/-8, codes 0..15 for (q-8)*d: 18 bytes per 32 values, 4.5 bits per value."""
    return Codec("q4_0", Family.Q4_0, bits=4, block=32, block_bytes=18)


def iq4_nl() -> Codec:
    """Codes 0..15 into a fixed non-linear table, d fitted: 18 bytes per 32 values, 4.5 bits per value."""
    return Codec("iq4_nl", Family.IQ4_NL, bits=4, block=32, block_bytes=18)
