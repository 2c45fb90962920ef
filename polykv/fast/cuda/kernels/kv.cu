// Storage of K and V: vectors into cells, cells into vectors, and both to and from the bytes of files. A warp a vector.
//
// Defines: KV_TYPE, a type of kv_types.cuh. All entries of a type are one program: they are small and share most of it.
//
// Cells are given as blocks [n] and offsets [n], or as all `cells` cells of blocks [n] in order. A block of one head is
// tile after tile; blocks are `block_bytes` apart and heads `head_bytes`. Rows whose block is negative are left out. means:
// of centered keys (kv_mean.cuh), or null.

#include "kv_warp.cuh"
#include "kv_bytes.cuh"
#include "kv_mean.cuh"

typedef KV_TYPE Type;

__device__ __forceinline__ void store(float* y, const Vector& v, const Form& f) {
    __syncwarp();
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < f.dim; i += 32) y[i] = v.x[i];
}

extern "C" __global__ void KV_NEW_BOUNDS(Type::PATH)
kv_append(u8* data, long long block_bytes, long long head_bytes, const Form* form, const float* signs,
          const signed char* core, const float* numbers, const float* x, int pitch, const float* bias, const float* factors,
          const int* blocks, const int* offsets, int n, int heads, const float* norm, double eps, const float* cosines,
          const float* sines, int half, int interleaved) {
    append<Type>({{data, block_bytes, head_bytes}, *form, {signs, core, numbers}, x, pitch, bias, factors},
                 {blocks, offsets, n, heads, norm, eps, cosines, sines, half, interleaved});
}

// y [n, cells, heads, dim] of whole blocks.
extern "C" __global__ void KV_BOUNDS
kv_read(u8* data, long long block_bytes, long long head_bytes, u8* means, long long mean_block, long long mean_head,
        const Form* form, const float* signs, const signed char* core, const float* numbers, float* y, const int* blocks, int n,
        int cells, int heads) {
    const int head = number() % heads, cell = number() / heads % cells, i = number() / heads / cells;
    if (i >= n) return;
    const Form f = *form;
    const Tables t = {signs, core, numbers};
    Vector v = mine(f);
    tile_get<Type>(v, Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), f, cell % 32, LANE);
    Type::decode(v, f, t, LANE);
    if (means) {
        const Mean mean = Means{means, mean_block, mean_head}.of(f, head, blocks[i]);
        __syncwarp();
        for (int d = threadIdx.x % 32; d < f.stored; d += 32) v.x[d] += mean.value(d);
    }
    leave(v, f, t, LANE);
    store(y + (long long)number() * f.dim, v, f);
}

// Packed bytes [n, rows, heads, vector_bytes] of whole blocks, and back: `cells` vectors, then rows of bytes of the mean.
extern "C" __global__ void KV_BOUNDS
kv_pack(u8* data, long long block_bytes, long long head_bytes, u8* means, long long mean_block, long long mean_head,
        const Form* form, u8* bytes, const int* blocks, int n, int cells, int rows, int heads) {
    const int head = number() % heads, cell = number() / heads % rows, i = number() / heads / rows;
    if (i >= n) return;
    const Form f = *form;
    if (cell >= cells) {
        const Mean mean = Means{means, mean_block, mean_head}.of(f, head, blocks[i]);
        for (int at = threadIdx.x % 32; at < f.vector_bytes; at += 32) {
            u8* byte = mean.in_file((cell - cells) * f.vector_bytes + at, f.stored);
            bytes[(long long)number() * f.vector_bytes + at] = byte ? *byte : (u8)0;
        }
        return;
    }
    Vector v = mine(f);
    tile_get<Type>(v, Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), f, cell % 32, LANE);
    bytes_put<Type>(bytes + (long long)number() * f.vector_bytes, v, f, LANE);
}

extern "C" __global__ void KV_BOUNDS
kv_unpack(u8* data, long long block_bytes, long long head_bytes, u8* means, long long mean_block, long long mean_head,
          const Form* form, const u8* bytes, const int* blocks, int n, int cells, int rows, int heads) {
    const int head = number() % heads, cell = number() / heads % rows, i = number() / heads / rows;
    if (i >= n) return;
    const Form f = *form;
    if (cell >= cells) {
        const Mean mean = Means{means, mean_block, mean_head}.of(f, head, blocks[i]);
        for (int at = threadIdx.x % 32; at < f.vector_bytes; at += 32) {
            u8* byte = mean.in_file((cell - cells) * f.vector_bytes + at, f.stored);
            if (byte) *byte = bytes[(long long)number() * f.vector_bytes + at];
        }
        return;
    }
    Vector v = mine(f);
    bytes_get<Type>(v, bytes + (long long)number() * f.vector_bytes, f, LANE);
    tile_put<Type>(Cells{data, block_bytes, head_bytes}.tile(f, head, blocks[i], cell), v, f, cell % 32, LANE);
}

// n vectors as bytes, and back.
extern "C" __global__ void KV_NEW_BOUNDS(Type::PATH)
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
