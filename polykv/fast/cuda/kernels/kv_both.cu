// New K and V of a layer into their cells, and its queries into the space of the keys, in one launch or in two: task 0 is
// K, task 1 is V (kv_warp.cuh), task 2 the queries; a row of the grid does task `first` plus its number.
//
// Defines: KV_K, KV_V, types of kv_types.cuh; K_DIM to K_SPARE, V_DIM to V_SPARE, their sizes (struct Form). Compiled for
// its sizes alone a step of one row takes a third of the time: it is one long chain of small loops.

#define KV_FIXED
#include "kv_warp.cuh"

constexpr Form K_FORM = {K_DIM, K_STORED, K_RESIDENT, K_GROUP, K_TURN, K_CORE, K_WIDTH, K_SLICES, K_VALUES,
                         K_SLICE_BYTES, K_GROUP_BYTES, K_CODES_AT, K_VECTOR_BYTES, K_ROOM, K_SPARE};
constexpr Form V_FORM = {V_DIM, V_STORED, V_RESIDENT, V_GROUP, V_TURN, V_CORE, V_WIDTH, V_SLICES, V_VALUES,
                         V_SLICE_BYTES, V_GROUP_BYTES, V_CODES_AT, V_VECTOR_BYTES, V_ROOM, V_SPARE};

// Query vectors [n, heads, dim], prepared and rotated as keys are, filled up with zeros to `dims`.
struct Queries {
    const float* x;
    int pitch;
    const float *bias, *factors, *norm;
    int heads;
    float* out;
    int dims;
};

__device__ __forceinline__ void query(const Queries& q, const Form& f, const Tables& t, const New& to) {
    const int row = number() / q.heads, head = number() % q.heads;
    if (row >= to.n) return;
    Vector v = mine(f);
    const long long angle = (long long)row * to.half;
    const float *cosines = to.cosines ? to.cosines + angle : to.cosines, *sines = to.sines ? to.sines + angle : to.sines;
    steps_soon(f, t, q.bias, q.factors, q.norm, cosines, sines, to.half, head);
    const float* x = q.x;
    follows(x);
    load(v, f, x + (long long)row * q.pitch + head * f.dim);
    prepare(v, f.dim, head, {q.bias, q.norm, q.factors, cosines, sines, to.eps, to.half, to.interleaved}, LANE);
    if (f.turn) rotate(v.x, v.y, f.stored, f, t, false, t.numbers[Tables::DECODE_SCALE], LANE);
    float* out = q.out + (long long)number() * q.dims;
KV_LOOP
    for (int i = threadIdx.x % 32; i < q.dims; i += 32) out[i] = i < f.resident ? v.x[i] : 0.0f;
}

extern "C" __global__ void KV_NEW_BOUNDS(KV_K::PATH || KV_V::PATH)
kv_append_both(u8* k_data, long long k_block, long long k_head, const float* k_signs, const signed char* k_core,
               const float* k_numbers, const float* k, int k_pitch, const float* k_bias, const float* k_factors,
               u8* v_data, long long v_block, long long v_head, const float* v_signs, const signed char* v_core,
               const float* v_numbers, const float* v, int v_pitch, const float* v_bias, const float* v_factors,
               const int* blocks, const int* offsets, int n, int heads, const float* norm, double eps, const float* cosines,
               const float* sines, int half, int interleaved,
               const float* q, int q_pitch, const float* q_bias, const float* q_factors, const float* q_norm, int q_heads,
               float* queries, int dims, int first) {
    const Tables of_keys = {k_signs, k_core, k_numbers};
    const New both = {blocks, offsets, n, heads, norm, eps, cosines, sines, half, interleaved};
    const int task = first + blockIdx.y;
    if (task == 0)
        append<KV_K>({{k_data, k_block, k_head}, K_FORM, of_keys, k, k_pitch, k_bias, k_factors}, both);
    else if (task == 1)
        append<KV_V>({{v_data, v_block, v_head}, V_FORM, {v_signs, v_core, v_numbers}, v, v_pitch, v_bias, v_factors},
                     {blocks, offsets, n, heads, nullptr, 0.0, nullptr, nullptr, 0, 0});
    else
        query({q, q_pitch, q_bias, q_factors, q_norm, q_heads, queries, dims}, K_FORM, of_keys, both);
}
