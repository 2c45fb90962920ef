// What a vector will be coded with, asked for at once: read one after the other where it is needed, each of these small
// tables would wait for memory by itself, for weights have passed through the caches since the layer before.

#include "kv_form.cuh"
#include "memory.cuh"

// `bytes` from `at` on, or nothing; the lanes of a warp share the lines.
__device__ __forceinline__ void soon(const void* at, int bytes, int lane) {
    if (at)
        for (int i = 128 * lane; i < bytes; i += 128 * 32) touch((const u8*)at + i);
}

// Signs of the rotation, and the first numbers: factors, thresholds and levels.
__device__ __forceinline__ void tables_soon(const Tables& t, const Form& f, int lane) {
    soon(t.signs, 8 * f.turn, lane);
    soon(t.numbers, 160, lane);
}
