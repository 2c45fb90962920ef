// act(gate) * up of few rows, at once as int8 for the product that follows (quantize.cuh).
//
// Defines: GLU_GATE (a function of glu.cuh), QUANTIZE_TILES.

#include "follow.cuh"
#include "glu.cuh"
#include "quantize.cuh"

// gate, up: rows of cols values, `pitch` floats apart. n: rows; total: fours, those that complete a chunk included.
extern "C" __global__ void __launch_bounds__(256)
glu_int8(unsigned* codes, uint2* scales, const float* gate, const float* up, int gate_pitch, int up_pitch, int n, int cols, int total) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, row = i / (cols / 4), four = i % (cols / 4);
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    follows(gate, up);
    if (row < n) {
        const float4 g = *(const float4*)(gate + (long long)row * gate_pitch + 4 * four);
        const float4 u = *(const float4*)(up + (long long)row * up_pitch + 4 * four);
        v = {GLU_GATE(g.x) * u.x, GLU_GATE(g.y) * u.y, GLU_GATE(g.z) * u.z, GLU_GATE(g.w) * u.w};
    }
    put_four<QUANTIZE_TILES>(codes, scales, v, row, four, cols, total / (cols / 4) / 8, i < total);
}
