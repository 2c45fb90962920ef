// Codes of a whole number of bits to halves (lift.cuh). A lane writes what it reads: codes of every type lie in groups of
// eight, and group n of a lane is its n-th 16 bytes of the f16 tile.

#include "lift.cuh"

constexpr int GROUPS = WIDTH / 8;

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

// levels: 2^LIFT_BITS, if there are any.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
lift(u8* to, const u8* from, const int* blocks, int n, int tiles, long long to_head, long long from_block, long long from_head,
     const float* levels) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __shared__ float table[16];
    if (LIFT_LEVELS && threadIdx.x < 1 << LIFT_BITS) table[threadIdx.x] = levels[threadIdx.x];
    __syncthreads();
    const Lift job = {to, from, blocks, n, tiles, to_head, from_block, from_head};
    if (job.beyond()) return;
    const u8* slice = job.slice(CODE_BYTES + 64 * SCALES);
    const u32* words = (const u32*)slice;
    const u16* scales = (const u16*)(slice + CODE_BYTES);
    uint4* result = job.result() + lane;
#pragma unroll 4
    for (int n = 0; n < GROUPS; ++n) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Of K a group is eight dims of cell 8 (n % 4) + g, of V a dim of cells 2 t, 2 t + 1 (+ 0, 8, 16, 24).
            const int cell = LIFT_VALUES ? (2 * t + i % 2) * 4 + i / 2 : 4 * g + n % 4;
            const float scale = f16_to_f32(scales[(LIFT_LEVELS ? 0 : n / 4 * 32) + cell]);
            const int code = code_of(words, n, i, lane);
            x[i] = (LIFT_LEVELS ? table[code] : (float)code) * scale;
        }
        result[32 * n] = eight_halves(x);
    }
}
