// y = x W^T for up to LINEAR_ROWS rows x and packed W whose rows are multiples of 128 values, on tensor cores.
//
// Defines: WEIGHT_TYPE, LINEAR_ROWS (1, 8, 16, 32), LINEAR_WARPS (of a block).
// A block has 16 rows of W, its warps share the columns: warp w takes the tiles (tiles.cuh) w, w + LINEAR_WARPS, ... A tile
// of 16 rows is the operand a of `mma`, 8 rows of x, as int8 in the order of operand b (quantize.cu), the other one. Sums
// over 32 columns are integers; each is scaled by the scales of its row and column and added in float32. At the end the
// warps' sums are added in their order. So the order of a row's sums depends on cols alone, for any number of rows.
//
// A step (32 columns) costs a warp about 40 instructions for 8 rows of x and 16 of W, a quarter of what dp4a takes for as
// many products: memory stays the limit. For a single row of x the sums of the other columns of c are left out.

#include "follow.cuh"
#include "mma_s8.cuh"
#include "tiles_k.cuh"
#include "weight_type.cuh"

#define LINEAR_TILE 128
#define LINEAR_CHUNKS ((LINEAR_ROWS + 7) / 8)
// Of the two columns of c that a lane has, those that are wanted.
#define LINEAR_COLUMNS (LINEAR_ROWS == 1 ? 1 : 2)
// Tiles that a warp has on their way at once: 16 rows x 64 bytes each. With many rows of x their sums need the registers.
#define LINEAR_AHEAD (LINEAR_CHUNKS == 1 ? 2 : 1)

// Activations as quantize.cu writes them for tiles: codes [chunk][step][lane] of 8 bytes, scales [chunk][step][8] of a
// float32 and two int16 sums of 16 codes.
// The pointers are this lane's own, at step 0.
struct Rows {
    const uint2* codes;
    const uint4* scales;
    int steps;
};

// What belongs to columns 2 q and 2 q + 1 of c: scales, and sums of either half.
struct Columns {
    float d[2];
    int low[2], high[2];
};

__device__ __forceinline__ Columns columns_of(const uint4* scales) {
    const uint4 v = cached16(scales);
    return {{__uint_as_float(v.x), __uint_as_float(v.z)},
            {(int)(short)(v.y & 0xffffu), (int)(short)(v.w & 0xffffu)},
            {(int)v.y >> 16, (int)v.w >> 16}};
}

// One step of 16 rows of W, of tiles a (rows g) and b (rows g + 8), with 8 rows of x.
template <typename T>
__device__ __forceinline__ void
add_step(float (&sums)[4], const Tile<T>& a, const Tile<T>& b, int step, const uint2* at, const uint4* scales, int q) {
    const uint2 codes = cached8(at);
    const Columns column = columns_of(scales);
    if constexpr (!Tile<T>::HALVES) {
        int c[4] = {};
        mma_s8_32(c, a.word(step, 0, q), b.word(step, 0, q), a.word(step, 1, q), b.word(step, 1, q), codes);
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& w = i < 2 ? a : b;
            const float d = column.d[i & 1];
            const int sum = column.low[i & 1] + column.high[i & 1];
            sums[i] = fmaf(w.scale(step), d * (float)(c[i] - T::ZERO * sum), sums[i]);
            if (T::MINIMUM) sums[i] = fmaf(-w.minimum(step), d * (float)sum, sums[i]);
        }
    } else {
        int c[4] = {}, e[4] = {};
        mma_s8_16(c, a.word(step, 0, q), b.word(step, 0, q), codes.x);
        mma_s8_16(e, a.word(step, 1, q), b.word(step, 1, q), codes.y);
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& w = i < 2 ? a : b;
            const float d = column.d[i & 1];
            const int first = c[i] - T::ZERO * column.low[i & 1], second = e[i] - T::ZERO * column.high[i & 1];
            const int sum = w.factor(step, 0) * first + w.factor(step, 1) * second;
            sums[i] = fmaf(w.scale(), d * (float)sum, sums[i]);
            if (T::MINIMUM) {
                const int least = w.offset(step, 0) * column.low[i & 1] + w.offset(step, 1) * column.high[i & 1];
                sums[i] = fmaf(-w.minimum(), d * (float)least, sums[i]);
            }
        }
    }
}

__device__ __forceinline__ void
add_tile(float (&sums)[LINEAR_CHUNKS][4], Tile<Weight>& a, Tile<Weight>& b, const Rows& x, int tile, int q) {
    a.finish(q);
    b.finish(q);
#pragma unroll
    for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk) {
        const uint2* codes = x.codes + 32 * (chunk * x.steps + 4 * tile);
        const uint4* scales = x.scales + 4 * (chunk * x.steps + 4 * tile);
#pragma unroll
        for (int step = 0; step < 4; ++step)
            add_step(sums[chunk], a, b, step, codes + 32 * step, scales + 4 * step, q);
    }
}

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, 16 / LINEAR_WARPS)
linear_tiles(float* y, const unsigned char* data, const uint2* codes, const uint2* scales, int n, int rows, int cols) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4;
    const int before = 8 * LINEAR_CHUNKS * blockIdx.y, steps = cols / 32, blocks = cols / Weight::VALUES;
    const long long start = (long long)before / 8 * steps;
    // Rows past the end read the last one; nobody looks at the result.
    const int row = min((int)blockIdx.x * 16 + lane / 4, rows - 1), other = min((int)blockIdx.x * 16 + lane / 4 + 8, rows - 1);
    const Fields first = Weight::fields(data, (long long)rows * blocks, (long long)row * blocks);
    const Fields second = Weight::fields(data, (long long)rows * blocks, (long long)other * blocks);

    follows(codes, scales);
    const Rows x = {codes + 32 * start + lane, (const uint4*)(scales + 8 * start) + q, steps};

    float sums[LINEAR_CHUNKS][4] = {};
    const int tiles = cols / LINEAR_TILE;
    for (int tile = warp; tile < tiles; tile += LINEAR_AHEAD * LINEAR_WARPS) {
        Tile<Weight> a[LINEAR_AHEAD], b[LINEAR_AHEAD];
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i) {
            if (tile + i * LINEAR_WARPS >= tiles) break;
            a[i].start(first, tile + i * LINEAR_WARPS, q);
            b[i].start(second, tile + i * LINEAR_WARPS, q);
        }
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i) {
            if (tile + i * LINEAR_WARPS >= tiles) break;
            add_tile(sums, a[i], b[i], x, tile + i * LINEAR_WARPS, q);
        }
    }

    __shared__ float parts[LINEAR_WARPS][8 * LINEAR_CHUNKS][16];
    for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk)
        for (int i = 0; i < 4; ++i)
            parts[warp][8 * chunk + 2 * q + (i & 1)][lane / 4 + 8 * (i >> 1)] = sums[chunk][i];
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * LINEAR_CHUNKS * 16; i += 32 * LINEAR_WARPS) {
        const int r = before + i / 16, at = blockIdx.x * 16 + i % 16;
        if (r >= n || at >= rows) continue;
        float sum = 0.0f;
        for (int w = 0; w < LINEAR_WARPS; ++w) sum += parts[w][i / 16][i % 16];
        y[(long long)r * rows + at] = sum;
    }
}
