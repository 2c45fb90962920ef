// Sums of values: sum[dim][query] += v[dim][cell] * weight[cell][query] over the cells of a tile, for a slice of dims.
//
// Dims are the rows of the product, and its eight columns four queries in two parts. Codes are signed bytes, so weights
// become integers too: w = p * scale of the cell, round(w f) = 256 hi + lo, both signed bytes. f is a query's own factor,
// chosen such that a tile's largest integer lies between LEAST and MOST; as long as it does, integers of tile after tile
// are added up. When it does not, or when they could overflow, they are added to the float sums and f is chosen anew.
//
// A lane has weights of cells 8 j + g and query t, and the product wants cells 8 j + 2 t, + 1 of column g: a transposition.

constexpr float LEAST = 256.0f, MOST = 32600.0f;
// What a tile's largest integer becomes: tiles behind one that was too large have smaller ones. With 4,096 for both, sums of eight
// queries were changed in 14 turns of 100 with scores of a standard deviation of 1.4, not in 9.
__device__ __forceinline__ float good(bool below) { return below ? 4096.0f : 16384.0f; }
// 2^31 / (127 * 127 * 32 cells) is 4,160.
constexpr int TILES_BETWEEN_FLUSHES = 4096;

// Where float sums lie that integers are added to: of a pair's first and second dim.
template <int PAIRS> struct InRegisters {
    float sum[PAIRS][2];
    __device__ __forceinline__ float& of(int e, int i) { return sum[e][i]; }
};

// They are touched once in dozens of turns: in shared memory, 128 bytes for the lanes of each, they leave registers to others.
template <int PAIRS> struct InShared {
    static constexpr int BYTES = 2 * PAIRS * 128;
    float* lanes;
    __device__ __forceinline__ float& of(int e, int i) { return lanes[(2 * e + i) * 32]; }
};

template <int TYPE, int WIDTH, template <int> class SUMS = InRegisters> struct Values {
    typedef ValueCodes<TYPE, WIDTH> V;
    static constexpr int PAIRS = V::PAIRS, BLOCKS = V::PER_CELL ? 1 : WIDTH / 32;
    static constexpr int PARTS = V::PARTS;
    static constexpr bool MINIMA = V::MINIMA;
    // Of a pair's first dim (0, 1) and second one (2, 3), V::dim: hi and lo (V::joined).
    int d[PAIRS][4];
    SUMS<PAIRS> sum;
    // Of the lane's cells: sums of what minima are worth, for 32 dims each.
    float low[MINIMA ? BLOCKS : 1];
    float f, inverse;
    int tiles;

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            d[e][0] = d[e][1] = d[e][2] = d[e][3] = 0;
            sum.of(e, 0) = sum.of(e, 1) = 0;
        }
#pragma unroll
        for (int b = 0; b < (MINIMA ? BLOCKS : 1); b++) low[b] = 0;
        f = 0, inverse = 0, tiles = 0;
    }

    __device__ __forceinline__ void flush() {
        const float unit = V::of_query(inverse);
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
#pragma unroll
            for (int i = 0; i < 2; i++) sum.of(e, i) = fmaf(V::joined(d[e], i), unit, sum.of(e, i));
            d[e][0] = d[e][1] = d[e][2] = d[e][3] = 0;
        }
        tiles = 0;
    }

    // All sums so far times a query's factor.
    __device__ __forceinline__ void rescale(float by) {
        flush();
        const float own = V::of_query(by);
#pragma unroll
        for (int e = 0; e < PAIRS; e++) sum.of(e, 0) *= own, sum.of(e, 1) *= own;
#pragma unroll
        for (int b = 0; b < (MINIMA ? BLOCKS : 1); b++) low[b] *= by;
    }

    // Weights of the lane's cells in 32 dims; or in all, where a cell has one norm.
    __device__ __forceinline__ void weigh(const float (&p)[4], u32 scales, int block, int g, float (&w)[4]) const {
        four(scales + 64 * block + 8 * g, w);
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] *= p[j];
    }

    // The lane's largest weight. w: the weights, if a cell has one norm or scale.
    __device__ __forceinline__ float top(const float (&p)[4], u32 scales, int g, float (&w)[4]) const {
        if constexpr (BLOCKS == 1) {
            weigh(p, scales, 0, g, w);
            return fmaxf(fmaxf(fabsf(w[0]), fabsf(w[1])), fmaxf(fabsf(w[2]), fabsf(w[3])));
        }
        float largest[4] = {0, 0, 0, 0}, most = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            float of[4];
            four(scales + 64 * b + 8 * g, of);
#pragma unroll
            for (int j = 0; j < 4; j++) largest[j] = fmaxf(largest[j], fabsf(of[j]));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) most = fmaxf(most, p[j] * largest[j]);
        return most;
    }

    // Whether the largest weight of a lane is not too large for the sums as they are, and whether that of a query (of any
    // of its lanes) is not too small.
    __device__ __forceinline__ bool below(float most) const { return most * f <= MOST; }
    __device__ __forceinline__ bool above(float most) const { return most * f >= LEAST; }

    __device__ __forceinline__ void refit(float most) {
        flush();
        if (most > 0 && !(below(most) && above(most))) inverse = most * (1 / good(below(most))), f = good(below(most)) / most;
    }

    // Adding 1.5 * 2^23 rounds and leaves the integer in the low bits. lo counts from -128 on: with 128 more hi is rounded, and lo has
    // its top bit turned.
    static __device__ __forceinline__ u32 rounded(float w, float factor) { return __float_as_uint(fmaf(w, factor, 12582912.0f + 128.0f)); }

    // The weights for column g of two octets of cells, which are turned as one matrix of pairs of bytes: of cells 2 t of both, then of
    // cells 2 t + 1.
    __device__ __forceinline__ u32 turned(float first, float second) const {
        return transpose(pick(rounded(first, f), rounded(second, f), 0x4051) ^ 0x80800000u);
    }

    // The weights as the product takes them.
    __device__ __forceinline__ void integers(const float (&w)[4], u32 (&b)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) b[i] = pick(turned(w[2 * i], w[2 * i + 1]), 0, 0x3120);
    }

    // Add a tile to the sums of all sets, which share the codes.
    template <int SETS>
    static __device__ __forceinline__ void add(Values (&sets)[SETS], const V& v, u32 scales, int g,
                                               const float (&p)[SETS][4], float (&w)[SETS][4]) {
        if constexpr (V::OF_RUNS) add_runs(sets, v, w);
        else add_columns(sets, v, scales, g, p, w);
#pragma unroll
        for (int n = 0; n < SETS; n++) sets[n].tiles++;
    }

    template <int SETS>
    static __device__ __forceinline__ void add_columns(Values (&sets)[SETS], const V& v, u32 scales, int g,
                                                       const float (&p)[SETS][4], float (&w)[SETS][4]) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            u32 q[SETS][2];
#pragma unroll
            for (int n = 0; n < SETS; n++) {
                if (BLOCKS > 1) sets[n].weigh(p[n], scales, b, g, w[n]);
                sets[n].integers(w[n], q[n]);
            }
            if constexpr (MINIMA) {
                float d[4], m[4];
                four(scales + 64 * b + 8 * g, d);
                four(scales + 64 * (BLOCKS + b) + 8 * g, m);
#pragma unroll
                for (int j = 0; j < 4 * SETS; j++)
                    sets[j / 4].low[b] = fmaf(p[j / 4][j % 4], fmaf((float)V::ZERO, d[j % 4], m[j % 4]), sets[j / 4].low[b]);
            }
#pragma unroll
            for (int e = b * PAIRS / BLOCKS; e < (b + 1) * PAIRS / BLOCKS; e++) {
                u32 a[PARTS][2], b[PARTS][2];
                v.group(2 * e, a);
                v.group(2 * e + 1, b);
#pragma unroll
                for (int n = 0; n < SETS * PARTS; n++) {
                    const int part = n % PARTS;
                    const u32(&of)[2] = q[n / PARTS];
                    mma_s8_32(sets[n / PARTS].d[e], a[part][0], b[part][0], a[part][1], b[part][1], make_uint2(of[0], of[1]));
                }
            }
        }
    }

    template <int SETS>
    static __device__ __forceinline__ void add_runs(Values (&sets)[SETS], const V& v, const float (&w)[SETS][4]) {
        u32 r[SETS][2];
#pragma unroll
        for (int n = 0; n < 2 * SETS; n++) r[n / 2][n % 2] = V::in_a_row(sets[n / 2].turned(w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]));
#pragma unroll
        for (int s = 0; s < PAIRS / 4; s++) {
            u32 words[4][4];
            v.words(s, words);
#pragma unroll
            for (int n = 0; n < 4 * SETS; n++)
                if (V::used(4 * s + n % 4)) mma_s8_64_of_two(sets[n / 4].d[4 * s + n % 4], r[n / 4][0], r[n / 4][1], words[n % 4]);
        }
    }

    // Sums of the pairs' dims (V::dim), of a query (V::query).
    __device__ __forceinline__ void finish(float (&y)[PAIRS][2]) {
        flush();
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            y[e][0] = sum.of(e, 0), y[e][1] = sum.of(e, 1);
            // A unit of a sum is 1 / (128 / ZERO).
            if constexpr (MINIMA) {
                const float all = query_sum(low[e / 2]) * (128 / V::ZERO);
                y[e][0] += all, y[e][1] += all;
            }
        }
    }
};

// Values that are read as floats of 16 bits: weights are two such floats each, and sums floats from the start. Where cells have
// norms, a weight is p * norm * f, with a factor f that keeps it in the same bounds as integers.
template <typename FLOATS, int TYPE, int WIDTH> struct FloatValues {
    static constexpr int PAIRS = WIDTH / 16;
    typedef ValueCodes<TYPE, WIDTH> V;
    float sum[PAIRS][4];
    float f;
    int tiles;

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int e = 0; e < PAIRS; e++) sum[e][0] = sum[e][1] = sum[e][2] = sum[e][3] = 0;
        f = V::NORMS ? 0.0f : 1.0f, tiles = 0;
    }
    __device__ __forceinline__ void rescale(float by) {
#pragma unroll
        for (int e = 0; e < PAIRS; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[e][i] *= by;
    }
    // Weights are 2^(score - reference), which has to stay a half, or the norm of a cell times that.
    __device__ __forceinline__ float top(const float (&p)[4], u32 scales, int g, float (&w)[4]) const {
        if constexpr (V::NORMS) four(scales + 8 * g, w);
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] = V::NORMS ? w[j] * p[j] : p[j];
        return fmaxf(fmaxf(w[0], w[1]), fmaxf(w[2], w[3]));
    }
    __device__ __forceinline__ bool below(float most) const { return most * f <= MOST; }
    __device__ __forceinline__ bool above(float most) const { return !V::NORMS || most * f >= LEAST; }
    __device__ __forceinline__ void refit(float most) {
        if (!V::NORMS || !(most > 0) || (below(most) && above(most))) return;
        const float now = good(below(most)) / most;
        if (f > 0) rescale(now / f);
        f = now;
    }

    template <int SETS>
    static __device__ __forceinline__ void add(Values<TYPE, WIDTH> (&sets)[SETS], const V& v, u32, int,
                                               const float (&)[SETS][4], const float (&w)[SETS][4]) {
        u32 r[SETS][4];
#pragma unroll
        for (int j = 0; j < 4 * SETS; j++) {
            const float x = w[j / 4][j % 4] * sets[j / 4].f;
            const u32 hi = FLOATS::two(x, 0);
            r[j / 4][j % 4] = transpose(pick(hi, FLOATS::two(x - FLOATS::first(hi), 0), 0x5410));
        }
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            const uint4 a = v.group(2 * e), b = v.group(2 * e + 1);
#pragma unroll
            for (int n = 0; n < SETS; n++) {
                FLOATS::mma(sets[n].sum[e], a.x, b.x, a.y, b.y, r[n][0], r[n][1]);
                FLOATS::mma(sets[n].sum[e], a.z, b.z, a.w, b.w, r[n][2], r[n][3]);
            }
        }
    }

    __device__ __forceinline__ void finish(float (&y)[PAIRS][2]) {
        const float inverse = f > 0 ? 1.0f / f : 0.0f;
#pragma unroll
        for (int e = 0; e < PAIRS; e++)
            y[e][0] = (sum[e][0] + sum[e][1]) * inverse, y[e][1] = (sum[e][2] + sum[e][3]) * inverse;
    }
};

template <int WIDTH> struct Values<F16, WIDTH, InRegisters> : FloatValues<OfHalves, F16, WIDTH> {};
template <int WIDTH> struct Values<BF16, WIDTH, InRegisters> : FloatValues<OfBfloats, BF16, WIDTH> {};
template <int WIDTH> struct Values<TURBO8, WIDTH, InRegisters> : FloatValues<OfHalves, TURBO8, WIDTH> {};

// Whether the sums take weights of a turn as they are, of which the largest of the lane is most[n] in set n.
template <typename VALUES, int SETS> __device__ __forceinline__ bool fit(const VALUES (&sets)[SETS], const float (&most)[SETS]) {
    bool below = sets[0].tiles < TILES_BETWEEN_FLUSHES;
    u32 above = ~0u;
#pragma unroll
    for (int n = 0; n < SETS; n++) {
        below &= sets[n].below(most[n]);
        u32 lanes = __ballot_sync(~0u, sets[n].above(most[n]));
        lanes |= lanes >> 16, lanes |= lanes >> 8;
        above &= lanes | lanes >> 4;
    }
    return __all_sync(~0u, below) && (above & 15) == 15;
}
