// 16-byte loads for the fragments of `mma`, in which lane q of four (a quad) holds word q of every 16 values.
//
// A quad reads 64 bytes side by side, 16 a lane; then words change hands so that lane q has word q of each of the four
// parts: a transposition in four exchanges. Started first and finished later, so that loads overlap with work.

#include "memory.cuh"
#include "warp.cuh"

// Words of the part that this lane reads: part q of the 64 bytes at `at`.
__device__ __forceinline__ uint4 quad_start(const void* at, int q) {
    return stream16((const unsigned char*)at + 16 * q);
}

// Word q of parts 0, 1, 2 and 3. All lanes of the warp take part.
__device__ __forceinline__ uint4 quad_finish(uint4 v, int q) {
    const bool odd = q & 1, upper = q & 2;
    // Pairs of lanes: words 1 and 3 of the even one for words 0 and 2 of the odd one.
    const unsigned a = __shfl_xor_sync(WARP_ALL, odd ? v.x : v.y, 1), b = __shfl_xor_sync(WARP_ALL, odd ? v.z : v.w, 1);
    if (odd) v = {a, v.y, b, v.w};
    else v = {v.x, a, v.z, b};
    // Lanes two apart: words 2 and 3 for words 0 and 1.
    const unsigned c = __shfl_xor_sync(WARP_ALL, upper ? v.x : v.z, 2), d = __shfl_xor_sync(WARP_ALL, upper ? v.y : v.w, 2);
    if (upper) return {c, d, v.z, v.w};
    return {v.x, v.y, c, d};
}
