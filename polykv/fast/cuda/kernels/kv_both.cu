// New K and V of a layer into their cells, in one launch: row 0 of the grid takes K, row 1 takes V (kv_warp.cuh).
//
// Defines: KV_K, KV_V, types of kv_types.cuh.

#include "kv_warp.cuh"

extern "C" __global__ void KV_NEW_BOUNDS(KV_K::PATH || KV_V::PATH)
kv_append_both(u8* k_data, long long k_block, long long k_head, const Form* k_form, const float* k_signs,
               const signed char* k_core, const float* k_numbers, const float* k, int k_pitch, const float* k_bias,
               const float* k_factors, u8* v_data, long long v_block, long long v_head, const Form* v_form,
               const float* v_signs, const signed char* v_core, const float* v_numbers, const float* v, int v_pitch,
               const float* v_bias, const float* v_factors, const int* blocks, const int* offsets, int n, int heads,
               const float* norm, double eps, const float* cosines, const float* sines, int half, int interleaved) {
    if (blockIdx.y == 0)
        append<KV_K>({{k_data, k_block, k_head}, k_form, {k_signs, k_core, k_numbers}, k, k_pitch, k_bias, k_factors},
                     {blocks, offsets, n, heads, norm, eps, cosines, sines, half, interleaved});
    else
        append<KV_V>({{v_data, v_block, v_head}, v_form, {v_signs, v_core, v_numbers}, v, v_pitch, v_bias, v_factors},
                     {blocks, offsets, n, heads, nullptr, 0.0, nullptr, nullptr, 0, 0});
}
