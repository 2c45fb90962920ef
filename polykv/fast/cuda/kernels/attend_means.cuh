// Centered keys: the scores of a turn less that of the mean of its unit, <q, m>, which is the same for all of its cells.
//
// m is 32 dims to a scale, whatever the type of the codes, and so is q here: in bytes as in attend_scores.cuh, in the order
// of dims. The product has m in every row.

template <int WIDTH, int SETS> struct Means {
    static constexpr int STEPS = WIDTH / 32, BYTES = WIDTH + 16;
    u32 q[SETS][STEPS][2];
    float unit[SETS][STEPS];

    // from: the slice of query g / 2 of set n; used: whether there is one.
    __device__ __forceinline__ void prepare(int n, const float* from, bool used, float scale, int g, int t) {
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            float x[8];
            octet(from + 32 * s + 8 * t, used, x);
            const float most = quad_max(largest(x, 0));
            two_bytes(x, most > 0 ? 16319.0f / most : 0.0f, g, q[n][s]);
            unit[n][s] = __shfl_sync(~0u, most * (1 / 16319.0f) * scale, 8 * t);
        }
    }

    // Add what the mean at `at` in shared memory is worth to the scores of all tiles.
    template <int TILES> __device__ __forceinline__ void add(u32 at, int t, float (&x)[TILES][SETS][4]) const {
        float sum[SETS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint2 m = shared8(at + 32 * s + 8 * t);
            const u32 two = shared4(at + WIDTH + s / 2 * 4);
            const float scale = f16_to_f32(s % 2 ? two >> 16 : two & 0xFFFF);
#pragma unroll
            for (int n = 0; n < SETS; n++) {
                int d[4] = {0, 0, 0, 0};
                mma_s8_32(d, m.x, m.x, m.y, m.y, make_uint2(q[n][s][0], q[n][s][1]));
                const float part = (float)(128 * d[0] + d[1]), worth = scale * unit[n][s];
                sum[n] = s == 0 ? part * worth : fmaf(part, worth, sum[n]);
            }
        }
#pragma unroll
        for (int h = 0; h < TILES; h++)
#pragma unroll
            for (int j = 0; j < 4 * SETS; j++) x[h][j / 4][j % 4] += sum[j / 4];
    }
};
