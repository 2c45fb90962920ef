// How the codes of a tile lie in memory and become fragments of a product (docs/CUDA.md draws it).
//
// A tile is 32 cells of one K/V head; a slice of it, up to 128 dims, is what one warp multiplies. In a slice the work is
// cut into steps of 32 dims for K and into columns of 8 dims for V, and every lane (g, t) reads only codes of its own:
//
//   K, step s, octet j    dims 32 s + 8 t + i of cell 8 j + g, i = 0..7
//   V, column m           dim 8 m + g of the eight cells  2t, 2t + 1 (+ 0, 8, 16, 24)
//
// Either way a lane owns WIDTH codes of a slice WIDTH wide, in groups of eight: group 4 s + j of K, group m of V. What
// belongs to a lane is stored in chunks of 16 bytes (at the end 8 or 4), lane after lane, so that a warp reads 512 bytes
// in a row. Norms and scales are halves in the order of the lanes' scores, cell 8 j + g at [g][j], behind the codes.

enum { F16, BF16, Q8_0, Q6_0, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL, TURBO8, TURBO4, TURBO3, TURBO2, TURBO3_TCQ, TURBO2_TCQ };

// Which dims a lane owns, as above. TABLE: bytes of shared memory that levels take, ENTRIES words in each copy; MINIMA: whether
// there is a minimum beside every scale.
template <int WIDTH> struct Order {
    static constexpr int TABLE = 0, ENTRIES = 1;
    static constexpr bool MINIMA = false;
    __device__ __forceinline__ void table_at(u32, int) {}
    // K: the first dim of a lane's octet of step s, and which one of the octet is byte i of a part.
    static __device__ __forceinline__ int first_dim(int s, int t) { return 32 * s + 8 * t; }
    static __device__ __forceinline__ constexpr int dim_of(int, int i) { return i; }
    // Orders of dims that parts have.
    static constexpr int ORDERS = 1;
    // V: sum i (0, 1) of pair e is that of dim dim(e, i, g, t) of query query(g, t), where there is one.
    static constexpr bool OF_RUNS = false;
    static constexpr int PAIRS = WIDTH / 16;
    static __device__ __forceinline__ int dim(int e, int i, int g, int) { return 16 * e + 8 * i + g; }
    static __device__ __forceinline__ bool is_dim(int, int) { return true; }
    static __device__ __forceinline__ int query(int, int t) { return t; }
    // x of that query, where a lane has that of query t.
    static __device__ __forceinline__ float of_query(float x) { return x; }
    // Sum i, of the four numbers of a product.
    static __device__ __forceinline__ float joined(const int (&d)[4], int i) { return fmaf((float)d[2 * i], 256.0f, (float)d[2 * i + 1]); }
};

// N words of a lane from a region of N * 128 bytes.
template <int N> struct Words {
    u32 w[N];
    __device__ __forceinline__ void read(u32 base, int lane) {
        constexpr int FOURS = N / 4, TWOS = N % 4 / 2;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            uint4 v = shared16(base + 512 * i + 16 * lane);
            w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
        }
        if constexpr (TWOS) {
            uint2 v = shared8(base + 512 * FOURS + 8 * lane);
            w[4 * FOURS] = v.x, w[4 * FOURS + 1] = v.y;
        }
        if constexpr (N % 2) w[N - 1] = shared4(base + 512 * FOURS + 256 * TWOS + 4 * lane);
    }
};

// Rotated types: one norm per cell and slice; codes are indices of levels, which lie as signed bytes in registers. PARTS: products
// whose sum is a value's; see Sixteen.
template <int BITS, int WIDTH> struct Turbo : Order<WIDTH> {
    static constexpr bool PER_CELL = true;
    static constexpr int CODES = WIDTH * 4 * BITS, SCALES = 64, BYTES = CODES + SCALES, PARTS = 1;
};

// Two codes to a nibble.
template <int WIDTH> struct Turbo2 : Turbo<2, WIDTH> {
    Words<WIDTH / 16> two;
    u32 levels, by2, by16;
    __device__ __forceinline__ void units(u32 one) { by2 = one << 30, by16 = one << 16; }
    __device__ __forceinline__ void levels_from(const u32* table, u32 one) { levels = table[0], units(one); }
    __device__ __forceinline__ void read(u32 base, int lane) { two.read(base, lane); }
    // The codes of a group as nibbles.
    __device__ __forceinline__ u32 nibbles(int n) const { return (n % 2 ? down(two.w[n / 2], by2) : two.w[n / 2]) & 0x33333333u; }
    __device__ __forceinline__ void group(int n, u32 (&b)[1][2]) const {
        const u32 sel = nibbles(n);
        b[0][0] = pick(levels, levels, sel), b[0][1] = pick(levels, levels, down(sel, by16));
    }
};

// Two planes: two bits as in Turbo2, and the third of four codes to a nibble.
template <int WIDTH> struct Turbo3 : Turbo<3, WIDTH> {
    Words<WIDTH / 16> two;
    Words<WIDTH / 32> one;
    u32 low, high, by1, by2, by16;
    __device__ __forceinline__ void units(u32 one) { by1 = one << 31, by2 = one << 30, by16 = one << 16; }
    __device__ __forceinline__ void levels_from(const u32* table, u32 one) { low = table[0], high = table[1], units(one); }
    __device__ __forceinline__ void read(u32 base, int lane) {
        two.read(base, lane);
        one.read(base + WIDTH * 8, lane);
    }
    __device__ __forceinline__ u32 nibbles(int n) const {
        const u32 w = one.w[n / 4], x = n % 2 ? down(two.w[n / 2], by2) : two.w[n / 2];
        // Bit n % 4 of every nibble to its bit 2.
        const u32 top = n % 4 == 0 ? w * 4 : n % 4 == 1 ? w * 2 : n % 4 == 2 ? w : down(w, by1);
        return (x & 0x33333333u) | (top & 0x44444444u);
    }
    __device__ __forceinline__ void group(int n, u32 (&b)[1][2]) const {
        const u32 sel = nibbles(n);
        b[0][0] = pick(low, high, sel), b[0][1] = pick(low, high, down(sel, by16));
    }
};

// Codes of sixteen levels, eight below zero and eight above. A selection whose nibble has its top bit set gives eight copies of the sign of
// the byte. So the nibble itself picks levels below zero, with -1 for the codes from 8 on, and the nibble with its top bit
// turned picks levels above, with 0 for the others: of those one more is kept, and the sum of two products is that of the values.
template <int WIDTH> struct Sixteen {
    Words<WIDTH / 8> codes;
    u32 above[2], below[2], by16;
    __device__ __forceinline__ void units(u32 one) { by16 = one << 16; }
    __device__ __forceinline__ void levels_from(const u32* table, u32 one) {
        for (int i = 0; i < 2; i++) below[i] = table[i], above[i] = table[2 + i] + 0x01010101u;
        units(one);
    }
    __device__ __forceinline__ void read(u32 base, int lane) { codes.read(base, lane); }
    __device__ __forceinline__ u32 nibbles(int n) const { return codes.w[n]; }
    __device__ __forceinline__ void group(int n, u32 (&b)[2][2]) const {
        const u32 w = codes.w[n], turned = w ^ 0x88888888u;
        b[0][0] = pick(above[0], above[1], turned), b[0][1] = pick(above[0], above[1], down(turned, by16));
        b[1][0] = pick(below[0], below[1], w), b[1][1] = pick(below[0], below[1], down(w, by16));
    }
};

template <int WIDTH> struct Turbo4 : Turbo<4, WIDTH>, Sixteen<WIDTH> {
    static constexpr int PARTS = 2;
};

// Scalar types: a scale for every 32 dims of a cell, in a region [step][g][j].
template <int WIDTH> struct Q8 : Order<WIDTH> {
    static constexpr bool PER_CELL = false;
    static constexpr int CODES = WIDTH * 32, SCALES = WIDTH / 32 * 64, BYTES = CODES + SCALES, PARTS = 1;
    u32 base;
    int lane;
    __device__ __forceinline__ void levels_from(const u32*, u32) {}
    __device__ __forceinline__ void read(u32 at, int l) { base = at, lane = l; }
    __device__ __forceinline__ void group(int n, u32 (&b)[1][2]) const {
        // Two groups to a chunk.
        const uint2 v = shared8(base + n / 2 * 512 + 16 * lane + n % 2 * 8);
        b[0][0] = v.x, b[0][1] = v.y;
    }
};

// Nibbles with UPPER bits more, which lie in a plane of their own as those of Turbo3 do. Codes become bytes: moved up as far as
// they go, their top bit turned, so that ZERO, half of the codes, is 0. Where there are minima, y = d (c - ZERO) + (m + ZERO d),
// and what is in the second brackets is added to scores and sums apart.
template <int WIDTH, int UPPER, bool RANGED> struct Nibbles : Order<WIDTH> {
    static constexpr bool PER_CELL = false, MINIMA = RANGED;
    static constexpr int CODES = WIDTH * 4 * (4 + UPPER), SCALES = WIDTH / 32 * 64 * (1 + RANGED), BYTES = CODES + SCALES, PARTS = 1;
    static constexpr int ZERO = 8 << UPPER, UP = 4 - UPPER;
    static constexpr u32 LOW = UPPER == 0 ? 0xF0F0F0F0u : UPPER == 1 ? 0x78787878u : 0x3C3C3C3Cu, TOP = UPPER == 1 ? 0x80808080u : 0xC0C0C0C0u;
    Words<WIDTH / 8> codes;
    Words<UPPER ? WIDTH * UPPER / 32 : 1> upper;
    __device__ __forceinline__ void levels_from(const u32*, u32) {}
    __device__ __forceinline__ void read(u32 base, int lane) {
        codes.read(base, lane);
        if (UPPER) upper.read(base + WIDTH * 16, lane);
    }
    __device__ __forceinline__ void group(int n, u32 (&b)[1][2]) const {
        const u32 w = codes.w[n];
        b[0][0] = w << UP & LOW, b[0][1] = w >> UPPER & LOW;
        if constexpr (UPPER > 0) {
            // In the word a group's bits are the n-th of every nibble.
            constexpr int PER = 4 / UPPER;
            const u32 h = upper.w[n / PER];
            const int up = UP + 4 - UPPER * (n % PER);
            b[0][0] |= h << up & TOP, b[0][1] |= h << up - 4 & TOP;
        }
        b[0][0] ^= 0x80808080u, b[0][1] ^= 0x80808080u;
    }
};

// Sixteen levels with a scale for every 32 dims.
template <int WIDTH> struct Iq4 : Order<WIDTH>, Sixteen<WIDTH> {
    static constexpr bool PER_CELL = false;
    static constexpr int CODES = WIDTH * 16, SCALES = WIDTH / 32 * 64, BYTES = CODES + SCALES, PARTS = 2;
};

// fp16 and bfloat16: 16 bytes a group; of K a lane's eight dims, of V its eight cells. NORMS: whether cells have norms.
template <int WIDTH> struct Half : Order<WIDTH> {
    static constexpr bool PER_CELL = false, NORMS = false;
    static constexpr int CODES = WIDTH * 64, SCALES = 0, BYTES = CODES;
    u32 base;
    int lane;
    __device__ __forceinline__ void levels_from(const u32*, u32) {}
    __device__ __forceinline__ void read(u32 at, int l) { base = at, lane = l; }
    __device__ __forceinline__ uint4 group(int n) const { return shared16(base + 512 * n + 16 * lane); }
};

// 256 levels, which are looked up as halves.
template <int WIDTH> struct Turbo8 : Order<WIDTH> {
    static constexpr bool PER_CELL = true, NORMS = true;
    static constexpr int CODES = WIDTH * 32, SCALES = 64, BYTES = CODES + SCALES, TABLE = 512, ENTRIES = 128;
    u32 base, table;
    int lane;
    __device__ __forceinline__ void levels_from(const u32*, u32) {}
    __device__ __forceinline__ void table_at(u32 at, int) { table = at; }
    __device__ __forceinline__ void read(u32 at, int l) { base = at, lane = l; }
    // Two codes of a word as halves.
    __device__ __forceinline__ u32 two(u32 codes) const {
        return shared2(table + 2 * (codes & 255)) | shared2(table + 2 * (codes >> 8 & 255)) << 16;
    }
    __device__ __forceinline__ uint4 group(int n) const {
        const uint2 v = shared8(base + n / 2 * 512 + 16 * lane + n % 2 * 8);
        return make_uint4(two(v.x), two(v.x >> 16), two(v.y), two(v.y >> 16));
    }
};

template <int TYPE, int WIDTH> struct Codes;
template <int WIDTH> struct Codes<F16, WIDTH> : Half<WIDTH> {};
template <int WIDTH> struct Codes<Q8_0, WIDTH> : Q8<WIDTH> {};
template <int WIDTH> struct Codes<BF16, WIDTH> : Half<WIDTH> {};
template <int WIDTH> struct Codes<Q6_0, WIDTH> : Nibbles<WIDTH, 2, false> {};
template <int WIDTH> struct Codes<Q5_1, WIDTH> : Nibbles<WIDTH, 1, true> {};
template <int WIDTH> struct Codes<Q5_0, WIDTH> : Nibbles<WIDTH, 1, false> {};
template <int WIDTH> struct Codes<Q4_1, WIDTH> : Nibbles<WIDTH, 0, true> {};
template <int WIDTH> struct Codes<Q4_0, WIDTH> : Nibbles<WIDTH, 0, false> {};
template <int WIDTH> struct Codes<IQ4_NL, WIDTH> : Iq4<WIDTH> {};
template <int WIDTH> struct Codes<TURBO8, WIDTH> : Turbo8<WIDTH> {};
template <int WIDTH> struct Codes<TURBO4, WIDTH> : Turbo4<WIDTH> {};
template <int WIDTH> struct Codes<TURBO3, WIDTH> : Turbo3<WIDTH> {};
template <int WIDTH> struct Codes<TURBO2, WIDTH> : Turbo2<WIDTH> {};

// As values, where that is another order.
template <int TYPE, int WIDTH> struct ValueCodes : Codes<TYPE, WIDTH> {};

// Four halves as floats.
__device__ __forceinline__ void four(u32 at, float (&x)[4]) {
    uint2 v = shared8(at);
    x[0] = f16_to_f32(v.x & 0xFFFF), x[1] = f16_to_f32(v.x >> 16);
    x[2] = f16_to_f32(v.y & 0xFFFF), x[3] = f16_to_f32(v.y >> 16);
}
