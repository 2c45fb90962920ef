// Tiles of codes to tiles of halves, in the space of the codes: what prefill.cu multiplies. A warp for a slice of a tile.
//
// A value is level times norm, or code times scale, in float32 and rounded once; values above what a half holds become the
// largest one, as they do when f16 is stored. Results lie as attend_types.cuh says.
//
//   LIFT_BITS     of a code                        LIFT_LEVELS   1: codes are indices of levels
//   LIFT_NORMS    1: a norm for each cell and slice LIFT_SCALES   1: a scale for 32 dims; LIFT_MINIMA: and a minimum
//   LIFT_ZERO     the code that stands for 0       LIFT_BFLOAT   1: codes are bfloat16, not float16
//   LIFT_VALUES   tiles of V, else of K            LIFT_MEANS    1: keys are less a mean (kv_mean.cuh)
//   LIFT_WIDTH    dims of a slice                  LIFT_SLICES   of a head

#include "half.cuh"
#include "eight_halves.cuh"
#include "tile_words.cuh"

constexpr int WIDTH = LIFT_WIDTH, WARPS = 4, BLOCKS = WIDTH / 32, HALF_BYTES = WIDTH * 64;
constexpr int CODE_BYTES = WIDTH * 4 * LIFT_BITS, SCALE_BYTES = 64 * (LIFT_NORMS + (LIFT_SCALES + LIFT_MINIMA) * BLOCKS);

// Tiles of n blocks, `blocks` says which, to blocks 0 to n - 1 of `to`; tiles: of a block; means: of centered keys.
struct Lift {
    u8* to;
    const u8* from;
    const int* blocks;
    int n, tiles;
    long long to_head, from_block, from_head;
    const u8* means;
    long long mean_block, mean_head;

    __device__ __forceinline__ int number() const { return blockIdx.x * WARPS + threadIdx.x / 32; }
    __device__ __forceinline__ bool beyond() const { return number() >= n * tiles * LIFT_SLICES; }
    // The warp's slice, of so many bytes, and its result.
    __device__ __forceinline__ const u8* slice(int bytes) const {
        const int each = tiles * LIFT_SLICES, block = blocks[number() / each];
        return from + blockIdx.y * from_head + block * from_block + number() % each * bytes;
    }
    // The mean of the slice, or nothing.
    __device__ __forceinline__ const u8* mean() const {
        const int block = blocks[number() / (tiles * LIFT_SLICES)];
        return means + blockIdx.y * mean_head + block * mean_block + number() % LIFT_SLICES * (WIDTH + 16);
    }
    __device__ __forceinline__ uint4* result() const { return (uint4*)(to + blockIdx.y * to_head + (long long)number() * HALF_BYTES); }
};

// Dim d of a mean.
__device__ __forceinline__ float mean_of(const u8* mean, int d) {
    return f16_to_f32(((const u16*)(mean + WIDTH))[d / 32]) * (float)(signed char)mean[d];
}
