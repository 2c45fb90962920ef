// Trellis types: a level is codebook[state], a state is the last 6 + BITS bits of a stream of BITS a value. How such tiles
// lie, and how they become bytes.
//
// Neighbours share most of their bits, so dims lie in runs: a lane owns COUNT dims of each of its cells one after the other,
// as one string of bits, run after run. K: dims COUNT t + i of its four cells; V: dims COUNT g + i of its eight. The six
// bits before a run are the last ones of the lane that has the dims before it; those before a slice lie behind the norms, a
// byte a cell in the order in which the lanes that need them read them.
//
// Two values depend on 6 + 2 BITS bits in a row: a table of 10 of them has both. Of 2 bits that is all, and an entry is
// (a, 0, b, 0), which is multiplied as it is: products are cheap. Of 3 bits the first and the last are missing; the first
// is one of the first value's state alone, the last one of the second's, so an entry is (a0, a1, b0, b1), and a selection of
// the bytes of two entries makes four levels.
//
// Every bank of shared memory has the whole table (128 KB), or look-ups of 32 lanes would wait for each other 3.5 times.
// Where there is less room, two or four lanes share a copy, in as many banks.

template <int BITS, int WIDTH, int RUNS> struct Trellis : Turbo<BITS, WIDTH> {
    static constexpr int COUNT = WIDTH / RUNS, WORDS = BITS == 3 ? 2 : 4, SPAN = BITS * COUNT, LAST = WIDTH * BITS / 32 - 1;
    static constexpr int BYTES = Turbo<BITS, WIDTH>::BYTES + 32, TABLE = 1024 * 4 * ATT_COPIES, ENTRIES = 1024;
    // Bits of an address below the number of an entry, and those that are it.
    static constexpr int LOW = ATT_COPIES == 32 ? 7 : ATT_COPIES == 16 ? 6 : 5, ENTRY = 1023 << LOW;
    // Where the bits are that choose one of two bytes of entries, in a pair of pairs.
    static constexpr u32 CHOICE = 1 | 1 << 6 | 1 << 11 | 1 << 17;
    Words<LAST + 1> codes;
    // Bits before the runs: the upper six of a byte each.
    u32 before[RUNS / 4];
    u32 table, copy, choices;

    __device__ __forceinline__ void levels_from(const u32*, u32 unit) { choices = unit * 0x6240; }
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

    // The bits of values 4 k .. 4 k + 3 of a run, with the six before them, from bit `SPARE` on: such that the number of the
    // second entry is where an address has it. Less shifting up costs nothing: there is a pipe for it that has time.
    static constexpr int SPARE = BITS == 3 ? 0 : LOW - 4;
    __device__ __forceinline__ u32 window(int run, int k) const {
        const int bit = SPAN * run + 4 * BITS * k;
        if (k) return from(bit - 6 - SPARE);
        return __funnelshift_r(before[run / 4] << (24 - run % 4 * 8), from(bit), 26 - SPARE);
    }

    // x moved up by n bits, or down.
    static __device__ __forceinline__ u32 moved(u32 x, int n) { return n >= 0 ? x << n : x >> -n; }

    __device__ __forceinline__ u32 entry(u32 x) const { return shared4(table + ((x & ENTRY) | copy)); }

    // Levels of four values of a run: of 3 bits as bytes, of values 0, 2, 1 and 3.
    __device__ __forceinline__ void four_of(int run, int k, u32 (&w)[WORDS / 2]) const {
        const u32 x = window(run, k);
        if constexpr (BITS == 2) w[0] = entry(x << 4), w[1] = entry(x);
        else {
            const u32 up = x << (LOW - 1), a = entry(up), b = entry(moved(x, LOW - 7));
            // The bits that choose, to the lowest of four nibbles: no carry gets where one of them is.
            const u32 bits = __umulhi(up & CHOICE << (LOW - 1), 0xB4000000u >> (LOW - 2));
            w[0] = pick(a, b, (bits & 0x1111u) | choices);
        }
    }

    // Levels of an octet of a run; of the last one of 12 dims there is but the first half.
    __device__ __forceinline__ void octet(int run, int s, u32 (&w)[WORDS]) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            u32 four[WORDS / 2] = {};
            if (8 * s + 4 * h < COUNT) four_of(run, 2 * s + h, four);
#pragma unroll
            for (int i = 0; i < WORDS / 2; i++) w[h * WORDS / 2 + i] = four[i];
        }
    }
};

template <int BITS, int WIDTH> struct TrellisKeys : Trellis<BITS, WIDTH, 4> {
    static constexpr int WORDS = Trellis<BITS, WIDTH, 4>::WORDS, PARTS = WORDS / 2, ORDERS = PARTS;
    static __device__ __forceinline__ int first_dim(int s, int t) { return WIDTH / 4 * t + 8 * s; }
    static __device__ __forceinline__ constexpr int dim_of(int part, int i) {
        return BITS == 3 ? (i & 4) + i % 2 * 2 + i / 2 % 2 : 4 * part + i / 2;
    }
    __device__ __forceinline__ void group(int n, u32 (&b)[PARTS][2]) const {
        u32 w[WORDS];
        this->octet(n % 4, n / 4, w);
#pragma unroll
        for (int i = 0; i < WORDS; i++) b[i / 2][i % 2] = w[i];
    }
};

template <int BITS, int WIDTH> struct TrellisValues : Trellis<BITS, WIDTH, 8> {
    static constexpr bool OF_RUNS = true;
    static constexpr int OCTETS = (WIDTH / 8 + 7) / 8, PAIRS = 4 * OCTETS;
    static __device__ __forceinline__ constexpr int place(int e, int i) {
        return BITS == 3 ? e / 4 * 8 + 4 * i + e % 2 * 2 + e / 2 % 2 : e / 2 * 4 + 2 * i + e % 2;
    }
    static __device__ __forceinline__ int dim(int e, int i, int g) { return WIDTH / 8 * g + place(e, i); }
    static __device__ __forceinline__ constexpr bool is_dim(int e, int i) { return place(e, i) < WIDTH / 8; }
};

template <int WIDTH> struct Codes<TURBO3_TCQ, WIDTH> : TrellisKeys<3, WIDTH> {};
template <int WIDTH> struct Codes<TURBO2_TCQ, WIDTH> : TrellisKeys<2, WIDTH> {};
template <int WIDTH> struct ValueCodes<TURBO3_TCQ, WIDTH> : TrellisValues<3, WIDTH> {};
template <int WIDTH> struct ValueCodes<TURBO2_TCQ, WIDTH> : TrellisValues<2, WIDTH> {};
