// Tiles of codes to tiles of halves, in the space of the codes: what prefill.cu multiplies. A warp for a slice of a tile.
//
// A lane writes what it reads: codes of every type lie in groups of eight, and group n of a lane is its n-th 16 bytes of the
// f16 tile (attend_types.cuh). A value is level times norm, or code times scale, in float32 and rounded once; values above
// what a half holds become the largest one, as they do when f16 is stored.
//
//   LIFT_BITS     of a code                        LIFT_LEVELS   codes are indices of levels, with a norm for each cell
//   LIFT_VALUES   tiles of V, else of K            and slice; else there is a scale for 32 dims
//   LIFT_WIDTH    dims of a slice                  LIFT_SLICES   of a head

#include "half.cuh"
#include "tile_words.cuh"

constexpr int WIDTH = LIFT_WIDTH, GROUPS = WIDTH / 8, WARPS = 4, SCALES = LIFT_LEVELS ? 1 : WIDTH / 32;
constexpr int CODE_BYTES = WIDTH * 4 * LIFT_BITS, SLICE_BYTES = CODE_BYTES + 64 * SCALES, HALF_BYTES = WIDTH * 64;

// Code i of a lane's group n.
__device__ __forceinline__ int code_of(const u32* words, int n, int i, int lane) {
    if constexpr (LIFT_BITS == 8) return (int)(signed char)(words[word_at(2 * GROUPS, 2 * n + i / 4, lane)] >> i % 4 * 8);
    // Nibbles of scalar types are in an order of their own: even places, then odd ones.
    if constexpr (LIFT_BITS == 4 && !LIFT_LEVELS) return (int)(words[word_at(GROUPS, n, lane)] >> (i % 4 * 8 + i / 4 * 4) & 15) - 8;
    if constexpr (LIFT_BITS == 4) return words[word_at(GROUPS, n, lane)] >> 4 * i & 15;
    const int two = words[word_at(GROUPS / 2, n / 2, lane)] >> (4 * i + n % 2 * 2) & 3;
    if constexpr (LIFT_BITS == 2) return two;
    return two | (words[GROUPS / 2 * 32 + word_at(GROUPS / 4, n / 4, lane)] >> (4 * i + n % 4) & 1) << 2;
}

__device__ __forceinline__ float as_half(float x) { return x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x; }

// Tiles of n blocks, `blocks` says which, to blocks 0 to n - 1 of `to`; tiles: of a block. levels: 16 at most.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
lift(u8* to, const u8* from, const int* blocks, int n, int tiles, long long to_head, long long from_block, long long from_head,
     const float* levels) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, number = blockIdx.x * WARPS + threadIdx.x / 32;
    __shared__ float table[16];
    if (LIFT_LEVELS && threadIdx.x < 1 << LIFT_BITS) table[threadIdx.x] = levels[threadIdx.x];
    __syncthreads();
    if (number >= n * tiles * LIFT_SLICES) return;
    const int block = blocks[number / (tiles * LIFT_SLICES)], part = number % (tiles * LIFT_SLICES);
    const u8* source = from + blockIdx.y * from_head + block * from_block + part * SLICE_BYTES;
    const u32* words = (const u32*)source;
    const u16* scales = (const u16*)(source + CODE_BYTES);
    uint4* result = (uint4*)(to + blockIdx.y * to_head + (long long)number * HALF_BYTES) + lane;
#pragma unroll 4
    for (int n = 0; n < GROUPS; ++n) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Of K a group is eight dims of cell 8 (n % 4) + g, of V a dim of cells 2 t, 2 t + 1 (+ 0, 8, 16, 24).
            const int cell = LIFT_VALUES ? (2 * t + i % 2) * 4 + i / 2 : 4 * g + n % 4;
            const float scale = f16_to_f32(scales[(LIFT_LEVELS ? 0 : n / 4 * 32) + cell]);
            const int code = code_of(words, n, i, lane);
            x[i] = as_half((LIFT_LEVELS ? table[code] : (float)code) * scale);
        }
        result[32 * n] = {f32_to_f16x2(x[0], x[1]), f32_to_f16x2(x[2], x[3]), f32_to_f16x2(x[4], x[5]), f32_to_f16x2(x[6], x[7])};
    }
}
