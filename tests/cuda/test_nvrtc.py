"""The compiler that the tests use: what it says about a kernel, and its errors."""

from __future__ import annotations

import pytest

from polykv.errors import UnsupportedError
from polykv.fast.cuda.nvrtc import compile_for, resources

SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* y, int n) {
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = y[i * n + threadIdx.x];
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 7) % 64] + a[(i + 31) % 64];
    for (int i = 0; i < 64; ++i) y[i * n + threadIdx.x] = a[i];
}
"""


def test_registers_spills_and_shared_memory_are_seen() -> None:
    plain = 'extern "C" __global__ void k(float* y) { __shared__ float s[8]; s[threadIdx.x] = y[0]; y[1] = s[0]; }'
    found = compile_for("sm_90", plain).resources["k"]
    assert 0 < found.registers < 32 and (found.stack, found.spills, found.shared) == (0, 0, 32)
    crowded = compile_for("sm_90", SPILLING).resources["crowded"]
    assert crowded.spills > 0 and crowded.registers == 32


def test_a_text_without_entries_has_no_resources() -> None:
    assert resources(compile_for("sm_80", "__device__ int f() { return 1; }").log) == {}


def test_the_first_error_is_told() -> None:
    with pytest.raises(UnsupportedError, match=r"bad\.cu does not compile for sm_90: bad\.cu\(1\): error: .* \"x\""):
        compile_for("sm_90", 'extern "C" __global__ void k() { x = 1; }', name="bad.cu")


def test_an_unknown_architecture_is_told() -> None:
    with pytest.raises(UnsupportedError, match="sm_12345"):
        compile_for("sm_12345", "")


def test_contraction_is_off() -> None:
    """A product and a sum stay two roundings, so that the arithmetic is that of the text."""
    text = 'extern "C" __global__ void k(float* y) { y[0] = y[1] * y[2] + y[3]; }'
    split, fused = (
        compile_for("sm_90", t).image for t in (text, text.replace("y[1] * y[2] + y[3]", "fmaf(y[1], y[2], y[3])"))
    )
    assert split != fused
