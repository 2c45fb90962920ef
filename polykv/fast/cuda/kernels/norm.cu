// y = x / sqrt(mean(x^2) + eps) * weight, one block a row. Squares are added in float64: they may exceed float32.

#include "block.cuh"

#define NORM_THREADS 256

extern "C" __global__ void __launch_bounds__(NORM_THREADS)
rms_norm(float* y, const float* x, const float* weight, int cols, double eps) {
    x += (long long)blockIdx.x * cols;
    y += (long long)blockIdx.x * cols;
    double sum = 0.0;
    for (int i = threadIdx.x; i < cols; i += NORM_THREADS) sum = fma((double)x[i], (double)x[i], sum);
    const double scale = 1.0 / sqrt(block_sum<NORM_THREADS>(sum) / cols + eps);
    for (int i = threadIdx.x; i < cols; i += NORM_THREADS) y[i] = (float)((double)x[i] * scale * (double)weight[i]);
}
