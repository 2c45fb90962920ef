// Softmax of scores as products of tensor cores give them: a warp has 16 I rows, a lane rows 16 i + 8 h + g, number 2 i + h,
// each with two cells of every octet, x[i][octet][2 h + 0, 1].
//
// Weights are 2^(score - reference) as halves. The reference is moved only when a weight would leave 2^15, to where the
// largest is 2^4: after the first turns hardly ever, and weights of 2^-20 of the largest still have all of their bits.
constexpr float NOTHING = -1e30f, MOST = 15.0f, GOOD = 4.0f, LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;

template <int I> struct Softmax {
    float reference[2 * I], total[2 * I];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int r = 0; r < 2 * I; ++r) reference[r] = NOTHING, total[r] = 0;
    }

    // What all sums have to be multiplied with, now that scores of up to `top` times a unit come; whether it is not 1 for all.
    __device__ __forceinline__ bool refit(const float (&top)[2 * I], const float (&unit)[2 * I], float (&by)[2 * I], float most = MOST) {
        bool moved = false;
#pragma unroll
        for (int r = 0; r < 2 * I; ++r) {
            const float high = top[r] * unit[r];
            by[r] = 1;
            if (high > reference[r] + most) {
                by[r] = power2(reference[r] - (high - GOOD));
                reference[r] = high - GOOD, total[r] *= by[r], moved = true;
            }
        }
        return __ballot_sync(~0u, moved) != 0;
    }

    // Scores to weights.
    template <int O> __device__ __forceinline__ void weigh(float (&x)[I][O][4], const float (&unit)[2 * I]) {
#pragma unroll
        for (int r = 0; r < 2 * I; ++r)
#pragma unroll
            for (int e = 0; e < 2 * O; ++e) {
                float& y = x[r / 2][e / 2][r % 2 * 2 + e % 2];
                y = power2(fmaf(y, unit[r], -reference[r]));
                total[r] += y;
            }
    }

    // Scores to weights, and the sums of a lane's, while the reference stays; false if one may be above 2^MOST.
    template <int O> __device__ __forceinline__ bool weigh_as_before(float (&x)[I][O][4], const float (&unit)[2 * I], float (&sum)[2 * I]) const {
        bool fit = true;
#pragma unroll
        for (int r = 0; r < 2 * I; ++r) {
            float part[2] = {0, 0};
#pragma unroll
            for (int e = 0; e < 2 * O; ++e) {
                float& y = x[r / 2][e / 2][r % 2 * 2 + e % 2];
                y = power2(fmaf(y, unit[r], -reference[r]));
                part[e % 2] += y;
            }
            sum[r] = part[0] + part[1];
            fit = fit && sum[r] <= 32768.0f;
        }
        return fit;
    }
};

// The largest score of every row among the cells of a warp, in units: four at a time, or each would wait for the one before.
template <int I, int O> __device__ __forceinline__ void largest_of_warp(const float (&x)[I][O][4], float (&top)[2 * I]) {
#pragma unroll
    for (int r = 0; r < 2 * I; ++r) {
        float part[4];
#pragma unroll
        for (int e = 0; e < 2 * O; ++e) {
            const float y = x[r / 2][e / 2][r % 2 * 2 + e % 2];
            part[e % 4] = e < 4 ? y : fmaxf(part[e % 4], y);
        }
        top[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
}

// Scores, capped; from here on their unit is 1.
template <int I, int O> __device__ __forceinline__ void cap(float (&x)[I][O][4], float (&units)[2 * I], float limit) {
#pragma unroll
    for (int r = 0; r < 2 * I; ++r) {
#pragma unroll
        for (int e = 0; e < 2 * O; ++e) {
            float& y = x[r / 2][e / 2][r % 2 * 2 + e % 2];
            y = limit * tanhf(y * units[r] / limit);
        }
        units[r] = 1;
    }
}

// Weights of two octets as operands of 16 cells.
__device__ __forceinline__ uint4 operands(const float (&a)[4], const float (&b)[4]) {
    return {f32_to_f16x2(a[0], a[1]), f32_to_f16x2(a[2], a[3]), f32_to_f16x2(b[0], b[1]), f32_to_f16x2(b[2], b[3])};
}
