// One vector of K or V on its way between floats, codes, tiles and bytes: a warp has it in shared memory.
//
// Every function does its part of the work as lane `lane` of `lanes` and meets the others where one reads what another
// wrote; there are no exchanges between registers. So one lane alone does the same thing, which is how tests run these
// functions on the CPU.

#include "half.cuh"

// Loops over the values of a vector stay short loops in programs for any sizes; where sizes are known to the compiler
// (KV_FIXED) a lane has several of them under way.
#ifdef KV_FIXED
#define KV_LOOP _Pragma("unroll 4")
#else
#define KV_LOOP _Pragma("unroll 1")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

// What polykv/fast/cuda/forms.py says about a codec at a head_dim, in this order.
struct Form {
    // Values of a vector: given, in the space of the codes, and with codes (in whole groups).
    int dim, stored, resident;
    // Values with one scale; values that are rotated together, 0 = none, and the order of the core of their matrix.
    int group, turn, core;
    // Tiles: dims of a slice, slices; 1 = in the order of V, 0 = of K; bytes of a slice.
    int width, slices, values, slice_bytes;
    // Bytes in files: of a group, where its codes begin, and those of the whole vector.
    int group_bytes, codes_at, vector_bytes;
    // Floats for which a warp has room, a multiple of 32; and bytes for the search for a path.
    int room, spare;
};

// Constants of a codec, and where they lie.
struct Tables {
    // Rotation: s1 and s2, [2, turn]; the core's matrix and its transpose, [2, core, core].
    const float* signs;
    const signed char* core;
    // ENCODE_SCALE, DECODE_SCALE: factors of the rotation; UNIT: of the levels; ALPHA: of norms. Then thresholds from
    // THRESHOLDS on, and levels, one more; of a trellis levels alone, one of every state.
    const float* numbers;
    enum { ENCODE_SCALE, DECODE_SCALE, UNIT, ALPHA, THRESHOLDS };
};

// x, y [room]: values, and room for what becomes of them; codes [room]; of every group: its scale as it is stored, its
// length or the inverse of its scale. spare: behind all that, the memory of a search.
struct Vector {
    float *x, *y, *measure;
    u16 *codes, *scales;
    u8* spare;

    __device__ __forceinline__ Vector(u8* memory, int room) {
        x = (float*)memory, y = x + room;
        // Codes are written eight bytes at a time.
        codes = (u16*)(y + room), measure = (float*)(codes + room), scales = (u16*)(measure + room / 32);
        spare = memory + bytes(room);
    }
    // Bytes of a vector with that room, in whole 16, so that the next one is aligned (forms.py says the same).
    __device__ __forceinline__ static int bytes(int room) { return 336 * (room / 32); }
};

// NaN stays what it is: fminf and fmaxf would hide it.
__device__ __forceinline__ float clamped(float x, float low, float high) {
    return x < low ? low : x > high ? high : x;
}
