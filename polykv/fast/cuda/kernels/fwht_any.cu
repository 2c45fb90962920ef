// y = last * H (x * first) / sqrt(g) on groups of any g = 2^k m that has a Hadamard matrix here, one block a group.
//
// H is Sylvester's matrix of order 2^k kron a core of order m (polykv/hadamard.py): runs of m values are multiplied by the
// core, int8 [m, m] (its transpose for the inverse), then come the butterflies of distance m, 2 m, ... in shared memory.

#define FWHT_THREADS 128

extern "C" __global__ void __launch_bounds__(FWHT_THREADS)
fwht_any(float* y, const float* x, const float* first, const float* last, const signed char* core, float scale, int g, int m) {
    extern __shared__ float room[];
    float *a = room, *b = room + g;
    const long long start = (long long)blockIdx.x * g;
    for (int i = threadIdx.x; i < g; i += FWHT_THREADS) a[i] = x[start + i] * first[i];
    __syncthreads();
    if (m > 1) {
        for (int i = threadIdx.x; i < g; i += FWHT_THREADS) {
            const int row = i % m, run = i - row;
            float sum = 0.0f;
            for (int j = 0; j < m; ++j) sum += core[row * m + j] > 0 ? a[run + j] : -a[run + j];
            b[i] = sum;
        }
        __syncthreads();
        float* swapped = a;
        a = b;
        b = swapped;
    }
    for (int distance = m; distance < g; distance *= 2) {
        for (int i = threadIdx.x; i < g; i += FWHT_THREADS)
            b[i] = (i / distance) & 1 ? a[i - distance] - a[i] : a[i] + a[i + distance];
        __syncthreads();
        float* swapped = a;
        a = b;
        b = swapped;
    }
    for (int i = threadIdx.x; i < g; i += FWHT_THREADS) y[start + i] = a[i] * scale * last[i];
}
