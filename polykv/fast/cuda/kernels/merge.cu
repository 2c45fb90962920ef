// Results over disjoint sets of keys as one: out = sum_s exp(lse_s - lse) out_s, lse = log sum_s exp(lse_s).
//
// One block a (row, head); outs [parts, vectors, dim], lses [parts, vectors]. A part without keys has lse = -inf and
// weight 0; NaN in one part is NaN in the whole. In float64: a handful of numbers, and lse may be large.

#define MERGE_THREADS 128

extern "C" __global__ void __launch_bounds__(MERGE_THREADS)
merge(float* y, float* lse, const float* outs, const float* lses, int parts, int vectors, int dim) {
    const int vector = blockIdx.x;
    const float infinity = __uint_as_float(0x7f800000u);
    float top = -infinity;
    for (int s = 0; s < parts; ++s) {
        const float v = lses[(long long)s * vectors + vector];
        top = v > top || v != v ? v : top;
    }
    // Where nothing was seen, or the largest is no number, there is nothing to subtract.
    const double base = fabsf(top) < infinity ? (double)top : 0.0;
    double total = 0.0;
    for (int s = 0; s < parts; ++s) total += exp((double)lses[(long long)s * vectors + vector] - base);
    // NaN is not 0: it counts as seen, and stays.
    const bool seen = total != 0.0;
    for (int i = threadIdx.x; i < dim; i += MERGE_THREADS) {
        double sum = 0.0;
        for (int s = 0; s < parts; ++s) {
            const long long at = (long long)s * vectors + vector;
            sum += exp((double)lses[at] - base) * (double)outs[at * dim + i];
        }
        y[(long long)vector * dim + i] = seen ? (float)(sum / total) : 0.0f;
    }
    if (threadIdx.x == 0) lse[vector] = seen ? (float)(log(total) + base) : -infinity;
}
