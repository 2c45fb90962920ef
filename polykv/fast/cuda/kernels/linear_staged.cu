// y = x W^T for 2 to LINEAR_ROWS rows x and packed W whose rows are multiples of 256 values, on tensor cores: W and x come
// through shared memory.
//
// Defines: WEIGHT_TYPE, LINEAR_ROWS (8, 16, 24, 32), LINEAR_BANDS, LINEAR_PARTS, LINEAR_TILES, LINEAR_AHEAD, LINEAR_TURNS,
// LINEAR_SPLIT: how a matrix is cut, see linear_staged.py.
// A block has bands of 32 rows of W and, of LINEAR_SPLIT blocks of a cluster, its share of the columns. Warp w has band
// w % LINEAR_BANDS and, at each stage, LINEAR_TILES tiles of 128 columns, those of part w / LINEAR_BANDS. It copies its own W,
// LINEAR_AHEAD stages at a time, and waits for nobody with it. All threads copy x, in turns: warps may be apart by stages, not
// by more than LINEAR_TURNS. At the end sums of parts, then of blocks, are added in their order, which depends on the shape of
// W alone: a row of y is the same for any number of rows.
//
// 16 rows of W (operand a of `mma`) times 8 rows of x are sums over 32 columns: integers, which become floats by what they
// are added to, 1.5 * 2^23. Scales of W have so few bits that the same times a scale is exact, so one fma
// takes it off and scales: scale (sum + magic) - scale magic. A second one multiplies by the scale of x and adds.

#include "follow.cuh"
#include "staged.cuh"
#include "turns.cuh"
#include "weight_type.cuh"
#if LINEAR_SPLIT > 1
#include "cluster.cuh"
#endif

#define LINEAR_MAGIC 0x4B400000

typedef Staged<Weight> Tile;

constexpr int TILE = 128, CHUNKS = LINEAR_ROWS / 8, WARPS = LINEAR_BANDS * LINEAR_PARTS, THREADS = 32 * WARPS;
constexpr int HEIGHT = STAGED_ROWS * LINEAR_BANDS, PITCH = HEIGHT + 4;
// Bytes of a tile of x: its codes, a number for each step of each row, of which there are one or two.
constexpr int CODES = TILE * LINEAR_ROWS, NUMBERS = 4 * 4 * LINEAR_ROWS, X_TILE = CODES + (1 + Tile::MINIMUM) * NUMBERS;
constexpr int ACROSS = LINEAR_PARTS * LINEAR_TILES, X_STAGE = ACROSS * X_TILE, TURNS = LINEAR_TURNS, W_STAGE = STAGED_ROWS * Tile::PITCH;

extern __shared__ __align__(1024) uint4 memory[];

// x goes to shared memory in turns: all threads copy some of it. Codes become [step][pair of chunks][lane] of 16 bytes (an odd
// last chunk has 8), numbers [step][q][chunk] of those of columns 2 q and 2 q + 1, sums behind scales.
struct Rows {
    static constexpr int CODES_EACH = (ACROSS * CODES / 8 + THREADS - 1) / THREADS, SCALES_EACH = (ACROSS * NUMBERS / 4 + THREADS - 1) / THREADS;
    const uint2* codes;
    const uint2* scales;
    u32 codes_to[CODES_EACH], scales_to[SCALES_EACH];

    __device__ __forceinline__ Rows(const uint2* codes, const uint2* scales) : codes(codes + threadIdx.x), scales(scales + threadIdx.x) {
#pragma unroll
        for (int i = 0; i < CODES_EACH; ++i) {
            const int all = threadIdx.x + i * THREADS, at = all % (CODES / 8), chunk = at / 128, step = at / 32 % 4, lane = at % 32;
            codes_to[i] = all / (CODES / 8) * X_TILE + step * (32 * LINEAR_ROWS) + chunk / 2 * 512 + chunk % 2 * 8 + lane * (chunk / 2 < CHUNKS / 2 ? 16 : 8);
        }
#pragma unroll
        for (int i = 0; i < SCALES_EACH; ++i) {
            const int all = threadIdx.x + i * THREADS, at = all % (NUMBERS / 4), chunk = at / 32, step = at / 8 % 4, row = at % 8;
            scales_to[i] = all / (NUMBERS / 4) * X_TILE + CODES + 4 * (step * LINEAR_ROWS + row / 2 * (2 * CHUNKS) + 2 * chunk + row % 2);
        }
    }
    __device__ __forceinline__ void copy(u32 stage, u32 full, int tile, int end) const {
        const int tiles = min(ACROSS, end - tile);
#pragma unroll
        for (int i = 0; i < CODES_EACH; ++i)
            if ((int)threadIdx.x + i * THREADS < tiles * (CODES / 8)) copy_async<8>(stage + codes_to[i], codes + tile * (CODES / 8) + i * THREADS);
#pragma unroll
        for (int i = 0; i < SCALES_EACH; ++i)
            if ((int)threadIdx.x + i * THREADS < tiles * (NUMBERS / 4)) {
                const uint2* from = scales + tile * (NUMBERS / 4) + i * THREADS;
                copy_async<4>(stage + scales_to[i], &from->x);
                if (Tile::MINIMUM) copy_async<4>(stage + scales_to[i] + NUMBERS, &from->y);
            }
        turn_arrive_copied(full);
    }
};

// Two numbers for each chunk of a step.
__device__ __forceinline__ void read_numbers(float (&to)[CHUNKS][2], u32 at) {
    if constexpr (CHUNKS % 2 == 0)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
            const uint4 v = shared16(at + 8 * chunk);
            to[chunk][0] = __uint_as_float(v.x), to[chunk][1] = __uint_as_float(v.y);
            to[chunk + 1][0] = __uint_as_float(v.z), to[chunk + 1][1] = __uint_as_float(v.w);
        }
    else
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const uint2 v = shared8(at + 8 * chunk);
            to[chunk][0] = __uint_as_float(v.x), to[chunk][1] = __uint_as_float(v.y);
        }
}

// Codes, scales, and scales times sums of codes of a step of x.
struct Step {
    uint2 codes[CHUNKS];
    float d[CHUNKS][2], sums[CHUNKS][2];
    __device__ __forceinline__ void read(u32 x, int step, int lane) {
        const u32 at = x + step * (32 * LINEAR_ROWS), numbers = x + CODES + 4 * step * LINEAR_ROWS + lane % 4 * (8 * CHUNKS);
#pragma unroll
        for (int chunk = 0; chunk + 1 < CHUNKS; chunk += 2) {
            const uint4 v = shared16(at + chunk * 256 + 16 * lane);
            codes[chunk] = {v.x, v.y}, codes[chunk + 1] = {v.z, v.w};
        }
        if (CHUNKS % 2) codes[CHUNKS - 1] = shared8(at + (CHUNKS - 1) * 256 + 8 * lane);
        read_numbers(d, numbers);
        if (Tile::MINIMUM) {
            read_numbers(sums, numbers + NUMBERS);
#pragma unroll
            for (int i = 0; i < 2 * CHUNKS; ++i) sums[i / 2][i % 2] = d[i / 2][i % 2] * (float)two_times(__float_as_uint(sums[i / 2][i % 2]), 1, 0);
        }
    }
};

// What makes a scaled float of a sum, and the magic number in it.
struct Scaled {
    float by, less;
    __device__ __forceinline__ Scaled() {}
    __device__ __forceinline__ explicit Scaled(float scale) : by(scale), less(-12582912.0f * scale) {}
    __device__ __forceinline__ float of(int c) const { return fmaf(__int_as_float(c), by, less); }
};

// Tile `which` of a stage of W, tile `tile` of its rows, times one of x. odd: whether the numbers of blocks of this lane's
// rows are.
__device__ __forceinline__ void add_tile(float (&sums)[PAIRS][CHUNKS][4], Tile& codes, u32 w, u32 x, int which, int tile, int odd, int lane) {
    float2 own[2 * PAIRS];
    int magic[4] = {LINEAR_MAGIC, LINEAR_MAGIC, LINEAR_MAGIC, LINEAR_MAGIC};
    for (int& m : magic) keep_in_register(m);
    const u32 row = w + lane / 4 * Tile::PITCH;
#pragma unroll
    for (int o = 0; o < 2 * PAIRS; ++o) own[o] = Tile::scales(row + 8 * o * Tile::PITCH, which, lane % 4, tile, odd);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        codes.read(w, which, h, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int step = Tile::step(h, i), from = lane / 4 * 4 + step;
            Step s;
            s.read(x, step, lane);
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                unsigned a[4];
                codes.words(a, p, h, i);
                Scaled first[2], second[2];
                float least[2];
                for (int o = 0; o < 2; ++o) {
                    first[o] = Scaled(__shfl_sync(~0u, own[2 * p + o].x, from));
                    if (Tile::HALVES) second[o] = Scaled(__shfl_sync(~0u, own[2 * p + o].y, from));
                    if (Tile::MINIMUM) least[o] = -__shfl_sync(~0u, own[2 * p + o].y, from);
                }
#pragma unroll
                for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                    int c[4], e[4];
                    if (Tile::HALVES) {
                        mma_s8_16_from(c, magic, a[0], a[1], s.codes[chunk].x);
                        mma_s8_16_from(e, magic, a[2], a[3], s.codes[chunk].y);
                    } else if (Tile::UNSIGNED) mma_u8_32_from(c, magic, a[0], a[1], a[2], a[3], s.codes[chunk]);
                    else mma_s8_32_from(c, magic, a[0], a[1], a[2], a[3], s.codes[chunk]);
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        float& sum = sums[p][chunk][k];
                        sum = fmaf(s.d[chunk][k & 1], first[k >> 1].of(c[k]), sum);
                        if (Tile::HALVES) sum = fmaf(s.d[chunk][k & 1], second[k >> 1].of(e[k]), sum);
                        if (Tile::MINIMUM) sum = fmaf(s.sums[chunk][k & 1], least[k >> 1], sum);
                    }
                }
            }
        }
    }
}

// Sums of all parts, and of all blocks of a cluster, to y. parts: LINEAR_PARTS times [LINEAR_ROWS][PITCH].
__device__ __forceinline__ void write_out(float* y, float* parts, const float (&sums)[PAIRS][CHUNKS][4], int band, int part, int lane, int n, int rows, int first_row, int rank) {
    constexpr int ALL = LINEAR_ROWS * PITCH, FOURS = HEIGHT / 4;
#pragma unroll
    for (int p = 0; p < PAIRS; ++p)
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int r = 8 * chunk + lane % 4 * 2 + (k & 1), at = STAGED_ROWS * band + 16 * p + lane / 4 + 8 * (k >> 1);
                parts[part * ALL + r * PITCH + at] = sums[p][chunk][k];
            }
    __syncthreads();
    auto added = [&](int r, int four) {
        float4* at = (float4*)(parts + r * PITCH + 4 * four);
        float4 v = *at;
#pragma unroll
        for (int i = 1; i < LINEAR_PARTS; ++i) {
            const float4 w = at[i * ALL / 4];
            v = {v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w};
        }
        return v;
    };
#if LINEAR_SPLIT > 1
    if (LINEAR_PARTS > 1)
        for (int i = threadIdx.x; i < LINEAR_ROWS * FOURS; i += THREADS) *(float4*)(parts + i / FOURS * PITCH + i % FOURS * 4) = added(i / FOURS, i % FOURS);
    cluster_meets();
    const u32 all = shared_address(parts);
    for (int i = threadIdx.x + rank * THREADS; i < n * FOURS; i += LINEAR_SPLIT * THREADS) {
        const int r = i / FOURS, four = i % FOURS;
        float4 v = of_block(all + 4 * (r * PITCH + 4 * four), 0);
#pragma unroll
        for (int b = 1; b < LINEAR_SPLIT; ++b) {
            const float4 w = of_block(all + 4 * (r * PITCH + 4 * four), b);
            v = {v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w};
        }
        *(float4*)(y + (long long)r * rows + first_row + 4 * four) = v;
    }
    // A block's shared memory stays until all have read it.
    cluster_meets();
#else
    for (int i = threadIdx.x; i < n * FOURS; i += THREADS) {
        const int r = i / FOURS, four = i % FOURS;
        *(float4*)(y + (long long)r * rows + first_row + 4 * four) = added(r, four);
    }
#endif
}

// codes, scales: x as quantize.cuh writes it for tiles; rows, a multiple of 4, at least HEIGHT.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if LINEAR_SPLIT > 1
    __cluster_dims__(LINEAR_SPLIT, 1, 1)
#endif
linear_staged(float* y, const unsigned char* data, const uint2* codes, const uint2* scales, int n, int rows, int cols) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, band = warp % LINEAR_BANDS, part = warp / LINEAR_BANDS;
    const int rank = blockIdx.x % LINEAR_SPLIT, tiles = cols / TILE;
    // The last block has rows of the one before it, too, if they are no multiple: both write the same.
    const int first_row = min((int)blockIdx.x / LINEAR_SPLIT * HEIGHT, rows - HEIGHT), own_row = first_row + STAGED_ROWS * band;
    const int first = tiles / SPAN * rank / LINEAR_SPLIT * SPAN, end = tiles / SPAN * (rank + 1) / LINEAR_SPLIT * SPAN;
    const int stages = (end - first + ACROSS - 1) / ACROSS, blocks = cols / Weight::VALUES;
    const u32 xs = shared_address(memory), ws = xs + TURNS * X_STAGE + warp * (LINEAR_AHEAD * W_STAGE);
    const u32 full = xs + TURNS * X_STAGE + WARPS * LINEAR_AHEAD * W_STAGE, empty = full + 8 * TURNS;
    Tile w(Weight::fields(data, (long long)rows * blocks, (long long)own_row * blocks), blocks, lane);
    const int own = first + part * LINEAR_TILES;
    for (int stage = 0; stage < LINEAR_AHEAD; ++stage) {
        const int tile = own + stage * ACROSS;
        if (tile < end) w.copy(ws + stage * W_STAGE, tile);
        copies_sent();
    }
    if (threadIdx.x < TURNS) {
        turn_init(full + 8 * threadIdx.x, THREADS);
        turn_init(empty + 8 * threadIdx.x, WARPS);
    }
    follows(codes, scales);
    __syncthreads();
    const Rows x(codes, scales);
    for (int stage = 0; stage < TURNS - 1 && stage < stages; ++stage) x.copy(xs + stage * X_STAGE, full + 8 * stage, first + stage * ACROSS, end);

    float sums[PAIRS][CHUNKS][4] = {};
    const int odd = (own_row + lane / 4) * blocks & 1;
    u32 slot = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
        const int turn = stage % TURNS;
        copies_but<LINEAR_AHEAD - 1>();
        __syncwarp();
        turn_wait(full + 8 * turn, stage / TURNS & 1);
        const int tile = own + stage * ACROSS;
        if (tile < end)
#pragma unroll
            for (int i = 0; i < LINEAR_TILES; ++i)
                add_tile(sums, w, ws + slot, xs + turn * X_STAGE + (part * LINEAR_TILES + i) * X_TILE, i, tile + i, (odd + ((tile + i) >> 1)) & 1, lane);
        // Not before all lanes have read it.
        __syncwarp();
        if (tile + LINEAR_AHEAD * ACROSS < end) w.copy(ws + slot, tile + LINEAR_AHEAD * ACROSS);
        copies_sent();
        if (lane == 0) turn_arrive(empty + 8 * turn);
        slot = slot + W_STAGE == LINEAR_AHEAD * W_STAGE ? 0 : slot + W_STAGE;
        const int next = stage + TURNS - 1, there = next % TURNS;
        if (next < stages) {
            if (stage > 0) turn_wait(empty + 8 * there, (next / TURNS - 1) & 1);
            x.copy(xs + there * X_STAGE, full + 8 * there, first + next * ACROSS, end);
        }
    }
    __syncthreads();
    write_out(y, (float*)memory, sums, band, part, lane, n, rows, first_row, rank);
}
