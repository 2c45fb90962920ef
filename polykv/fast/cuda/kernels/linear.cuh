// Products of pieces of packed weights with a few rows of activations.
//
// Activations are int8, 32 values to a scale (quantize.cu). With x = d q, and codes c of a run of 16 weights,
//
//     sum scale (c - ZERO) d q = scale d (sum c q - ZERO sum q)        sum c q exact, four products an instruction
//     sum -minimum d q         = -minimum d sum q
//
// `sum q` of every 16 values comes with the activations. What a row of the result is made of, and in which order it is
// added, depends on cols alone: neither on the other rows nor on how many there are.

#include "weights_k.cuh"

// Activations of R rows: codes [n, cols], scales [n, cols / 32]: a float32, and two int16 sums of 16 codes each.
struct Activations {
    const signed char* codes;
    const uint2* scales;
    int cols;
};

__device__ __forceinline__ int dot16(const uint4& a, const uint4& b, int sum) {
    sum = __dp4a((int)a.x, (int)b.x, sum);
    sum = __dp4a((int)a.y, (int)b.y, sum);
    sum = __dp4a((int)a.z, (int)b.z, sum);
    return __dp4a((int)a.w, (int)b.w, sum);
}

template <typename T>
__device__ __forceinline__ uint4 run_of(const typename T::Raw& raw, int part, int run) {
    return {T::word(raw, part, run, 0), T::word(raw, part, run, 1), T::word(raw, part, run, 2),
            T::word(raw, part, run, 3)};
}

// The products of one piece with the first n of R rows, added to sums; `at` is the column of its first run.
template <typename T, int R>
__device__ __forceinline__ void add_piece(
    float (&sums)[R], const typename T::Raw& raw, int part, const Activations& x, int at, int n) {
#pragma unroll
    for (int run = 0; run < T::RUNS; run += T::JOIN) {
        const uint4 first = run_of<T>(raw, part, run);
        const uint4 second = T::JOIN == 2 ? run_of<T>(raw, part, run + T::JOIN - 1) : first;
        const float scale = T::scale(raw, part, run), minimum = T::MINIMUM ? T::minimum(raw, part, run) : 0.0f;
        const int column = at + run * T::STRIDE;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (R > 1 && r >= n) break;
            const uint2 head = cached8(x.scales + r * (x.cols / 32) + column / 32);
            const float d = __uint_as_float(head.x);
            const int low = (int)(short)(head.y & 0xffffu), high = (int)head.y >> 16;
            int dot = dot16(first, cached16(x.codes + r * x.cols + column), 0);
            if (T::JOIN == 2) dot = dot16(second, cached16(x.codes + r * x.cols + column + 16), dot);
            const int sum = T::JOIN == 2 ? low + high : (column & 16) ? high : low;
            sums[r] = fmaf(scale, d * (float)(dot - T::ZERO * sum), sums[r]);
            if (T::MINIMUM) sums[r] = fmaf(-minimum, d * (float)sum, sums[r]);
        }
    }
}

// The same with float32 activations [n, cols].
template <typename T, int R>
__device__ __forceinline__ void add_piece_f32(
    float (&sums)[R], const typename T::Raw& raw, int part, const float* x, int cols, int at, int n) {
#pragma unroll
    for (int run = 0; run < T::RUNS; ++run) {
        const uint4 words = run_of<T>(raw, part, run);
        const float scale = T::scale(raw, part, run), minimum = T::MINIMUM ? T::minimum(raw, part, run) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float w[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int code = (int)(signed char)((word_of(words, i) >> (8 * j)) & 255u) - T::ZERO;
                w[j] = T::MINIMUM ? fmaf(scale, (float)code, -minimum) : scale * (float)code;
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                if (R > 1 && r >= n) break;
                const uint4 bits = cached16(x + r * cols + at + run * T::STRIDE + 4 * i);
                sums[r] = fmaf(w[0], __uint_as_float(bits.x), sums[r]);
                sums[r] = fmaf(w[1], __uint_as_float(bits.y), sums[r]);
                sums[r] = fmaf(w[2], __uint_as_float(bits.z), sums[r]);
                sums[r] = fmaf(w[3], __uint_as_float(bits.w), sums[r]);
            }
        }
    }
}
