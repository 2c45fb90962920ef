// The rotation of polykv/ref/fwht.py, y = last * H (x * first) * scale on runs of `turn` values, in shared memory.
//
// H is Sylvester's matrix of order 2^k kron a core of order m: runs of m values are multiplied by the core, then come
// butterflies (a, b) -> (a + b, a - b) of distance m, 2 m, ... Their order is that of the reference, so that results
// are the same where m is 1.

#include "kv_four.cuh"

__device__ __forceinline__ void signed_by(float* x, int n, int turn, float scale, const float* signs, int lane, int lanes) {
    for (int run = 0; run < n; run += turn)
        for (int i = lane; i < turn; i += lanes) x[run + i] = x[run + i] * scale * signs[i];
}

__device__ __forceinline__ void times_core(float* x, float* y, int n, int m, const signed char* core, int lane, int lanes) {
KV_LOOP
    for (int i = lane; i < n; i += lanes) {
        const int row = i % m;
        float sum = 0.0f;
        for (int j = 0; j < m; ++j) sum += core[row * m + j] > 0 ? x[i - row + j] : -x[i - row + j];
        y[i] = sum;
    }
    __syncwarp();
KV_LOOP
    for (int i = lane; i < n; i += lanes) x[i] = y[i];
    __syncwarp();
}

// n values x in whole turns; y: as much room. back: the inverse, by the transpose.
__device__ __forceinline__ void rotate(float* x, float* y, int n, const Form& f, const Tables& t, bool back, float scale,
                                       int lane, int lanes) {
    const int m = f.core;
    if (lanes == 32 && f.turn == 128) {
        for (int run = 0; run < n; run += 128) {
            Four four(x + run, lane);
            four.times(1.0f, t.signs + (back ? 128 : 0));
            four.butterflies();
            four.times(scale, t.signs + (back ? 0 : 128));
            four.store(x + run);
        }
        __syncwarp();
        return;
    }
    signed_by(x, n, f.turn, 1.0f, t.signs + (back ? f.turn : 0), lane, lanes);
    __syncwarp();
    if (m > 1) times_core(x, y, n, m, t.core + (back ? m * m : 0), lane, lanes);
    for (int level = 0; m << level < f.turn; ++level) {
        for (int i = lane; i < n / 2; i += lanes) {
            const int q = m == 1 ? i : i / m, r = m == 1 ? 0 : i % m;
            const int at = ((q >> level << (level + 1)) + (q & ((1 << level) - 1))) * m + r, far = at + (m << level);
            const float a = x[at], b = x[far];
            x[at] = a + b, x[far] = a - b;
        }
        __syncwarp();
    }
    signed_by(x, n, f.turn, scale, t.signs + (back ? 0 : f.turn), lane, lanes);
    __syncwarp();
}
