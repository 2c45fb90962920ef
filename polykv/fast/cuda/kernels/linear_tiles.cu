// y = x W^T for up to LINEAR_ROWS rows x and packed W whose rows are multiples of 128 values, on tensor cores.
//
// Defines: WEIGHT_TYPE, LINEAR_ROWS (1, 8, 16, 32), LINEAR_WARPS (of a block), LINEAR_GROUPS (1, 2).
// A block has 16 LINEAR_GROUPS rows of W, its warps share the columns: warp w takes the tiles (tiles.cuh) w,
// w + LINEAR_WARPS, ... A tile of 16 rows is the operand a of `mma`, 8 rows of x, as int8 in the order of operand b
// (quantize.cu), the other one. Sums over 32 columns are integers; each is scaled by the scales of its row and column and
// added in float32. At the end the warps' sums are added in their order. So the order of a row's sums depends on cols
// alone, for any number of rows.
//
// Integers become floats without an instruction for it, which has a quarter of the others' speed: sums begin at the bits
// of 1.5 2^23 as a float (less ZERO times the sum of x), and that is subtracted. With many rows of x it is they who are
// read most, from the caches, for every block again: two groups of rows of W read them once.
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
#ifndef LINEAR_AHEAD
#define LINEAR_AHEAD (LINEAR_CHUNKS == 1 ? 2 : 1)
#endif

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

// What scales with sums are for: a ZERO, or a minimum. Loads of four bytes take a quarter of the others' time.
template <typename T> constexpr bool SUMS = Tile<T>::HALVES || T::MINIMUM || (T::ZERO && !Tile<T>::SHIFTED);

template <bool WITH_SUMS> __device__ __forceinline__ Columns columns_of(const uint4* scales) {
    if constexpr (!WITH_SUMS) {
        const float* d = (const float*)scales;
        return {{__ldg(d), __ldg(d + 2)}, {0, 0}, {0, 0}};
    }
    const uint4 v = cached16(scales);
    return {{__uint_as_float(v.x), __uint_as_float(v.z)},
            {(int)(short)(v.y & 0xffffu), (int)(short)(v.w & 0xffffu)},
            {(int)v.y >> 16, (int)v.w >> 16}};
}

// Rows of W of a warp: tiles a (rows g) and b (rows g + 8).
template <typename T> struct Pair {
    Tile<T> a, b;
};

// 1.5 2^23: integers of up to 22 bits added to its bits are added to it.
constexpr int BEGIN = 0x4B400000;
constexpr float BEGUN = 12582912.0f;

// One step of 16 rows of W with 8 rows of x.
template <typename T>
__device__ __forceinline__ void
add_step(float (&sums)[4], const Pair<T>& w, int step, uint2 codes, const Columns& column, int q) {
    const Tile<T>&a = w.a, &b = w.b;
    if constexpr (!Tile<T>::HALVES) {
        constexpr bool SHIFTED = Tile<T>::SHIFTED;
        const int least[2] = {column.low[0] + column.high[0], column.low[1] + column.high[1]};
        const int zero = SHIFTED ? 0 : T::ZERO;
        int c[4];
        auto word = [&](const Tile<T>& of, int half) {
            if constexpr (SHIFTED) return of.shifted(step, half);
            else return of.word(step, half, q);
        };
        mma_s8_32_from(c, BEGIN - zero * least[0], BEGIN - zero * least[1], word(a, 0), word(b, 0), word(a, 1), word(b, 1), codes);
#pragma unroll
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& of = i < 2 ? a : b;
            const float d = column.d[i & 1], scale = SHIFTED ? of.scale(step) * 0.0625f : of.scale(step);
            sums[i] = fmaf(scale, d * (__int_as_float(c[i]) - BEGUN), sums[i]);
            if (T::MINIMUM) sums[i] = fmaf(-of.minimum(step), d * (float)least[i & 1], sums[i]);
        }
    } else {
        int c[4] = {}, e[4] = {};
        mma_s8_16(c, a.word(step, 0, q), b.word(step, 0, q), codes.x);
        mma_s8_16(e, a.word(step, 1, q), b.word(step, 1, q), codes.y);
#pragma unroll
        for (int i = 0; i < 4; i += 3 - LINEAR_COLUMNS) {
            const Tile<T>& of = i < 2 ? a : b;
            const float d = column.d[i & 1];
            const int first = c[i] - T::ZERO * column.low[i & 1], second = e[i] - T::ZERO * column.high[i & 1];
            const int sum = of.factor(step, 0) * first + of.factor(step, 1) * second;
            sums[i] = fmaf(of.scale(), d * (float)sum, sums[i]);
            if (T::MINIMUM) {
                const int least = of.offset(step, 0) * column.low[i & 1] + of.offset(step, 1) * column.high[i & 1];
                sums[i] = fmaf(-of.minimum(), d * (float)least, sums[i]);
            }
        }
    }
}

__device__ __forceinline__ void
add_tile(float (&sums)[LINEAR_GROUPS][LINEAR_CHUNKS][4], Pair<Weight> (&w)[LINEAR_GROUPS], const Rows& x, int tile, int q) {
#pragma unroll
    for (int group = 0; group < LINEAR_GROUPS; ++group) {
        w[group].a.finish(q);
        w[group].b.finish(q);
    }
    // Steps first: the words of a step are made once, and are in registers no longer than for its chunks.
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
        for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk) {
            const int at = chunk * x.steps + 4 * tile + step;
            const uint2 codes = cached8(x.codes + 32 * at);
            const Columns column = columns_of<SUMS<Weight>>(x.scales + 4 * at);
#pragma unroll
            for (int group = 0; group < LINEAR_GROUPS; ++group) add_step(sums[group][chunk], w[group], step, codes, column, q);
        }
}

extern "C" __global__ void __launch_bounds__(32 * LINEAR_WARPS, 16 / LINEAR_WARPS)
linear_tiles(float* y, const unsigned char* data, const uint2* codes, const uint2* scales, int n, int rows, int cols) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4, from = blockIdx.x * 16 * LINEAR_GROUPS;
    const int before = 8 * LINEAR_CHUNKS * blockIdx.y, steps = cols / 32, blocks = cols / Weight::VALUES;
    const long long start = (long long)before / 8 * steps;
    Fields fields[2 * LINEAR_GROUPS];
#pragma unroll
    for (int i = 0; i < 2 * LINEAR_GROUPS; ++i) {
        // Rows past the end read the last one; nobody looks at the result.
        const int row = min(from + 8 * i + lane / 4, rows - 1);
        fields[i] = Weight::fields(data, (long long)rows * blocks, (long long)row * blocks);
    }

    follows(codes, scales);
    const Rows x = {codes + 32 * start + lane, (const uint4*)(scales + 8 * start) + q, steps};

    float sums[LINEAR_GROUPS][LINEAR_CHUNKS][4] = {};
    const int tiles = cols / LINEAR_TILE;
    for (int tile = warp; tile < tiles; tile += LINEAR_AHEAD * LINEAR_WARPS) {
        Pair<Weight> w[LINEAR_AHEAD][LINEAR_GROUPS];
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i) {
            if (tile + i * LINEAR_WARPS >= tiles) break;
#pragma unroll
            for (int group = 0; group < LINEAR_GROUPS; ++group) {
                w[i][group].a.start(fields[2 * group], tile + i * LINEAR_WARPS, q);
                w[i][group].b.start(fields[2 * group + 1], tile + i * LINEAR_WARPS, q);
            }
        }
#pragma unroll
        for (int i = 0; i < LINEAR_AHEAD; ++i) {
            if (tile + i * LINEAR_WARPS >= tiles) break;
            add_tile(sums, w[i], x, tile + i * LINEAR_WARPS, q);
        }
    }

    __shared__ float parts[LINEAR_WARPS][8 * LINEAR_CHUNKS][16];
#pragma unroll
    for (int group = 0; group < LINEAR_GROUPS; ++group) {
        if (group > 0) __syncthreads();
#pragma unroll
        for (int chunk = 0; chunk < LINEAR_CHUNKS; ++chunk)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                parts[warp][8 * chunk + 2 * q + (i & 1)][lane / 4 + 8 * (i >> 1)] = sums[group][chunk][i];
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * LINEAR_CHUNKS * 16; i += 32 * LINEAR_WARPS) {
            const int r = before + i / 16, at = from + 16 * group + i % 16;
            if (r >= n || at >= rows) continue;
            float sum = 0.0f;
            for (int w = 0; w < LINEAR_WARPS; ++w) sum += parts[w][i / 16][i % 16];
            y[(long long)r * rows + at] = sum;
        }
    }
}
