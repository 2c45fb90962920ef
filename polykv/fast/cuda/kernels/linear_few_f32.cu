// y = x W^T for a few rows of float32 activations and packed W: exact to the roundings of a float32 sum.
//
// Defines: WEIGHT_TYPE. Rows of W and pieces are shared out as in linear_few.cu; four rows of x a block. This is the
// mode for comparing, not the fast one: float activations are four times the bytes, and products are one an instruction.

#include "linear.cuh"
#include "warp.cuh"
#include "weight_type.cuh"

#define LINEAR_WARPS 4
#define LINEAR_ROWS 4

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, 5)
linear_few_f32(float* y, const unsigned char* data, const float* x, int n, int rows, int cols) {
    const int chunks = (n + LINEAR_ROWS - 1) / LINEAR_ROWS, before = blockIdx.x % chunks * LINEAR_ROWS;
    const int row = blockIdx.x / chunks * LINEAR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int here = min(n - before, LINEAR_ROWS);
    const int blocks = cols / Weight::VALUES, pieces = blocks * Weight::PIECES;
    const Fields fields = Weight::fields(data, (long long)rows * blocks, (long long)row * blocks);
    x += (long long)before * cols;
    float sums[LINEAR_ROWS] = {};
    for (int piece = lane; piece < pieces; piece += 32) {
        const int block = piece / Weight::PIECES, part = piece % Weight::PIECES;
        const auto raw = Weight::load(fields, block, part);
        const int at = block * Weight::VALUES + Weight::start(part);
        add_piece_f32<Weight>(sums, raw, part, x, cols, at, here);
    }
    const float sum = warp_sums(sums);
    const int r = owner<LINEAR_ROWS>();
    if (r >= 0 && r < here) y[(long long)(before + r) * rows + row] = sum;
}
