// y [n, cols] = cap * tanh(y / cap), in place.

extern "C" __global__ void __launch_bounds__(256) softcap(float* y, int cols, float cap) {
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= cols) return;
    float& v = y[(long long)blockIdx.x * cols + i];
    v = cap * tanhf(v / cap);
}
