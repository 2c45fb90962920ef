// y = x W^T for a few rows of float32 activations and W of floats.
//
// Defines: WEIGHT_FLOAT (a reader of plain.cuh). A warp has one row of W, four rows of x a block. Where rows of W and x
// are multiples of 16 bytes a lane takes 16 bytes of W at once, else single values; the kernel sees which by cols.

#include "memory.cuh"
#include "plain.cuh"
#include "warp.cuh"

#define LINEAR_WARPS 4
#define LINEAR_ROWS 4

using Weight = WEIGHT_FLOAT;
#define LINEAR_WIDTH (16 / Weight::BYTES)

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, 5)
linear_few_plain(float* y, const unsigned char* data, const float* x, int n, int rows, int cols) {
    const int chunks = (n + LINEAR_ROWS - 1) / LINEAR_ROWS, before = blockIdx.x % chunks * LINEAR_ROWS;
    const int row = blockIdx.x / chunks * LINEAR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int here = min(n - before, LINEAR_ROWS);
    x += (long long)before * cols;
    float sums[LINEAR_ROWS] = {};
    // Columns that are read 16 bytes at a time: all or none, so that a row's sum has one order.
    const int wide = cols % LINEAR_WIDTH == 0 ? cols : 0;
#pragma unroll 2
    for (int at = lane * LINEAR_WIDTH; at < wide; at += 32 * LINEAR_WIDTH) {
        const uint4 bits = stream16(data + ((long long)row * cols + at) * Weight::BYTES);
        const unsigned char* values = (const unsigned char*)&bits;
#pragma unroll
        for (int r = 0; r < LINEAR_ROWS; ++r) {
            if (r >= here) break;
#pragma unroll
            for (int i = 0; i < LINEAR_WIDTH; i += 4) {
                const uint4 v = cached16(x + (long long)r * cols + at + i);
                sums[r] = fmaf(Weight::value(values, i), __uint_as_float(v.x), sums[r]);
                sums[r] = fmaf(Weight::value(values, i + 1), __uint_as_float(v.y), sums[r]);
                sums[r] = fmaf(Weight::value(values, i + 2), __uint_as_float(v.z), sums[r]);
                sums[r] = fmaf(Weight::value(values, i + 3), __uint_as_float(v.w), sums[r]);
            }
        }
    }
    for (int at = wide + lane; at < cols; at += 32) {
        const float w = Weight::value(data, (long long)row * cols + at);
#pragma unroll
        for (int r = 0; r < LINEAR_ROWS; ++r)
            if (r < here) sums[r] = fmaf(w, x[(long long)r * cols + at], sums[r]);
    }
    const float sum = warp_sums(sums);
    const int r = owner<LINEAR_ROWS>();
    if (r >= 0 && r < here) y[(long long)(before + r) * rows + row] = sum;
}
