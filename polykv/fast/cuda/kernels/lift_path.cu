// Trellis types to halves (lift.cuh). A lane has runs of dims as strings of bits (attend_trellis.cuh says which): of K of its
// four cells, of V of its eight. The state of a value are its own bits and the six before them; those before a run are the
// last ones of the lane that has the dims before it, or of the byte of its cell behind the norms.

#include "lift.cuh"

constexpr int RUNS = LIFT_VALUES ? 8 : 4, COUNT = WIDTH / RUNS, SPAN = LIFT_BITS * COUNT, WORDS = WIDTH * LIFT_BITS / 32;
constexpr int STATES = 64 << LIFT_BITS;

// 32 bits of a lane from `bit` on, as far as it has them.
__device__ __forceinline__ u32 bits_from(const u32* words, int bit, int lane) {
    const u32 low = words[word_at(WORDS, bit / 32, lane)];
    if (bit % 32 == 0) return low;
    return low >> bit % 32 | words[word_at(WORDS, min(bit / 32 + 1, WORDS - 1), lane)] << (32 - bit % 32);
}

// The state of value a of a run; before: the six bits before the run.
__device__ __forceinline__ int state_of(const u32* words, int run, int a, u32 before, int lane) {
    const int at = SPAN * run + LIFT_BITS * a;
    const u32 bits = LIFT_BITS * a < 6 ? (bits_from(words, SPAN * run, lane) << 6 | before) >> LIFT_BITS * a : bits_from(words, at - 6, lane);
    return bits & (STATES - 1);
}

// levels: of every state.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
lift(u8* to, const u8* from, const int* blocks, int n, int tiles, long long to_head, long long from_block, long long from_head,
     const u8* means, long long mean_block, long long mean_head, const float* levels) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __shared__ float table[STATES];
    for (int i = threadIdx.x; i < STATES; i += 32 * WARPS) table[i] = levels[i];
    __syncthreads();
    const Lift job = {to, from, blocks, n, tiles, to_head, from_block, from_head, means, mean_block, mean_head};
    if (job.beyond()) return;
    const u8* slice = job.slice(CODE_BYTES + 64 + 32);
    const u32* words = (const u32*)slice;
    const u16* norms = (const u16*)(slice + CODE_BYTES);
    const u8* first = slice + CODE_BYTES + 64;
    const u8* mean = LIFT_MEANS ? job.mean() : slice;
    uint4* result = job.result();
    u32 before[RUNS];
    float norm[RUNS];
#pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        // Cells 8 r + g of K, 8 (r / 2) + 2 t + r % 2 of V.
        norm[r] = f16_to_f32(norms[LIFT_VALUES ? (2 * t + r % 2) * 4 + r / 2 : 4 * g + r]);
        const bool inside = LIFT_VALUES ? g > 0 : t > 0;
        const u32 byte = first[LIFT_VALUES ? 8 * t + r : 4 * g + r] >> 2;
        before[r] = inside ? bits_from(words, SPAN * (r + 1) - 6, lane - (LIFT_VALUES ? 4 : 1)) & 63 : byte;
    }
    if constexpr (LIFT_VALUES) {
        // Dim COUNT g + a of all eight cells.
#pragma unroll 4
        for (int a = 0; a < COUNT; ++a) {
            const int d = COUNT * g + a;
            float x[8];
#pragma unroll
            for (int r = 0; r < RUNS; ++r) x[r] = table[state_of(words, r, a, before[r], lane)] * norm[r];
            result[d / 8 * 32 + d % 8 * 4 + t] = eight_halves(x);
        }
    } else {
        // Eight dims of a cell: octet number COUNT / 8 t + o of the slice.
#pragma unroll
        for (int r = 0; r < RUNS; ++r)
#pragma unroll
            for (int o = 0; o < COUNT / 8; ++o) {
                const int octet = COUNT / 8 * t + o;
                float x[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    x[i] = table[state_of(words, r, 8 * o + i, before[r], lane)] * norm[r];
                    if (LIFT_MEANS) x[i] += mean_of(mean, 8 * octet + i);
                }
                result[(octet / 4 * 4 + r) * 32 + 4 * g + octet % 4] = eight_halves(x);
            }
    }
}
