// y = act(gate) * up. Defines: GLU_GATE (a function of glu.cuh).

#include "glu.cuh"

// n rows of cols values; those of gate and up may lie apart.
extern "C" __global__ void __launch_bounds__(256)
glu(float* y, const float* gate, const float* up, long long gate_pitch, long long up_pitch, int n, int cols) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x, row = i / cols, at = i % cols;
    if (row < n) y[i] = GLU_GATE(gate[row * gate_pitch + at]) * up[row * up_pitch + at];
}
