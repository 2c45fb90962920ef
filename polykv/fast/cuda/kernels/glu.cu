// y = act(gate) * up. Defines: GLU_GATE (a function of glu.cuh).

#include "glu.cuh"

extern "C" __global__ void __launch_bounds__(256) glu(float* y, const float* gate, const float* up, long long n) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = GLU_GATE(gate[i]) * up[i];
}
