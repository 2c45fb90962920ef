// Tiles of codes to tiles of halves, in the space of the codes: what prefill.cu multiplies. A warp for a slice of a tile.
//
// A value is level times norm, or code times scale, in float32 and rounded once; values above what a half holds become the
// largest one, as they do when f16 is stored. Results lie as attend_types.cuh says.
//
//   LIFT_BITS     of a code                        LIFT_LEVELS   codes are indices of levels, with a norm for each cell
//   LIFT_VALUES   tiles of V, else of K            and slice; else there is a scale for 32 dims
//   LIFT_WIDTH    dims of a slice                  LIFT_SLICES   of a head

#include "half.cuh"
#include "eight_halves.cuh"
#include "tile_words.cuh"

constexpr int WIDTH = LIFT_WIDTH, WARPS = 4, SCALES = LIFT_LEVELS ? 1 : WIDTH / 32, HALF_BYTES = WIDTH * 64;
constexpr int CODE_BYTES = WIDTH * 4 * LIFT_BITS;

// Tiles of n blocks, `blocks` says which, to blocks 0 to n - 1 of `to`; tiles: of a block.
struct Lift {
    u8* to;
    const u8* from;
    const int* blocks;
    int n, tiles;
    long long to_head, from_block, from_head;

    __device__ __forceinline__ int number() const { return blockIdx.x * WARPS + threadIdx.x / 32; }
    __device__ __forceinline__ bool beyond() const { return number() >= n * tiles * LIFT_SLICES; }
    // The warp's slice, of so many bytes, and its result.
    __device__ __forceinline__ const u8* slice(int bytes) const {
        const int each = tiles * LIFT_SLICES, block = blocks[number() / each];
        return from + blockIdx.y * from_head + block * from_block + number() % each * bytes;
    }
    __device__ __forceinline__ uint4* result() const { return (uint4*)(to + blockIdx.y * to_head + (long long)number() * HALF_BYTES); }
};
