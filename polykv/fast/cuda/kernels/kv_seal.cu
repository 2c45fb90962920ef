// Exact cells of complete units become codes (docs/CENTERED.md): the mean of each unit, then its cells, a warp a vector; and
// new vectors go to cells of centered codes.
//
// Defines: KV_TYPE of the codes, KV_EXACT of the exact cells (kv_types.cuh), which are not rotated.
//
// Unit i are `cells` cells of blocks exact[i * per], ..., of `size` cells each; coded[i] is the block that takes its codes.
// One that is negative is left out: it pads a captured graph.

#include "kv_warp.cuh"
#include "kv_mean.cuh"

typedef KV_TYPE Type;
typedef KV_EXACT Exact;

// A vector with room for codes and for exact cells.
__device__ __forceinline__ int room_of(const Form& f, const Form& e) { return max(f.room, e.room); }
__device__ __forceinline__ Vector vector_of(int size, int spare) {
    return Vector((u8*)room + threadIdx.x / 32 * (Vector::bytes(size) + spare), size);
}

// v.x: the exact cell of a unit. numbers: those of its type.
__device__ __forceinline__ void exact_get(Vector& v, const Cells& from, const Form& e, const float* numbers, const int* blocks,
                                          int size, int cell, int head) {
    const int inside = cell % size;
    tile_get<Exact>(v, from.tile(e, head, blocks[cell / size], inside), e, inside % 32, LANE);
    Exact::decode(v, e, {nullptr, nullptr, numbers}, LANE);
    __syncwarp();
}

// One block of threads a unit and head. Sums are in float64, a part of them in every warp.
extern "C" __global__ void KV_BOUNDS
kv_mean(u8* means, long long mean_block, long long mean_head, const Form* form, const float* signs, const signed char* core,
        const float* numbers, u8* data, long long block_bytes, long long head_bytes, const Form* exact_form,
        const float* exact_numbers, const int* exact, const int* coded, const int* sinks, int per, int size, int cells) {
    follows(data);
    const int unit = blockIdx.x, head = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, to = coded[unit];
    if (to < 0) return;
    const Form f = *form, e = *exact_form;
    const Tables t = {signs, core, numbers};
    const int n = room_of(f, e), first = sinks[unit];
    Vector v = vector_of(n, 0);
    double* sums = (double*)((u8*)room + KV_WARPS * Vector::bytes(n));
    for (int d = lane; d < f.dim; d += 32) sums[warp * n + d] = 0.0;
    for (int cell = first + warp; cell < cells; cell += KV_WARPS) {
        exact_get(v, {data, block_bytes, head_bytes}, e, exact_numbers, exact + unit * per, size, cell, head);
        for (int d = lane; d < f.dim; d += 32) sums[warp * n + d] += v.x[d];
        __syncwarp();
    }
    __syncthreads();
    if (warp > 0) return;
    for (int d = lane; d < f.room; d += 32) {
        double sum = 0.0;
        for (int w = 0; w < KV_WARPS && d < f.dim; ++w) sum += sums[w * n + d];
        v.x[d] = (float)(sum / max(cells - first, 1));
    }
    __syncwarp();
    if (f.turn) rotate(v.x, v.y, f.stored, f, t, false, t.numbers[Tables::DECODE_SCALE], LANE);
    mean_put(Means{means, mean_block, mean_head}.of(f, head, to), v, f, LANE);
}

extern "C" __global__ void KV_NEW_BOUNDS(Type::PATH)
kv_seal(u8* codes, long long code_block, long long code_head, u8* means, long long mean_block, long long mean_head,
        const Form* form, const float* signs, const signed char* core, const float* numbers, u8* data, long long block_bytes,
        long long head_bytes, const Form* exact_form, const float* exact_numbers, const int* exact, const int* coded, int n,
        int per, int size, int cells, int heads) {
    follows(data, means);
    const int head = number() % heads, cell = number() / heads % cells, unit = number() / heads / cells;
    if (unit >= n) return;
    const int to = coded[unit];
    if (to < 0) return;
    const Form f = *form, e = *exact_form;
    const Tables t = {signs, core, numbers};
    Vector v = vector_of(room_of(f, e), f.spare);
    if (means) mean_apart(Means{means, mean_block, mean_head}.of(f, head, to), v, f, t, LANE);
    exact_get(v, {data, block_bytes, head_bytes}, e, exact_numbers, exact + unit * per, size, cell, head);
    less_mean(v, f, means != nullptr, LANE);
    Type::encode(v, f, t, LANE);
    tile_put<Type>(Cells{codes, code_block, code_head}.tile(f, head, to, cell), v, f, cell % 32, LANE);
}

// x [n, heads, dim], less the means of the blocks that they are written to.
extern "C" __global__ void KV_NEW_BOUNDS(Type::PATH)
kv_append_centered(u8* codes, long long code_block, long long code_head, u8* means, long long mean_block, long long mean_head,
                   const Form* form, const float* signs, const signed char* core, const float* numbers, const float* x,
                   const int* blocks, const int* offsets, int n, int heads) {
    const int row = number() / heads, head = number() % heads;
    if (row >= n) return;
    const int block = blocks[row], cell = offsets[row];
    if (block < 0) return;
    const Form f = *form;
    const Tables t = {signs, core, numbers};
    Vector v = vector_of(f.room, f.spare);
    mean_apart(Means{means, mean_block, mean_head}.of(f, head, block), v, f, t, LANE);
    load(v, f, x + (long long)number() * f.dim);
    less_mean(v, f, true, LANE);
    Type::encode(v, f, t, LANE);
    tile_put<Type>(Cells{codes, code_block, code_head}.tile(f, head, block, cell), v, f, cell % 32, LANE);
}
