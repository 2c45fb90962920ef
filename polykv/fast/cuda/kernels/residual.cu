// What lies between two products of a layer: the result of one is added to h, and h, normed, is rounded for the next.
//
//     h += y, or h += rms_norm(y) * post        m = rms_norm(h) * weight, as int8 (quantize.cuh)
//
// One block a row; rows from n on are zeros that complete a chunk of 8. Squares are added in float64, as in norm.cu.
// Defines: RESIDUAL_ADD (0 nothing, 1 y, 2 normed y), RESIDUAL_NEXT (0: nothing follows), QUANTIZE_TILES.

#include "block.cuh"
#include "quantize.cuh"

#define RESIDUAL_THREADS 512

// 1 / sqrt(mean(x^2) + eps)
__device__ __forceinline__ double inverse_rms(const float* x, int cols, double eps) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < cols; i += RESIDUAL_THREADS) sum = fma((double)x[i], (double)x[i], sum);
    return 1.0 / sqrt(block_sum<RESIDUAL_THREADS>(sum) / cols + eps);
}

extern "C" __global__ void __launch_bounds__(RESIDUAL_THREADS)
residual(float* h, const float* y, const float* post, double post_eps, const float* weight, double eps, unsigned* codes,
         uint2* scales, int n, int cols) {
    const int row = blockIdx.x;
    h += (long long)row * cols;
    double scale = 0.0;
    if (row < n) {
        y += (long long)row * cols;
        const double of_y = RESIDUAL_ADD == 2 ? inverse_rms(y, cols, post_eps) : 0.0;
        // A thread reads again only what it has written.
        if (RESIDUAL_ADD)
            for (int i = threadIdx.x; i < cols; i += RESIDUAL_THREADS)
                h[i] += RESIDUAL_ADD == 2 ? (float)((double)y[i] * of_y * (double)post[i]) : y[i];
        if (RESIDUAL_NEXT) scale = inverse_rms(h, cols, eps);
    }
    if (!RESIDUAL_NEXT) return;
    __syncthreads();
    for (int start = 0; start < cols / 4; start += RESIDUAL_THREADS) {
        const int four = start + threadIdx.x;
        float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (row < n && four < cols / 4) {
            const float4 x = ((const float4*)h)[four], w = ((const float4*)weight)[four];
            v = {(float)((double)x.x * scale * (double)w.x), (float)((double)x.y * scale * (double)w.y),
                 (float)((double)x.z * scale * (double)w.z), (float)((double)x.w * scale * (double)w.w)};
        }
        put_four<QUANTIZE_TILES>(codes, scales, v, row, four, cols, four < cols / 4);
    }
}
