// Storage of K and V: vectors into cells, cells into vectors, and both to and from the bytes of files. A warp a vector.
//
// Defines: KV_TYPE, a type of kv_types.cuh. All entries of a type are one program: they are small and share most of it.
//
// Cells are given as blocks [n] and offsets [n], or as all `cells` cells of blocks [n] in order. A block of one head is
// tile after tile; blocks are `block_bytes` apart and heads `head_bytes`. Rows whose block is negative are left out.

#include "kv_types.cuh"
#include "kv_tile.cuh"
#include "kv_bytes.cuh"
#include "kv_prepare.cuh"

#define KV_WARPS 4
#define KV_BOUNDS __launch_bounds__(32 * KV_WARPS, 8)
#define LANE (threadIdx.x % 32), 32

typedef KV_TYPE Type;

extern __shared__ float room[];

// The vector that this warp works on.
__device__ __forceinline__ int number() { return blockIdx.x * KV_WARPS + threadIdx.x / 32; }

__device__ __forceinline__ Vector mine(const Form& f) {
    return Vector((u8*)room + threadIdx.x / 32 * Vector::bytes(f.room), f.room);
}

struct Cells {
    u8* data;
    long long block_bytes, head_bytes;
    __device__ __forceinline__ u8* tile(const Form& f, int head, int block, int cell) const {
        return data + head * head_bytes + block * block_bytes + (long long)(cell / 32) * f.slices * f.slice_bytes;
    }
};

__device__ __forceinline__ void load(Vector& v, const Form& f, const float* x) {
    for (int i = threadIdx.x % 32; i < f.resident; i += 32) v.x[i] = i < f.dim ? x[i] : 0.0f;
    __syncwarp();
}

__device__ __forceinline__ void store(float* y, const Vector& v, const Form& f) {
    __syncwarp();
    for (int i = threadIdx.x % 32; i < f.dim; i += 32) y[i] = v.x[i];
}

// x [n, heads, dim] into the cells, rows `pitch` floats apart; what comes before it is coded is in kv_prepare.cuh, angles
// [n, half].
extern "C" __global__ void KV_BOUNDS
kv_append(u8* data, long long block_bytes, long long head_bytes, const Form* form, const float* signs,
          const signed char* core, const float* numbers, const float* x, const int* blocks, const int* offsets, int n,
          int heads, int pitch, const float* bias, const float* norm, double eps, const float* cosines, const float* sines,
          int half, int interleaved, const float* factors) {
    const int row = number() / heads, head = number() % heads;
    if (row >= n) return;
    // All that does not depend on the vector is asked for at once.
    const int block = blocks[row], cell = offsets[row];
    const Form f = *form;
    if (block < 0) return;
    Vector v = mine(f);
    load(v, f, x + (long long)row * pitch + head * f.dim);
    const long long angle = (long long)row * half;
    const Steps steps = {bias, norm, factors, cosines ? cosines + angle : cosines, sines + angle, eps, half, interleaved};
    prepare(v, f.dim, head, steps, LANE);
    Type::encode(v, f, {signs, core, numbers}, LANE);
    tile_put<Type>(Cells{data, block_bytes, head_bytes}.tile(f, head, block, cell), v, f, cell % 32, LANE);
}

// y [n, cells, heads, dim] of whole blocks.
extern "C" __global__ void KV_BOUNDS
kv_read(u8* data, long long block_bytes, long long head_bytes, const Form* form, const float* signs,
        const signed char* core, const float* numbers, float* y, const int* blocks, int n, int cells, int heads) {
    const int head = number() % heads, cell = number() / heads % cells, i = number() / heads / cells;
    if (i >= n) return;
    const Form f = *form;
    const Tables t = {signs, core, numbers};
    Vector v = mine(f);
    tile_get<Type>(v, Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), f, cell % 32, LANE);
    Type::decode(v, f, t, LANE);
    leave(v, f, t, LANE);
    store(y + (long long)number() * f.dim, v, f);
}

// Packed bytes [n, cells, heads, vector_bytes] of whole blocks, and back.
extern "C" __global__ void KV_BOUNDS
kv_pack(u8* data, long long block_bytes, long long head_bytes, const Form* form, u8* bytes,
        const int* blocks, int n, int cells, int heads) {
    const int head = number() % heads, cell = number() / heads % cells, i = number() / heads / cells;
    if (i >= n) return;
    const Form f = *form;
    Vector v = mine(f);
    tile_get<Type>(v, Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), f, cell % 32, LANE);
    bytes_put<Type>(bytes + (long long)number() * f.vector_bytes, v, f, LANE);
}

extern "C" __global__ void KV_BOUNDS
kv_unpack(u8* data, long long block_bytes, long long head_bytes, const Form* form, const u8* bytes,
          const int* blocks, int n, int cells, int heads) {
    const int head = number() % heads, cell = number() / heads % cells, i = number() / heads / cells;
    if (i >= n) return;
    const Form f = *form;
    Vector v = mine(f);
    bytes_get<Type>(v, bytes + (long long)number() * f.vector_bytes, f, LANE);
    tile_put<Type>(Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), v, f, cell % 32, LANE);
}

// n vectors as bytes, and back.
extern "C" __global__ void KV_BOUNDS
kv_encode(u8* bytes, const Form* form, const float* signs, const signed char* core, const float* numbers, const float* x, int n) {
    if (number() >= n) return;
    const Form f = *form;
    Vector v = mine(f);
    load(v, f, x + (long long)number() * f.dim);
    Type::encode(v, f, {signs, core, numbers}, LANE);
    bytes_put<Type>(bytes + (long long)number() * f.vector_bytes, v, f, LANE);
}

extern "C" __global__ void KV_BOUNDS
kv_decode(float* y, const Form* form, const float* signs, const signed char* core, const float* numbers, const u8* bytes, int n) {
    if (number() >= n) return;
    const Form f = *form;
    const Tables t = {signs, core, numbers};
    Vector v = mine(f);
    bytes_get<Type>(v, bytes + (long long)number() * f.vector_bytes, f, LANE);
    Type::decode(v, f, t, LANE);
    leave(v, f, t, LANE);
    store(y + (long long)number() * f.dim, v, f);
}
