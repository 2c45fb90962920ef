// y = x W^T for up to LINEAR_ROWS rows x and packed W: every weight is read once, at the speed of memory.
//
// Defines: WEIGHT_TYPE, LINEAR_ROWS (1, 8), LINEAR_AHEAD (pieces that a lane has on their way at once).
// A warp has one row of W. Its lanes take the pieces of the row in turn, 32 at a time, so their loads are 512 bytes side
// by side; LINEAR_AHEAD of them are started before the first is used. To keep 4 TB/s busy a multiprocessor must have
// about 26 KB on the way: 32 warps x 32 lanes x 2 x 16 bytes are 32 KB.
// Activations come through the L1 cache, which weights pass by.
// Rows of x beyond LINEAR_ROWS are other blocks of the grid, next to those that read the same weights: L2 has them.

#include "follow.cuh"
#include "linear.cuh"
#include "warp.cuh"
#include "weight_type.cuh"

#define LINEAR_WARPS 4
// At least 5 blocks on a multiprocessor: up to 96 registers, with which no type spills. Most take fewer, and more blocks
// fit. Without a bound the compiler saves registers by moving loads down to where they are used, one after the other.
#define LINEAR_BLOCKS 5

__device__ __forceinline__ int column_of(int piece) {
    return piece / Weight::PIECES * Weight::VALUES + Weight::start(piece % Weight::PIECES);
}

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, LINEAR_BLOCKS)
linear_few(float* y, const unsigned char* data, const signed char* codes, const uint2* scales, int n, int rows, int cols) {
    const int chunks = (n + LINEAR_ROWS - 1) / LINEAR_ROWS, chunk = blockIdx.x % chunks;
    const int row = blockIdx.x / chunks * LINEAR_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const int before = chunk * LINEAR_ROWS, here = min(n - before, LINEAR_ROWS);
    const int blocks = cols / Weight::VALUES, pieces = blocks * Weight::PIECES;
    const Fields w = Weight::fields(data, (long long)rows * blocks, (long long)row * blocks);

    float sums[LINEAR_ROWS] = {};
    int piece = lane;
    Weight::Raw raw[LINEAR_AHEAD];
    auto load = [&] {
        if (piece + 32 * (LINEAR_AHEAD - 1) >= pieces) return false;
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i) raw[i] = Weight::load(w, (piece + 32 * i) / Weight::PIECES, piece % Weight::PIECES);
        return true;
    };
    // The first weights are on their way before the activations are there. Asking the L2 cache for the others as well made
    // a step 12 % slower.
    bool more = load();
    follows(codes, scales);
    const Activations x = {codes + (long long)before * cols, scales + (long long)before * (cols / 32), cols};
    while (more) {
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i)
            add_piece<Weight>(sums, raw[i], piece % Weight::PIECES, x, column_of(piece + 32 * i), here);
        piece += 32 * LINEAR_AHEAD;
        more = load();
    }
    for (; piece < pieces; piece += 32) {
        const int part = piece % Weight::PIECES;
        add_piece<Weight>(sums, Weight::load(w, piece / Weight::PIECES, part), part, x, column_of(piece), here);
    }

    const float sum = warp_sums(sums);
    const int r = owner<LINEAR_ROWS>();
    if (r >= 0 && r < here) y[(long long)(before + r) * rows + row] = sum;
}
