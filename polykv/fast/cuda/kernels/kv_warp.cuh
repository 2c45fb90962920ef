// A warp and its vector; and new vectors into cells.

#include "kv_types.cuh"
#include "kv_tile.cuh"
#include "kv_prepare.cuh"
#include "kv_soon.cuh"
#include "follow.cuh"

#define KV_WARPS 4
#define KV_BOUNDS __launch_bounds__(32 * KV_WARPS, 8)
// New vectors: a search for a path takes a few registers more, and still more where sizes are not known.
#ifdef KV_FIXED
#define KV_SEARCHES 7
#else
#define KV_SEARCHES 6
#endif
#define KV_NEW_BOUNDS(PATH) __launch_bounds__(32 * KV_WARPS, (PATH) ? KV_SEARCHES : 8)
#define LANE (threadIdx.x % 32), 32

extern __shared__ float room[];

// The vector that this warp works on.
__device__ __forceinline__ int number() { return blockIdx.x * KV_WARPS + threadIdx.x / 32; }

__device__ __forceinline__ Vector mine(const Form& f) {
    return Vector((u8*)room + threadIdx.x / 32 * (Vector::bytes(f.room) + f.spare), f.room);
}

struct Cells {
    u8* data;
    long long block_bytes, head_bytes;
    __device__ __forceinline__ u8* tile(const Form& f, int head, int block, int cell) const {
        return data + head * head_bytes + block * block_bytes + (long long)(cell / 32) * f.slices * f.slice_bytes;
    }
};

// Four values are under way at a time: for all that the compiler knows, what is stored could be what is read.
__device__ __forceinline__ void load(Vector& v, const Form& f, const float* x) {
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < f.resident; i += 128) {
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = i + 32 * j < f.dim ? x[i + 32 * j] : 0.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (i + 32 * j < f.resident) v.x[i + 32 * j] = four[j];
    }
    __syncwarp();
}

// New vectors of one side of a layer, [n, heads, dim], rows `pitch` floats apart, and where they go; bias and factors
// are steps of kv_prepare.cuh.
struct Side {
    Cells cells;
    const Form& form;
    Tables tables;
    const float* x;
    int pitch;
    const float *bias, *factors;
};

// The cells, and steps for K alone: the norm, and angles [n, half].
struct New {
    const int *blocks, *offsets;
    int n, heads;
    const float* norm;
    double eps;
    const float *cosines, *sines;
    int half, interleaved;
};

// The constants of a row's steps.
__device__ __forceinline__ void steps_soon(const Form& f, const Tables& t, const float* bias, const float* factors,
                                           const float* norm, const float* cosines, const float* sines, int half, int head) {
    const int lane = threadIdx.x % 32;
    tables_soon(t, f, lane);
    soon(cosines, 4 * half, lane), soon(sines, 4 * half, lane);
    soon(bias ? bias + head * f.dim : bias, 4 * f.dim, lane), soon(factors ? factors + head * f.dim : factors, 4 * f.dim, lane);
    soon(norm, 4 * f.dim, lane);
}

template <class T> __device__ __forceinline__ void append(const Side& s, const New& to) {
    const int row = number() / to.heads, head = number() % to.heads;
    if (row >= to.n) return;
    // All that does not depend on the vector is asked for at once.
    const int block = to.blocks[row], cell = to.offsets[row];
    const Form& f = s.form;
    if (block < 0) return;
    Vector v = mine(f);
    const long long angle = (long long)row * to.half;
    const float *cosines = to.cosines ? to.cosines + angle : to.cosines, *sines = to.sines ? to.sines + angle : to.sines;
    steps_soon(f, s.tables, s.bias, s.factors, to.norm, cosines, sines, to.half, head);
    if constexpr (T::PATH != 0) soon(T::levels(s.tables), 4 * (64 << T::BITS), threadIdx.x % 32);
    const float* x = s.x;
    follows(x);
    load(v, f, x + (long long)row * s.pitch + head * f.dim);
    prepare(v, f.dim, head, {s.bias, to.norm, s.factors, cosines, sines, to.eps, to.half, to.interleaved}, LANE);
    T::encode(v, f, s.tables, LANE);
    tile_put<T>(s.cells.tile(f, head, block, cell), v, f, cell % 32, LANE);
}
