// Trellis types: a level is codebook[state], a state is the last 6 + BITS bits of a stream of BITS a value. How such tiles
// lie, and how they become bytes.
//
// Neighbours share most of their bits, so dims lie in runs: a lane owns COUNT dims of each of its cells one after the other,
// as one string of bits, run after run. K: dims COUNT t + i of its four cells; V: dims COUNT g + i of its eight. The six
// bits before a run are the last ones of the lane that has the dims before it; those before a slice lie behind the norms, a
// byte a cell in the order in which the lanes that need them read them.
//
// Two values depend on 6 + 2 BITS bits in a row: a table of 10 of them has both. Of 2 bits that is all, and an entry is
// (a, 0, b, 0): two of them fit into each other. Of 3 bits the first and the last are missing; the first is one of the first
// value's state alone, the last one of the second's, so an entry is (a0, b0, a1, b1), and a selection of the bytes of two
// entries makes four levels.
//
// The integer pipe is what this waits for first, so numbers of entries are moved to where an address has them by pipes that multiply:
// products of halves, which also add the lane's copy (`halves_times`), or floats (`scaled`).
//
// Every bank of shared memory has the whole table (128 KB), or look-ups of 32 lanes would wait for each other 3.5 times.
// Where there is less room, two or four lanes share a copy, in as many banks.

template <int BITS, int WIDTH, int RUNS> struct Trellis : Turbo<BITS, WIDTH> {
    static constexpr int COUNT = WIDTH / RUNS, WORDS = BITS == 3 ? 2 : 4, SPAN = BITS * COUNT, LAST = WIDTH * BITS / 32 - 1;
    static constexpr int BYTES = Turbo<BITS, WIDTH>::BYTES + 32, TABLE = 1024 * 4 * ATT_COPIES, ENTRIES = 1024;
    // Bits of an address below the number of an entry.
    static constexpr int LOW = ATT_COPIES == 32 ? 7 : ATT_COPIES == 16 ? 6 : 5;
    // Of a word of eight values of 3 bits with the six before them, which begin with bit 1: the bits that choose one of two
    // levels in the first and the last entry, and in the second and third. No two of them are in a byte, so that a sum of
    // products of bytes brings each to its nibble of a selection.
    static constexpr u32 OUTER = 1 << 1 | 1 << 12 | 1 << 19 | 1 << 30, INNER = 1 << 7 | 1 << 13 | 1 << 18 | 1 << 24;
    Words<LAST + 1> codes;
    // Bits before the runs: the upper six of a byte each.
    u32 before[RUNS / 4];
    u32 table, copy;

    __device__ __forceinline__ void levels_from(const u32*, u32) {}
    __device__ __forceinline__ void table_at(u32 at, int lane) { table = at, copy = lane % ATT_COPIES * 4; }

    __device__ __forceinline__ void read(u32 base, int lane) {
        codes.read(base, lane);
        const u32 slice = base + Turbo<BITS, WIDTH>::BYTES;
        u32 own[2];
        if (RUNS == 4) own[0] = own[1] = shared4(slice + lane / 4 * 4);
        else {
            const uint2 both = shared8(slice + lane % 4 * 8);
            own[0] = both.x, own[1] = both.y;
        }
        const bool inside = RUNS == 4 ? lane % 4 : lane / 4;
#pragma unroll
        for (int q = 0; q < RUNS / 4; q++) {
            const u32 last = __shfl_up_sync(~0u, pick(two_ends(q, 0), two_ends(q, 2), 0x5410), RUNS == 4 ? 1 : 4);
            before[q] = inside ? last : own[q];
        }
    }

    // Byte `place` of a word `ends` has the last six bits of run 4 q + i as its upper ones.
    static __device__ __forceinline__ constexpr int ends_at(int q, int i) { return SPAN * (4 * q + i + 1) - 8; }
    static __device__ __forceinline__ constexpr int place(int q, int i) { return ends_at(q, i) % 8 ? 0 : ends_at(q, i) % 32 / 8; }
    __device__ __forceinline__ u32 ends(int q, int i) const {
        const int bit = ends_at(q, i);
        return bit % 8 ? from(bit) : codes.w[bit / 32];
    }
    __device__ __forceinline__ u32 two_ends(int q, int i) const {
        return pick(ends(q, i), ends(q, i + 1), place(q, i) | 4 + place(q, i + 1) << 4);
    }

    // Bits from `bit` on.
    __device__ __forceinline__ u32 from(int bit) const {
        const int word = bit / 32, next = word < LAST ? word + 1 : LAST;
        return bit < 0 ? codes.w[0] << -bit : bit % 32 ? __funnelshift_r(codes.w[word], codes.w[next], bit % 32) : codes.w[word];
    }

    // The bits of octet s of a run with the six before them, from bit `at` on.
    __device__ __forceinline__ u32 window(int run, int s, int at) const {
        const int bit = SPAN * run + 8 * BITS * s;
        if (s) return from(bit - 6 - at);
        return __funnelshift_r(before[run / 4] << (24 - run % 4 * 8), from(bit), 26 - at);
    }

    // The ten bits from AT on: number of an entry.
    static __device__ __forceinline__ constexpr u32 number(int at) { return 1023u << at; }
    __device__ __forceinline__ u32 entry(u32 address) const { return shared4(table + address); }
    // The entry that bits AT.. of x are the number of; bits from 24 on are not reached.
    template <int AT> __device__ __forceinline__ u32 entry_at(u32 x) const {
        static_assert(AT + 10 <= 24, "a float has 24 bits");
        if (AT == LOW) return entry((x & number(AT)) | copy);
        return entry(scaled(x & number(AT), AT < LOW ? float(1 << (LOW > AT ? LOW - AT : 0)) : 1.0f / (1 << (AT > LOW ? AT - LOW : 0)), copy));
    }
    // Those of bits AT.. of the lower half of x, and of its upper half: x has nothing else in these.
    template <int AT> __device__ __forceinline__ u32 entry_low(u32 x) const { return entry(halves_times(x, 1 << (LOW - AT), copy)); }
    template <int AT> __device__ __forceinline__ u32 entry_high(u32 x) const { return entry(halves_times(x, 256 << (LOW - AT), copy)); }

    // Levels of an octet of a run: of 3 bits four to a word, of values 0, 1, 6, 7; 5, 3, 4, 2; of 2 bits an entry to a word. Of the
    // last octet of 12 dims there is but the first half.
    __device__ __forceinline__ void octet(int run, int s, u32 (&w)[WORDS]) const {
        const bool whole = 8 * s + 4 < COUNT;
        if constexpr (BITS == 3) {
            const u32 x = window(run, s, 1), ends = x & (number(2) | number(20));
            const u32 first = entry_low<2>(ends), second = entry_at<8>(x), third = whole ? entry_at<14>(x) : 0;
            const u32 last = whole ? entry_high<4>(ends) : 0;
            w[0] = pick(first, last, bytes_times(x & OUTER, 0x80400201u, 0x5410));
            w[1] = pick(second, third, bytes_times(x & INNER, 0x02081040u, 0x0415));
        } else if constexpr (SPAN % 32 == 0 && LOW > 5) {
            // Words begin with runs: but for the first two entries all that is needed is in one.
            const u32 word = codes.w[(SPAN * run + 16 * s) / 32], even = word & (number(2) | number(18)), odd = word & (number(6) | number(22));
            if (s % 2 == 0) {
                const u32 x = window(run, s, LOW - 4);
                w[0] = entry_at<LOW - 4>(x), w[1] = entry_at<LOW>(x), w[2] = entry_low<2>(even), w[3] = entry_low<6>(odd);
            } else w[0] = entry_at<10>(word), w[1] = entry_at<14>(word), w[2] = entry_high<2>(even), w[3] = entry_high<6>(odd);
        } else {
            const u32 x = window(run, s, 5), ends = x & (number(5) | number(17));
            w[0] = entry_low<5>(ends), w[1] = entry_at<9>(x);
            w[2] = whole ? entry_at<13>(x) : 0, w[3] = whole ? entry_high<1>(ends) : 0;
        }
    }
};

// Which of eight values byte i of their two words is the level of.
__device__ __forceinline__ constexpr int dim_of_byte(int i) { return 0x24357610 >> 4 * i & 15; }

// Words of bytes 0 and 2, those of `odd` between those of `even`.
__device__ __forceinline__ u32 between(u32 even, u32 odd) { return even + 256 * odd; }

template <int BITS, int WIDTH> struct TrellisKeys : Trellis<BITS, WIDTH, 4> {
    static constexpr int WORDS = Trellis<BITS, WIDTH, 4>::WORDS;
    static __device__ __forceinline__ int first_dim(int s, int t) { return WIDTH / 4 * t + 8 * s; }
    static __device__ __forceinline__ constexpr int dim_of(int, int i) {
        return BITS == 3 ? dim_of_byte(i) : i / 4 * 4 + i % 2 * 2 + i % 4 / 2;
    }
    __device__ __forceinline__ void group(int n, u32 (&b)[1][2]) const {
        u32 w[WORDS];
        this->octet(n % 4, n / 4, w);
        if constexpr (BITS == 3) b[0][0] = w[0], b[0][1] = w[1];
        else b[0][0] = between(w[0], w[1]), b[0][1] = between(w[2], w[3]);
    }
};

// A word for the product of values has two dims of two cells: weights of two cells are two of four numbers along k, so one product
// sums both dims, one in rows of its own. Its rows are parts of queries, its columns runs: a lane has part g of runs 2 t, 2 t + 1, and
// is left with the first dim of a pair where g is even, with the second where it is odd.
template <int BITS, int WIDTH> struct TrellisValues : Trellis<BITS, WIDTH, 8> {
    static constexpr bool OF_RUNS = true;
    static constexpr int OCTETS = (WIDTH / 8 + 7) / 8, PAIRS = 4 * OCTETS, WORDS = Trellis<BITS, WIDTH, 8>::WORDS;
    static __device__ __forceinline__ constexpr int place(int e, int odd) {
        return e / 4 * 8 + (BITS == 3 ? dim_of_byte(e % 4 * 2 + odd) : e % 4 * 2 + odd);
    }
    static __device__ __forceinline__ int dim(int e, int i, int g, int t) { return WIDTH / 8 * (2 * t + i) + place(e, g % 2); }
    static __device__ __forceinline__ bool is_dim(int e, int g) { return place(e, g % 2) < WIDTH / 8; }
    static __device__ __forceinline__ constexpr bool used(int e) { return place(e, 0) < WIDTH / 8 || place(e, 1) < WIDTH / 8; }
    static __device__ __forceinline__ int query(int g, int) { return g / 2; }
    static __device__ __forceinline__ float of_query(float x) { return __shfl_sync(~0u, x, threadIdx.x % 32 / 8); }
    static __device__ __forceinline__ float joined(const int (&d)[4], int i) {
        const bool odd = threadIdx.x / 4 % 2;
        const int mine = odd ? d[2 + i] : d[i], other = __shfl_xor_sync(~0u, odd ? d[i] : d[2 + i], 4);
        return fmaf((float)(odd ? other : mine), 256.0f, (float)(odd ? mine : other));
    }
    // Weights that were turned, of cells 2 t and 2 t + 1 of two octets, as those of four cells in a row.
    static __device__ __forceinline__ u32 in_a_row(u32 x) {
        const int lane = threadIdx.x % 32, from = lane / 4 * 4 + lane % 2 * 2;
        const u32 first = __shfl_sync(~0u, x, from), second = __shfl_sync(~0u, x, from + 1);
        return pick(first, second, lane % 4 / 2 ? 0x7531 : 0x6420);
    }
    // Word n (of four) of octet s of the lane's cells 2 j and 2 j + 1, for every j.
    __device__ __forceinline__ void words(int s, u32 (&to)[4][4]) const {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u32 a[WORDS], b[WORDS];
            this->octet(2 * j, s, a);
            this->octet(2 * j + 1, s, b);
#pragma unroll
            for (int n = 0; n < 4; n++)
                if constexpr (BITS == 3) to[n][j] = pick(a[n / 2], b[n / 2], n % 2 ? 0x7362 : 0x5140);
                else to[n][j] = between(a[n], b[n]);
        }
    }
};

template <int WIDTH> struct Codes<TURBO3_TCQ, WIDTH> : TrellisKeys<3, WIDTH> {};
template <int WIDTH> struct Codes<TURBO2_TCQ, WIDTH> : TrellisKeys<2, WIDTH> {};
template <int WIDTH> struct ValueCodes<TURBO3_TCQ, WIDTH> : TrellisValues<3, WIDTH> {};
template <int WIDTH> struct ValueCodes<TURBO2_TCQ, WIDTH> : TrellisValues<2, WIDTH> {};
