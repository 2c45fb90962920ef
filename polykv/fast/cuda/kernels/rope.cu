// Rotates pairs of the first n_rot dims of x [n, heads, dim] by the angles of their row; the other dims pass.
//
// Defines: ROPE_INTERLEAVED (1: pairs (2 i, 2 i + 1), 0: pairs (i, i + n_rot / 2)). One thread a pair, or a dim that
// passes. In float64 and rounded once, as the reference: the operation is bound by memory either way.

extern "C" __global__ void __launch_bounds__(128)
rope(float* y, const float* x, const float* cosines, const float* sines, int n, int heads, int dim, int half) {
    const int work = dim - half, i = (blockIdx.x * blockDim.x + threadIdx.x) % work;
    const long long vector = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / work;
    if (vector >= (long long)n * heads) return;
    const long long start = vector * dim;
    if (i >= half) {
        y[start + half + i] = x[start + half + i];
        return;
    }
    const long long angle = vector / heads * half + i;
    const double c = cosines[angle], s = sines[angle];
    const int first = ROPE_INTERLEAVED ? 2 * i : i, second = ROPE_INTERLEAVED ? 2 * i + 1 : i + half;
    const double a = x[start + first], b = x[start + second];
    y[start + first] = (float)(a * c - b * s);
    y[start + second] = (float)(a * s + b * c);
}
