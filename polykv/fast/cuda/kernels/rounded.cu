// Rows of activations for a float16 product: scaled by a power of two, so that none overflows, and rounded.
//
// Defines: ROUND_INT8 (1: values are first rounded to int8 per 32, as quantize.cu does).
// One block a row: y = x / s as float16, s the power of two for which the row's largest value is between 1 and 2. So
// 11 bits are kept of it, whatever its size. float16 holds 2^-24 to 65504: what is 2^-14 of it or more keeps 11 bits.

#include "half.cuh"
#include "max_nan.cuh"
#include "warp.cuh"

#define ROUND_THREADS 256

__device__ __forceinline__ float block_max(float v) {
    __shared__ float tops[ROUND_THREADS / 32];
    for (int distance = 16; distance > 0; distance /= 2) v = max_nan(v, __shfl_xor_sync(WARP_ALL, v, distance));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = v;
    __syncthreads();
    v = tops[threadIdx.x % (ROUND_THREADS / 32)];
    for (int distance = ROUND_THREADS / 64; distance > 0; distance /= 2)
        v = max_nan(v, __shfl_xor_sync(WARP_ALL, v, distance));
    return v;
}

// The value after rounding to int8 with the scale of its 32, which are this warp's lanes.
__device__ __forceinline__ float rounded(float v) {
    float top = fabsf(v);
    for (int distance = 16; distance > 0; distance /= 2) top = max_nan(top, __shfl_xor_sync(WARP_ALL, top, distance));
    const float d = top / 127.0f;
    return d * roundf(v * (d >= 1.17549435e-38f ? 1.0f / d : 0.0f));
}

extern "C" __global__ void __launch_bounds__(ROUND_THREADS)
round_rows(unsigned short* y, float* scales, const float* x, int cols) {
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    float top = 0.0f;
    for (int i = threadIdx.x; i < cols; i += ROUND_THREADS) top = max_nan(top, fabsf(x[i]));
    top = block_max(top);
    // The power of two is the exponent alone; rows of zeros keep 1. Infinite and NaN rows stay so: x / s is NaN.
    const unsigned bits = __float_as_uint(top) & 0x7f800000u;
    const float scale = top > 0.0f ? __uint_as_float(min(max(bits, 0x01000000u), 0x7e000000u)) : 1.0f;
    const float inverse = top <= 3.40282347e38f ? 1.0f / scale : __uint_as_float(0x7fffffffu);
    // Whole warps at a time: cols is a multiple of 32 where values are rounded to int8.
    for (int i = threadIdx.x; i < cols; i += ROUND_THREADS)
        y[i] = f32_to_f16((ROUND_INT8 ? rounded(x[i]) : x[i]) * inverse);
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}
