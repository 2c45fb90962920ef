// 128 values in the registers of a warp: lane n has values n, n + 32, n + 64 and n + 96. What else takes a pass through
// shared memory for every halving or doubling is the same arithmetic here, in the same order, between lanes.

struct Four {
    float x[4];
    int lane;

    __device__ __forceinline__ Four(const float* from, int l) : lane(l) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = from[lane + 32 * i];
    }
    __device__ __forceinline__ void store(float* to) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[lane + 32 * i] = x[i];
    }

    // The sum of squares, as a tree: value j and j + 64, then j and j + 32, ...
    __device__ __forceinline__ float squares() const {
        float sum = (x[0] * x[0] + x[2] * x[2]) + (x[1] * x[1] + x[3] * x[3]);
#pragma unroll
        for (int far = 16; far > 0; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
        return sum;
    }

    __device__ __forceinline__ void times(float scale, const float* signs) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = x[i] * scale * signs[lane + 32 * i];
    }
    // Butterflies (a, b) -> (a + b, a - b) of distance 1, 2, 4, ..., 64.
    __device__ __forceinline__ void butterflies() {
#pragma unroll
        for (int far = 1; far < 32; far *= 2) {
            const float sign = lane & far ? -1.0f : 1.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = fmaf(x[i], sign, __shfl_xor_sync(~0u, x[i], far));
        }
        const float a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
        x[0] = a + c, x[1] = b + d, x[2] = a - c, x[3] = b - d;
    }
};
