// Rows of activations as int8, in an order of quantize.cuh. Defines: QUANTIZE_TILES.

#include "follow.cuh"
#include "quantize.cuh"

// n: rows of x; total: fours of values, those of rows that complete the last chunk included.
extern "C" __global__ void __launch_bounds__(256)
quantize_rows(unsigned* codes, uint2* scales, const float4* x, int n, int cols, int total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (cols / 4), four = i % (cols / 4);
    follows(x);
    // Threads past the end take part in the exchanges.
    const float4 v = row < n ? x[i] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    put_four<QUANTIZE_TILES>(codes, scales, v, row, four, cols, total / (cols / 4) / 8, i < total);
}
