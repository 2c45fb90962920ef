"""The CUDA backend in the making: kernels in `kernels/`, compiled by `compile.py` alone, launched on CuPy arrays."""
