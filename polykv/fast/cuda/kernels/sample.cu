// One token per row of logits [rows, n]: one block a row, see sample.cuh.
//
// A draw takes up to 16 passes over the row, which is in the L2 cache; two of them compute exp() of every logit in float64
// when there is no top-k. Rows are independent: what a row draws does not depend on the others.

#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS)
sample(int* tokens, const float* logits, const float* temperature, const int* top_k, const float* top_p,
       const float* min_p, const double* u, int n) {
    const int r = blockIdx.x;
    const Sampling s = {temperature[r], top_k[r], top_p[r], min_p[r], u[r]};
    const int token = sample_row(logits + (long long)r * n, n, s);
    if (threadIdx.x == 0) tokens[r] = token;
}
