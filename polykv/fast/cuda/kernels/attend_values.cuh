// Sums of values: sum[dim][query] += v[dim][cell] * weight[cell][query] over the cells of a tile, for a slice of dims.
//
// Dims are the rows of the product, and its eight columns four queries in two parts. Codes are signed bytes, so weights
// become integers too: w = p * scale of the cell, round(w f) = 256 hi + lo, both signed bytes. f is a query's own factor,
// chosen such that a tile's largest integer lies between LEAST and MOST; as long as it does, integers of tile after tile
// are added up. When it does not, or when they could overflow, they are added to the float sums and f is chosen anew. With
// scores of a standard deviation of 1.4 that happens in 2 of 100 turns (with LEAST = 1024 it were 16).
//
// A lane has weights of cells 8 j + g and query t, and the product wants cells 8 j + 2 t, + 1 of column g: a transposition.

constexpr float LEAST = 256.0f, MOST = 32600.0f, GOOD = 4096.0f;
// 2^31 / (127 * 127 * 32 cells) is 4,160.
constexpr int TILES_BETWEEN_FLUSHES = 4096;

template <int TYPE, int WIDTH> struct Values {
    typedef ValueCodes<TYPE, WIDTH> V;
    static constexpr int PAIRS = V::PAIRS, BLOCKS = V::PER_CELL ? 1 : WIDTH / 32;
    static constexpr int PARTS = V::PARTS;
    static constexpr bool MINIMA = V::MINIMA;
    // Of a pair's first dim (0, 1) and second one (2, 3), V::dim: hi and lo.
    int d[PAIRS][4];
    float sum[PAIRS][2];
    // Of the lane's cells: sums of what minima are worth, for 32 dims each.
    float low[MINIMA ? BLOCKS : 1];
    float f, inverse;
    int tiles;

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            d[e][0] = d[e][1] = d[e][2] = d[e][3] = 0;
            sum[e][0] = sum[e][1] = 0;
        }
#pragma unroll
        for (int b = 0; b < (MINIMA ? BLOCKS : 1); b++) low[b] = 0;
        f = 0, inverse = 0, tiles = 0;
    }

    __device__ __forceinline__ void flush() {
#pragma unroll
        for (int e = 0; e < PAIRS; e++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum[e][i] = fmaf(fmaf((float)d[e][2 * i], 256.0f, (float)d[e][2 * i + 1]), inverse, sum[e][i]);
                d[e][2 * i] = d[e][2 * i + 1] = 0;
            }
        tiles = 0;
    }

    // All sums so far times a query's factor.
    __device__ __forceinline__ void rescale(float by) {
        flush();
#pragma unroll
        for (int e = 0; e < PAIRS; e++) sum[e][0] *= by, sum[e][1] *= by;
#pragma unroll
        for (int b = 0; b < (MINIMA ? BLOCKS : 1); b++) low[b] *= by;
    }

    // Weights of the lane's cells in 32 dims; or in all, where a cell has one norm.
    __device__ __forceinline__ void weigh(const float (&p)[4], u32 scales, int block, int g, float (&w)[4]) const {
        four(scales + 64 * block + 8 * g, w);
#pragma unroll
        for (int j = 0; j < 4; j++) w[j] *= p[j];
    }

    // The lane's largest weight. w: the weights, if there is one norm per cell.
    __device__ __forceinline__ float top(const float (&p)[4], u32 scales, int g, float (&w)[4]) const {
        float most = 0;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            weigh(p, scales, b, g, w);
#pragma unroll
            for (int j = 0; j < 4; j++) most = fmaxf(most, V::PER_CELL ? w[j] : fabsf(w[j]));
        }
        return most;
    }

    // Whether the largest weight of a lane is not too large for the sums as they are, and whether that of a query (of any
    // of its lanes) is not too small.
    __device__ __forceinline__ bool below(float most) const { return most * f <= MOST; }
    __device__ __forceinline__ bool above(float most) const { return most * f >= LEAST; }

    __device__ __forceinline__ void refit(float most) {
        flush();
        if (most > 0 && !(below(most) && above(most))) f = GOOD / most, inverse = most / GOOD;
    }

    // The weights of cells 8 j + 2 t and + 1 for column g, each as two bytes that are the same; times factor.
    static __device__ __forceinline__ void turned(const float (&w)[4], float factor, u32 (&r)[4]) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            // Adding 1.5 * 2^23 rounds and leaves the integer in the low bits. lo counts from -128 on: hi is rounded.
            const u32 x = __float_as_uint(fmaf(w[j], factor, 12582912.0f));
            r[j] = transpose(pick(x, x + 128, 0x0055));
        }
    }

    // The weights as the product takes them; for its second part with signs turned.
    __device__ __forceinline__ void integers(const float (&w)[4], u32 (&b)[PARTS][2]) const {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            u32 r[4];
            turned(w, part ? -f : f, r);
            b[part][0] = pick(r[0], r[1], 0x6420), b[part][1] = pick(r[2], r[3], 0x6420);
        }
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
            u32 q[SETS][PARTS][2];
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
                    const u32(&w_of)[2] = q[n / PARTS][part];
                    mma_s8_32(sets[n / PARTS].d[e], a[part][0], b[part][0], a[part][1], b[part][1], make_uint2(w_of[0], w_of[1]));
                }
            }
        }
    }

    // Of a run four or two dims of one cell are a word. It is multiplied as often, each time with weights that are zero for
    // all but one of them: nothing is moved from word to word.
    template <int SETS>
    static __device__ __forceinline__ void add_runs(Values (&sets)[SETS], const V& v, const float (&w)[SETS][4]) {
        constexpr int WORDS = V::WORDS, TIMES = 8 / WORDS;
        u32 r[SETS][4];
#pragma unroll
        for (int n = 0; n < SETS; n++) turned(w[n], sets[n].f, r[n]);
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < PAIRS / 4; e++) {
                u32 a[WORDS], b[WORDS];
                v.octet(2 * j, e, a);
                v.octet(2 * j + 1, e, b);
#pragma unroll
                for (int n = 0; n < 4 * SETS; n++) {
                    const int i = n % 4 / TIMES * 2, up = n % TIMES * (32 / TIMES);
                    const u32 of = r[n / 4][j];
                    if (V::is_dim(4 * e + n % 4, 0))
                        mma_s8_32(sets[n / 4].d[4 * e + n % 4], a[i], a[i + 1], b[i], b[i + 1], make_uint2((of & 255) << up, (of >> 24) << up));
                }
            }
    }

    // Sums of the pairs' dims (V::dim), of query t.
    __device__ __forceinline__ void finish(float (&y)[PAIRS][2]) {
        flush();
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            y[e][0] = sum[e][0], y[e][1] = sum[e][1];
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
        const float now = GOOD / most;
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

template <int WIDTH> struct Values<F16, WIDTH> : FloatValues<OfHalves, F16, WIDTH> {};
template <int WIDTH> struct Values<BF16, WIDTH> : FloatValues<OfBfloats, BF16, WIDTH> {};
template <int WIDTH> struct Values<TURBO8, WIDTH> : FloatValues<OfHalves, TURBO8, WIDTH> {};
