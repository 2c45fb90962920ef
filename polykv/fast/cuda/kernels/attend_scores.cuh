// Scores of a tile: its 32 cells with four queries, or SETS times as many. A lane (g, t) gets those of cells 8 j + g,
// j = 0..3, with query t of every set.
//
// Cells are the rows of the product, so its eight columns are four queries in two parts: column 2 n has hi, 2 n + 1 lo of
// query n. q = unit * (128 hi + lo) with signed bytes, some 15 bits; or hi + lo as halves, some 22. Keys stay what they are.

#include "max_nan.cuh"

// Eight dims of a query, zeros where there is none.
__device__ __forceinline__ void octet(const float* from, bool used, float (&x)[8]) {
    const float4 none = make_float4(0, 0, 0, 0), a = used ? loaded16(from) : none, b = used ? loaded16(from + 4) : none;
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// Over the four lanes that have the dims of a query. NaN and infinity would round to some integer: as the largest dim they go to
// the unit instead, and so to all scores.
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
    x = max_nan(x, __shfl_xor_sync(~0u, x, 1));
    return max_nan(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float largest(const float (&x)[8], float most) {
#pragma unroll
    for (int i = 0; i < 8; i++) most = max_nan(most, fabsf(x[i]));
    return most;
}

// Eight dims as bytes of the lane's column: hi or lo. Adding 1.5 * 2^23 rounds and leaves the integer in the low bits; of hi the
// second line makes hi again, or lo = x - 128 hi.
__device__ __forceinline__ void two_bytes(const float (&x)[8], float inverse, int g, u32 (&q)[2]) {
    const float whole = 12582912.0f, by = g % 2 ? inverse : 0.0f, less = g % 2 ? -128.0f : 1.0f;
    u32 byte[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float hi = fmaf(x[i], inverse * 0.0078125f, whole) - whole;
        byte[i] = __float_as_uint(fmaf(hi, less, fmaf(x[i], by, whole)));
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        q[i] = pick(pick(byte[4 * i], byte[4 * i + 1], 0x0040), pick(byte[4 * i + 2], byte[4 * i + 3], 0x0040), 0x5410);
}

template <int TYPE, int WIDTH, int SETS> struct Scores {
    static constexpr int STEPS = WIDTH / 32;
    static constexpr bool PER_CELL = Codes<TYPE, WIDTH>::PER_CELL;
    static constexpr int PARTS = Codes<TYPE, WIDTH>::PARTS, ORDERS = Codes<TYPE, WIDTH>::ORDERS;
    u32 q[SETS][STEPS][ORDERS][2];
    // WHOLE: whether a query has one unit for all dims.
    static constexpr bool MINIMA = Codes<TYPE, WIDTH>::MINIMA, WHOLE = PER_CELL;
    // Of query t: what one unit of the product is worth, times scale and log2(e), for all dims or for 32; and the sum of 32 dims,
    // which minima meet.
    float unit[SETS][PER_CELL ? 1 : STEPS], sum[SETS][MINIMA ? STEPS : 1];

    // Of a lane's octet of dims of a query, whose largest dim is `most`: the words of its column in a step.
    static constexpr int WORDS = 2 * ORDERS;
    static __device__ __forceinline__ void words(const float (&x)[8], float most, int g, u32 (&w)[WORDS]) {
        const float inverse = most > 0 ? 16319.0f / most : 0.0f;
#pragma unroll
        for (int part = 0; part < ORDERS; part++) {
            float y[8];
            u32 two[2];
#pragma unroll
            for (int i = 0; i < 8; i++) y[i] = x[Codes<TYPE, WIDTH>::dim_of(part, i)];
            two_bytes(y, inverse, g, two);
            w[2 * part] = two[0], w[2 * part + 1] = two[1];
        }
    }
    // The words of step s and set n; and of query t its largest dim and the sum of its dims there. scale, whole: what a unit of
    // a product with codes is worth, and one with values.
    __device__ __forceinline__ void take(int n, int s, const u32 (&w)[WORDS], float most, float all, float scale, float whole) {
#pragma unroll
        for (int i = 0; i < WORDS; i++) q[n][s][i / 2][i % 2] = w[i];
        if (s == 0 || !PER_CELL) unit[n][s] = most * (1 / 16319.0f) * scale;
        if (MINIMA) sum[n][s] = all * whole;
    }

    // UNITS: whether the unit of a whole query is in the scores, or comes later.
    template <bool UNITS = true>
    __device__ __forceinline__ void run(const Codes<TYPE, WIDTH>& k, u32 scales, int g, float (&x)[SETS][4]) const {
        int d[SETS][2][4];
        float of[4];
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (!PER_CELL || s == 0)
#pragma unroll
                for (int i = 0; i < 8 * SETS; i++) d[i / 8][i / 4 % 2][i % 4] = 0;
            if (!PER_CELL) four(scales + 64 * s + 8 * g, of);
#pragma unroll
            for (int u = 0; u < 2; u++) {
                u32 a[PARTS][2], b[PARTS][2];
                k.group(4 * s + 2 * u, a);
                k.group(4 * s + 2 * u + 1, b);
#pragma unroll
                for (int n = 0; n < SETS * PARTS; n++) {
                    const int part = n % PARTS;
                    const u32(&of_q)[2] = q[n / PARTS][s][part % ORDERS];
                    mma_s8_32(d[n / PARTS][u], a[part][0], b[part][0], a[part][1], b[part][1], make_uint2(of_q[0], of_q[1]));
                }
            }
            if (!PER_CELL)
#pragma unroll
                for (int j = 0; j < 4 * SETS; j++) {
                    const float part = whole(d[j / 4], j % 4), of_unit = of[j % 4] * unit[j / 4][s];
                    x[j / 4][j % 4] = s == 0 ? part * of_unit : fmaf(part, of_unit, x[j / 4][j % 4]);
                }
            if constexpr (MINIMA) {
                float low[4];
                four(scales + 64 * (STEPS + s) + 8 * g, low);
#pragma unroll
                for (int j = 0; j < 4 * SETS; j++)
                    x[j / 4][j % 4] = fmaf(fmaf((float)Codes<TYPE, WIDTH>::ZERO, of[j % 4], low[j % 4]), sum[j / 4][s], x[j / 4][j % 4]);
            }
        }
        if (PER_CELL) {
            four(scales + 8 * g, of);
#pragma unroll
            for (int j = 0; j < 4 * SETS; j++) {
                x[j / 4][j % 4] = whole(d[j / 4], j % 4) * (UNITS ? of[j % 4] * unit[j / 4][0] : of[j % 4]);
            }
        }
    }

    // The product of cell 8 j + g.
    static __device__ __forceinline__ float whole(const int (&d)[2][4], int j) {
        return (float)(128 * d[j / 2][j % 2 * 2] + d[j / 2][j % 2 * 2 + 1]);
    }
};

// What 16-bit floats of tensor cores are.
struct OfHalves {
    static __device__ __forceinline__ u32 two(float a, float b) { return f32_to_f16x2(a, b); }
    static __device__ __forceinline__ float first(u32 x) { return f16_to_f32(x & 0xFFFF); }
    static __device__ __forceinline__ float second(u32 x) { return f16_to_f32(x >> 16); }
    static __device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
        mma_f16(d, a0, a1, a2, a3, b0, b1);
    }
};

struct OfBfloats {
    static __device__ __forceinline__ u32 two(float a, float b) { return f32_to_bf16x2(a, b); }
    static __device__ __forceinline__ float first(u32 x) { return __uint_as_float(x << 16); }
    static __device__ __forceinline__ float second(u32 x) { return __uint_as_float(x & 0xFFFF0000u); }
    static __device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
        mma_bf16(d, a0, a1, a2, a3, b0, b1);
    }
};

// Keys that are read as floats of 16 bits.
template <typename FLOATS, int TYPE, int WIDTH, int SETS> struct FloatScores {
    static constexpr int STEPS = WIDTH / 32, WORDS = 4;
    static constexpr bool MINIMA = false, WHOLE = true;
    u32 q[SETS][STEPS][4];
    float unit[SETS];

    // As in Scores. A query's largest dim becomes 1024: far from overflow, and what is lost below is 2^-34 of it.
    static __device__ __forceinline__ void words(const float (&x)[8], float most, int g, u32 (&w)[WORDS]) {
        const float inverse = most > FAINT ? 1024.0f / most : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float a = x[2 * i] * inverse, b = x[2 * i + 1] * inverse;
            const u32 hi = FLOATS::two(a, b);
            w[i] = g % 2 ? FLOATS::two(a - FLOATS::first(hi), b - FLOATS::second(hi)) : hi;
        }
    }
    __device__ __forceinline__ void take(int n, int s, const u32 (&w)[WORDS], float most, float, float scale, float) {
#pragma unroll
        for (int i = 0; i < 4; i++) q[n][s][i] = w[i];
        if (s == 0) unit[n] = most * (1 / 1024.0f) * scale;
    }

    __device__ __forceinline__ void run(const Codes<TYPE, WIDTH>& k, u32 scales, int g, float (&x)[SETS][4]) const {
        float d[SETS][2][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++)
#pragma unroll
            for (int u = 0; u < 2; u++) {
                // The eight dims of a lane are two products' worth: any order of dims will do, if q has the same.
                const uint4 a = k.group(4 * s + 2 * u), b = k.group(4 * s + 2 * u + 1);
#pragma unroll
                for (int n = 0; n < SETS; n++) {
                    FLOATS::mma(d[n][u], a.x, b.x, a.y, b.y, q[n][s][0], q[n][s][1]);
                    FLOATS::mma(d[n][u], a.z, b.z, a.w, b.w, q[n][s][2], q[n][s][3]);
                }
            }
        float of[4] = {1, 1, 1, 1};
        if constexpr (Codes<TYPE, WIDTH>::NORMS) four(scales + 8 * g, of);
#pragma unroll
        for (int j = 0; j < 4 * SETS; j++) {
            const float(&e)[2][4] = d[j / 4];
            x[j / 4][j % 4] = (e[j % 4 / 2][j % 2 * 2] + e[j % 4 / 2][j % 2 * 2 + 1]) * (of[j % 4] * unit[j / 4]);
        }
    }
};

template <int WIDTH, int SETS> struct Scores<F16, WIDTH, SETS> : FloatScores<OfHalves, F16, WIDTH, SETS> {};
template <int WIDTH, int SETS> struct Scores<BF16, WIDTH, SETS> : FloatScores<OfBfloats, BF16, WIDTH, SETS> {};
template <int WIDTH, int SETS> struct Scores<TURBO8, WIDTH, SETS> : FloatScores<OfHalves, TURBO8, WIDTH, SETS> {};
