// y = x W^T for up to LINEAR_ROWS rows x and packed W whose rows are multiples of 128 values, on tensor cores.
//
// Defines: WEIGHT_TYPE, LINEAR_ROWS (1, 8, 16, 24, 32), LINEAR_WARPS (of a block), LINEAR_GROUPS, LINEAR_PAIRS.
// A warp has LINEAR_PAIRS times 16 rows of W and a part of the columns: warp w the rows of group w % LINEAR_GROUPS, and of
// the tiles (tiles.cuh) every one that its part of LINEAR_WARPS / LINEAR_GROUPS takes in turn. 16 rows of a tile are the
// operand a of `mma`, 8 rows of x, as int8 in the order of operand b (quantize.cu), the other one. Sums over 32 columns are
// integers; each is scaled by the scales of its row and column and added in float32. At the end the parts' sums are added
// in their order, which depends on the shape of W alone: a row of y is the same for any number of rows.
//
// 32 rows of x are 40 bytes for each of their columns, W has some 0.56 bytes a value: so that x does not cost more than W on
// its way from the L2 cache, a block has as many rows of W as leave a block to every multiprocessor (GROUPS), and its
// warps, which read the same x at about the same time, find it in the L1 cache.

#include "follow.cuh"
#include "mma_s8.cuh"
#include "tiles_k.cuh"
#include "weight_type.cuh"

#define LINEAR_TILE 128
#define LINEAR_CHUNKS ((LINEAR_ROWS + 7) / 8)
// Of the two columns of c that a lane has, those that are wanted.
#define LINEAR_COLUMNS (LINEAR_ROWS == 1 ? 1 : 2)
#define LINEAR_PARTS (LINEAR_WARPS / LINEAR_GROUPS)
#define LINEAR_HEIGHT (16 * LINEAR_PAIRS * LINEAR_GROUPS)
// 1.5 * 2^23: an integer below 2^22 that was added to its bits is the float of it, less this.
#define LINEAR_MAGIC 0x4B400000

// Activations as quantize.cu writes them for tiles: codes [tile][chunk][step][lane] of 8 bytes, scales [tile][chunk][step][8]
// of a float32 and two int16 sums of 16 codes.
// The pointers are this lane's own.
struct Rows {
    const uint2* codes;
    const uint4* scales;
};

// What belongs to columns 2 q and 2 q + 1 of c: scales, and sums of either half.
struct Columns {
    float d[2];
    unsigned sums[2];
    __device__ __forceinline__ int low(int i) const { return (int)(short)(sums[i] & 0xffffu); }
    __device__ __forceinline__ int high(int i) const { return (int)sums[i] >> 16; }
    // by (low + high) + start, one instruction; by fits a byte.
    __device__ __forceinline__ int both(int i, int by, int start) const { return two_times(sums[i], by, start); }
};

__device__ __forceinline__ Columns columns_of(const uint4* scales) {
    const uint4 v = cached16(scales);
    return {{__uint_as_float(v.x), __uint_as_float(v.z)}, {v.y, v.w}};
}

// One step of 16 rows of W, of tiles a (rows g) and b (rows g + 8), with 8 rows of x.
template <typename T>
__device__ __forceinline__ void
add_step(float (&sums)[4], const Tile<T>& a, const Tile<T>& b, int step, uint2 codes, const Columns& column,
         const int (&magic)[4], int q) {
    if constexpr (!Tile<T>::HALVES) {
        int c[4];
        mma_s8_32_from(c, magic, a.word(step, 0, q), b.word(step, 0, q), a.word(step, 1, q), b.word(step, 1, q), codes);
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& w = i < 2 ? a : b;
            const float d = column.d[i & 1];
            // What the zero of the codes adds is in the number that makes an integer of the bits: all of it is exact.
            const float zero = __int_as_float(column.both(i & 1, T::ZERO, LINEAR_MAGIC));
            sums[i] = fmaf(w.scale(step) * d, __int_as_float(c[i]) - zero, sums[i]);
            if (T::MINIMUM) sums[i] = fmaf(-w.minimum(step), d * (float)column.both(i & 1, 1, 0), sums[i]);
        }
    } else {
        int c[4] = {}, e[4] = {};
        mma_s8_16(c, a.word(step, 0, q), b.word(step, 0, q), codes.x);
        mma_s8_16(e, a.word(step, 1, q), b.word(step, 1, q), codes.y);
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& w = i < 2 ? a : b;
            const float d = column.d[i & 1];
            const int low = column.low(i & 1), high = column.high(i & 1);
            const int first = c[i] - T::ZERO * low, second = e[i] - T::ZERO * high;
            const int sum = w.factor(step, 0) * first + w.factor(step, 1) * second;
            sums[i] = fmaf(w.scale(), d * (float)sum, sums[i]);
            if (T::MINIMUM) {
                const int least = w.offset(step, 0) * low + w.offset(step, 1) * high;
                sums[i] = fmaf(-w.minimum(), d * (float)least, sums[i]);
            }
        }
    }
}

// 16 rows of W: rows g are tile a, rows g + 8 tile b.
struct Pair {
    Tile<Weight> a, b;
    __device__ __forceinline__ void start(const Fields (&rows)[2], int tile, int q) {
        a.start(rows[0], tile, q);
        b.start(rows[1], tile, q);
    }
};

__device__ __forceinline__ void
add_tile(float (&sums)[LINEAR_PAIRS][LINEAR_CHUNKS][4], Pair (&w)[LINEAR_PAIRS], const Rows& x, int tile, int q) {
    for (Pair& pair : w) {
        pair.a.finish(q);
        pair.b.finish(q);
    }
    const uint2* codes = x.codes + 128 * LINEAR_CHUNKS * tile;
    const uint4* scales = x.scales + 16 * LINEAR_CHUNKS * tile;
    int magic[4] = {LINEAR_MAGIC, LINEAR_MAGIC, LINEAR_MAGIC, LINEAR_MAGIC};
    for (int& m : magic) keep_in_register(m);
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk) {
            const uint2 eight = cached8(codes + 32 * (4 * chunk + step));
            const Columns column = columns_of(scales + 4 * (4 * chunk + step));
#pragma unroll
            for (int i = 0; i < LINEAR_PAIRS; ++i) add_step(sums[i][chunk], w[i].a, w[i].b, step, eight, column, magic, q);
        }
}

// use(row of x, row of W in the block, sum) for all sums of this lane.
template <typename Use>
__device__ __forceinline__ void each_sum(float (&sums)[LINEAR_PAIRS][LINEAR_CHUNKS][4], int group, Use use) {
    const int lane = threadIdx.x % 32, row = lane / 4, column = 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < LINEAR_PAIRS; ++i)
#pragma unroll
        for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                use(8 * chunk + column + (k & 1), 16 * (LINEAR_PAIRS * group + i) + row + 8 * (k >> 1), sums[i][chunk][k]);
}

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, 1)
linear_tiles(float* y, const unsigned char* data, const uint2* codes, const uint2* scales, int n, int rows, int cols) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4, g = lane / 4;
    const int group = warp % LINEAR_GROUPS, part = warp / LINEAR_GROUPS;
    const int blocks = cols / Weight::VALUES;
    Fields w[LINEAR_PAIRS][2];
#pragma unroll
    for (int i = 0; i < 2 * LINEAR_PAIRS; ++i) {
        // Rows past the end read the last one; nobody looks at the result.
        const int row = min((int)blockIdx.x * LINEAR_HEIGHT + 16 * LINEAR_PAIRS * group + 8 * i + g, rows - 1);
        w[i / 2][i % 2] = Weight::fields(data, (long long)rows * blocks, (long long)row * blocks);
    }
    const int tiles = cols / LINEAR_TILE;
    Pair next[LINEAR_PAIRS];
    auto load = [&](int tile) {
        if (tile < tiles)
            for (int i = 0; i < LINEAR_PAIRS; ++i) next[i].start(w[i], tile, q);
    };
    load(part);
    follows(codes, scales);
    const Rows x = {codes + lane, (const uint4*)scales + q};

    float sums[LINEAR_PAIRS][LINEAR_CHUNKS][4] = {};
    for (int tile = part; tile < tiles; tile += LINEAR_PARTS) {
        Pair here[LINEAR_PAIRS];
        for (int i = 0; i < LINEAR_PAIRS; ++i) here[i] = next[i];
        load(tile + LINEAR_PARTS);
        add_tile(sums, here, x, tile, q);
    }

    // The later half of the parts hands its sums to the earlier one, and so on: half the memory, the same for any rows.
    __shared__ float parts[(LINEAR_PARTS + 1) / 2][8 * LINEAR_CHUNKS][LINEAR_HEIGHT];
#pragma unroll
    for (int half = LINEAR_PARTS / 2; half > 0; half /= 2) {
        if (part >= half && part < 2 * half)
            each_sum(sums, group, [&](int r, int at, float& sum) { parts[part - half][r][at] = sum; });
        __syncthreads();
        if (part < half) each_sum(sums, group, [&](int r, int at, float& sum) { sum += parts[part][r][at]; });
        __syncthreads();
    }
    if (part == 0) each_sum(sums, group, [&](int r, int at, float& sum) { parts[0][r][at] = sum; });
    __syncthreads();
    for (int i = threadIdx.x; i < 8 * LINEAR_CHUNKS * LINEAR_HEIGHT; i += 32 * LINEAR_WARPS) {
        const int r = i / LINEAR_HEIGHT, at = blockIdx.x * LINEAR_HEIGHT + i % LINEAR_HEIGHT;
        if (r < n && at < rows) y[(long long)r * rows + at] = parts[0][r][i % LINEAR_HEIGHT];
    }
}
