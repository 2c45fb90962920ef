// Codes of a whole number of bits to halves (lift.cuh). A lane writes what it reads: codes of every type lie in groups of
// eight, and group n of a lane is its n-th 16 bytes of the f16 tile.

#include "lift.cuh"

constexpr int GROUPS = WIDTH / 8;

// Code i of a lane's group n.
__device__ __forceinline__ int code_of(const u32* words, int n, int i, int lane) {
    if constexpr (LIFT_BITS == 16) return words[word_at(4 * GROUPS, 4 * n + i / 2, lane)] >> i % 2 * 16 & 0xFFFF;
    if constexpr (LIFT_BITS == 8) return words[word_at(2 * GROUPS, 2 * n + i / 4, lane)] >> i % 4 * 8 & 255;
    if constexpr (LIFT_BITS == 4 && LIFT_LEVELS) return words[word_at(GROUPS, n, lane)] >> 4 * i & 15;
    if constexpr (LIFT_BITS >= 4) {
        // Nibbles of scalar types are in an order of their own: even places, then odd ones; so are their upper bits.
        const int place = i % 4 * 8 + i / 4 * 4, low = words[word_at(GROUPS, n, lane)] >> place & 15;
        const u32* upper = words + 32 * GROUPS;
        if constexpr (LIFT_BITS == 4) return low;
        if constexpr (LIFT_BITS == 5) return low | (upper[word_at(GROUPS / 4, n / 4, lane)] >> (place + n % 4) & 1) << 4;
        return low | (upper[word_at(GROUPS / 2, n / 2, lane)] >> (place + n % 2 * 2) & 3) << 4;
    }
    const int two = words[word_at(GROUPS / 2, n / 2, lane)] >> (4 * i + n % 2 * 2) & 3;
    if constexpr (LIFT_BITS == 2) return two;
    return two | (words[GROUPS / 2 * 32 + word_at(GROUPS / 4, n / 4, lane)] >> (4 * i + n % 4) & 1) << 2;
}

// What a code stands for, in units of the norm or scale.
__device__ __forceinline__ float value_of(int code, const float* table) {
    if constexpr (LIFT_LEVELS) return table[code];
    if constexpr (LIFT_BITS == 16) return LIFT_BFLOAT ? bf16_to_f32((u16)code) : f16_to_f32((u16)code);
    if constexpr (LIFT_BITS == 8) return (float)(signed char)code;
    return (float)(code - LIFT_ZERO);
}

// levels: 2^LIFT_BITS, if there are any.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
lift(u8* to, const u8* from, const int* blocks, int n, int tiles, long long to_head, long long from_block, long long from_head,
     const u8* means, long long mean_block, long long mean_head, const float* levels) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __shared__ float table[LIFT_LEVELS ? 1 << LIFT_BITS : 1];
    if (LIFT_LEVELS)
        for (int i = threadIdx.x; i < 1 << LIFT_BITS; i += 32 * WARPS) table[i] = levels[i];
    __syncthreads();
    const Lift job = {to, from, blocks, n, tiles, to_head, from_block, from_head, means, mean_block, mean_head};
    if (job.beyond()) return;
    const u8* slice = job.slice(CODE_BYTES + SCALE_BYTES);
    const u8* mean = LIFT_MEANS ? job.mean() : slice;
    const u32* words = (const u32*)slice;
    const u16* scales = (const u16*)(slice + CODE_BYTES);
    uint4* result = job.result() + lane;
#pragma unroll 4
    for (int n = 0; n < GROUPS; ++n) {
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Of K a group is eight dims of cell 8 (n % 4) + g, of V a dim of cells 2 t, 2 t + 1 (+ 0, 8, 16, 24).
            const int cell = LIFT_VALUES ? (2 * t + i % 2) * 4 + i / 2 : 4 * g + n % 4, block = LIFT_SCALES ? n / 4 * 32 : 0;
            x[i] = value_of(code_of(words, n, i, lane), table);
            if (LIFT_NORMS || LIFT_SCALES) x[i] *= f16_to_f32(scales[block + cell]);
            if (LIFT_MINIMA) x[i] += f16_to_f32(scales[32 * BLOCKS + block + cell]);
            if (LIFT_MEANS) x[i] += mean_of(mean, n / 4 * 32 + 8 * t + i);
        }
        result[32 * n] = eight_halves(x);
    }
}
