// What lies between two products of a layer: the result of one is added to h, and h, normed, is rounded for the next.
//
//     h += y, or h += rms_norm(y) * post        m = rms_norm(h) * weight, as int8 (quantize.cuh)
//
// One block a row, whose values its threads hold in registers; rows from n on are zeros that complete a chunk of 8.
// Squares are added in float64, as in norm.cu.
// Defines: RESIDUAL_ADD (0 nothing, 1 y, 2 normed y), RESIDUAL_NEXT (0: nothing follows), RESIDUAL_FOURS (fours of values
// of a thread, so that cols <= 1024 * RESIDUAL_FOURS), QUANTIZE_TILES.

#include "follow.cuh"
#include "block.cuh"
#include "quantize.cuh"

#define RESIDUAL_THREADS 256

struct Row {
    float4 v[RESIDUAL_FOURS];

    // Zeros beyond the end.
    __device__ __forceinline__ void load(const float* x, int cols) {
#pragma unroll
        for (int i = 0; i < RESIDUAL_FOURS; ++i) {
            const int four = threadIdx.x + RESIDUAL_THREADS * i;
            v[i] = four < cols / 4 ? ((const float4*)x)[four] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
    }

    // 1 / sqrt(mean(x^2) + eps)
    __device__ __forceinline__ double inverse_rms(int cols, double eps) const {
        double sum = 0.0;
#pragma unroll
        for (int i = 0; i < RESIDUAL_FOURS; ++i) {
            sum = fma((double)v[i].x, (double)v[i].x, sum), sum = fma((double)v[i].y, (double)v[i].y, sum);
            sum = fma((double)v[i].z, (double)v[i].z, sum), sum = fma((double)v[i].w, (double)v[i].w, sum);
        }
        return 1.0 / sqrt(block_sum<RESIDUAL_THREADS>(sum) / cols + eps);
    }

    __device__ __forceinline__ void scale(double by, const Row& weights) {
#pragma unroll
        for (int i = 0; i < RESIDUAL_FOURS; ++i) {
            v[i].x = (float)((double)v[i].x * by * (double)weights.v[i].x);
            v[i].y = (float)((double)v[i].y * by * (double)weights.v[i].y);
            v[i].z = (float)((double)v[i].z * by * (double)weights.v[i].z);
            v[i].w = (float)((double)v[i].w * by * (double)weights.v[i].w);
        }
    }
};

extern "C" __global__ void __launch_bounds__(RESIDUAL_THREADS)
residual(float* h, const float* y, const float* post, double post_eps, const float* weight, double eps, unsigned* codes,
         uint2* scales, int n, int cols) {
    const int row = blockIdx.x;
    Row x, w;
    if (RESIDUAL_NEXT) w.load(weight, cols);
    follows(h, y);
    if (row < n) {
        h += (long long)row * cols;
        // All that is read is asked for at once.
        x.load(h, cols);
        if (RESIDUAL_ADD) {
            Row add, of_post;
            add.load(y + (long long)row * cols, cols);
            if (RESIDUAL_ADD == 2) of_post.load(post, cols), add.scale(add.inverse_rms(cols, post_eps), of_post);
#pragma unroll
            for (int i = 0; i < RESIDUAL_FOURS; ++i) {
                const int four = threadIdx.x + RESIDUAL_THREADS * i;
                x.v[i].x += add.v[i].x, x.v[i].y += add.v[i].y, x.v[i].z += add.v[i].z, x.v[i].w += add.v[i].w;
                if (four < cols / 4) ((float4*)h)[four] = x.v[i];
            }
        }
        if (RESIDUAL_NEXT) x.scale(x.inverse_rms(cols, eps), w);
    } else {
#pragma unroll
        for (int i = 0; i < RESIDUAL_FOURS; ++i) x.v[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    }
    if (!RESIDUAL_NEXT) return;
#pragma unroll
    for (int i = 0; i < RESIDUAL_FOURS; ++i) {
        const int four = threadIdx.x + RESIDUAL_THREADS * i;
        put_four<QUANTIZE_TILES>(codes, scales, x.v[i], row, four, cols, gridDim.x / 8, four < cols / 4);
    }
}
