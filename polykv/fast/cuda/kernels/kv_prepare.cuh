// What becomes of new keys and values before they are coded, in the order of polykv/ref/composites.py; every step may be
// absent (null):
//
//     x + bias      rms_norm(x) * norm      rope      x * factors
//
// Norm and rope are computed in float64 and rounded once, as they are in kernels of their own.

struct Steps {
    // [heads, dim], [dim], [heads, dim].
    const float *bias, *norm, *factors;
    // Of the row: [half] each; pairs are (2 i, 2 i + 1) if interleaved, else (i, i + half).
    const float *cosines, *sines;
    double eps;
    int half, interleaved;
};

// x / sqrt(mean(x^2) + eps) * weight; parts: room for a double of every lane.
__device__ __forceinline__ void normed(float* x, double* parts, int dim, const float* weight, double eps, int lane, int lanes) {
    double sum = 0.0;
KV_LOOP
    for (int i = lane; i < dim; i += lanes) sum = fma((double)x[i], (double)x[i], sum);
    parts[lane] = sum;
    __syncwarp();
    sum = 0.0;
    for (int i = 0; i < lanes; ++i) sum += parts[i];
    const double scale = 1.0 / sqrt(sum / dim + eps);
KV_LOOP
    for (int i = lane; i < dim; i += lanes) x[i] = (float)((double)x[i] * scale * (double)weight[i]);
    __syncwarp();
}

__device__ __forceinline__ void roped(float* x, const Steps& s, int lane, int lanes) {
KV_LOOP
    for (int i = lane; i < s.half; i += lanes) {
        const int first = s.interleaved ? 2 * i : i, second = s.interleaved ? 2 * i + 1 : i + s.half;
        const double c = s.cosines[i], t = s.sines[i], a = x[first], b = x[second];
        x[first] = (float)(a * c - b * t);
        x[second] = (float)(a * t + b * c);
    }
    __syncwarp();
}

// v.x, of head `head`.
__device__ __forceinline__ void prepare(Vector& v, int dim, int head, const Steps& s, int lane, int lanes) {
    if (s.bias)
KV_LOOP
        for (int i = lane; i < dim; i += lanes) v.x[i] += s.bias[head * dim + i];
    __syncwarp();
    if (s.norm) normed(v.x, (double*)v.y, dim, s.norm, s.eps, lane, lanes);
    if (s.cosines) roped(v.x, s, lane, lanes);
    if (s.factors)
KV_LOOP
        for (int i = lane; i < dim; i += lanes) v.x[i] *= s.factors[head * dim + i];
    __syncwarp();
}
