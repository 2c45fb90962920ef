// The largest logit of each row [rows, n], its lowest id, and NaN in its place when any logit of the row is not finite.
// One block a row.

#include "sample.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) greedy(int* ids, float* best, const float* logits, int n) {
    const SampleRow row = {logits + (long long)blockIdx.x * n, n, 0.0f, 0.0f};
    u64 first = ~0ull, infinite = 0;
    sample_each(row, [&](int id, float logit) {
        first = min(first, sample_place(logit, id));
        // NaN too.
        if (!(fabsf(logit) <= 3.40282347e38f)) infinite = 1;
    });
    first = block_smallest(first);
    infinite = block_largest(infinite);
    if (threadIdx.x != 0) return;
    const int id = (int)(unsigned)first;
    ids[blockIdx.x] = id;
    best[blockIdx.x] = infinite ? __uint_as_float(0x7fffffffu) : row.logits[id];
}
