// y = last * H (x * first) / sqrt(g) on groups of g = FWHT_SIZE = 32, 64 .. 1024 values, one warp a group.
//
// Defines: FWHT_SIZE.

#include "fwht.cuh"

#define FWHT_WARPS 4

extern "C" __global__ void __launch_bounds__(32 * FWHT_WARPS)
fwht(float* y, const float* x, const float* first, const float* last, float scale, int groups) {
    const int group = blockIdx.x * FWHT_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (group >= groups) return;
    const long long start = (long long)group * FWHT_SIZE + lane;
    float v[FWHT_SIZE / 32];
#pragma unroll
    for (int i = 0; i < FWHT_SIZE / 32; ++i) v[i] = x[start + 32 * i] * first[lane + 32 * i];
    fwht_warp(v);
#pragma unroll
    for (int i = 0; i < FWHT_SIZE / 32; ++i) y[start + 32 * i] = v[i] * scale * last[lane + 32 * i];
}
