// Codes of a slice of a tile as halves, eight of a lane's group at a time: what prefill.cu's tiles have, without memory in
// between. The arithmetic is that of halves too: a level or code, exact or rounded once, times its norm or scale, rounded.
//
//     Halves<TURBO3, 128, false> keys;  keys.levels_from(levels, 1);  keys.each(at, lane, put);    put(n, lane, eight halves)

#include "eight_halves.cuh"
#include "half_pairs.cuh"
#include "tile_words.cuh"
#include "lift_path.cuh"

// Norms or scales of a lane, as pairs: of K for groups n % 4 = 0 to 3, which are of one cell each; of V for the four pairs
// of cells that all of its groups have.
template <bool VALUES> struct Factors {
    u32 of[4];

    // MOST: what they are at most, as a pair, if anything; SIGNED: whether they may be below zero.
    template <u32 MOST = 0, bool SIGNED = false> __device__ __forceinline__ void read(u32 at, int lane) {
        const int g = lane / 4, t = lane % 4;
        const auto least = [](u32 x) {
            const u32 y = MOST ? halves_least(x, MOST) : x;
            return SIGNED ? halves_most(y, MOST | 0x80008000u) : y;
        };
        if constexpr (VALUES) {
            const uint4 x = shared16(at + 16 * t);
            const u32 a = least(x.x), b = least(x.y), c = least(x.z), d = least(x.w);
            of[0] = pick(a, c, 0x5410), of[1] = pick(a, c, 0x7632), of[2] = pick(b, d, 0x5410), of[3] = pick(b, d, 0x7632);
        } else {
            const uint2 x = shared8(at + 8 * g);
            const u32 a = least(x.x), b = least(x.y);
            of[0] = pick(a, 0, 0x1010), of[1] = pick(a, 0, 0x3232), of[2] = pick(b, 0, 0x1010), of[3] = pick(b, 0, 0x3232);
        }
    }
    __device__ __forceinline__ uint4 times(const u32 (&x)[4], int n) const {
        if (VALUES) return {halves_times(x[0], of[0]), halves_times(x[1], of[1]), halves_times(x[2], of[2]), halves_times(x[3], of[3])};
        const u32 one = of[n % 4];
        return {halves_times(x[0], one), halves_times(x[1], one), halves_times(x[2], one), halves_times(x[3], one)};
    }
};

// Of four bytes: those of 0 and 1, and of 2 and 3, as lower halves of 16 bits with the upper ones from `high`.
__device__ __forceinline__ void join(u32 low, u32 high, u32& first, u32& second) {
    first = pick(low, high, 0x5140), second = pick(low, high, 0x7362);
}

// What all lanes have, as if each had its own: bytes are not selected from registers of a warp, and to copy them into a lane's every
// time was a sixth of all instructions that lift.
__device__ __forceinline__ u32 own_register(u32 x) { return x + (thread_again() >> 12); }

// Levels as halves in registers, their lower bytes and their upper ones.
template <int BITS> struct Levels {
    static constexpr int N = BITS < 3 ? 1 : 1 << (BITS - 2);
    u32 low[N], high[N];

    __device__ __forceinline__ void from(const float* levels) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            u32 x[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) x[j] = f32_to_f16(levels[4 * i + j]);
            const u32 a = x[0] | x[1] << 16, b = x[2] | x[3] << 16;
            low[i] = own_register(pick(a, b, 0x6420)), high[i] = own_register(pick(a, b, 0x7531));
        }
    }
    // Four codes, in the lower nibbles.
    __device__ __forceinline__ void four(u32 nibbles, u32& first, u32& second) const {
        if constexpr (BITS < 4) join(pick(low[0], low[N - 1], nibbles), pick(high[0], high[N - 1], nibbles), first, second);
        else {
            const u32 s = nibbles & 0x7777, upper = pick(0xFF00, 0, nibbles >> 3 & 0x1111);
            const u32 a = pick(low[0], low[1], s), b = pick(low[2], low[3], s), c = pick(high[0], high[1], s), d = pick(high[2], high[3], s);
            join((a & ~upper) | (b & upper), (c & ~upper) | (d & upper), first, second);
        }
    }
};

// Types with levels.
template <int TYPE, int WIDTH, bool VALUES> struct Halves {
    using Own = Codes<TYPE, WIDTH>;
    static constexpr int BYTES = Own::BYTES, BITS = Own::CODES / (4 * WIDTH), TABLE = 0;
    Levels<BITS> levels;
    Own codes;

    __device__ __forceinline__ void levels_from(const float* from, u32 one) { levels.from(from), codes.units(one); }
    template <typename Put> __device__ __forceinline__ void each(u32 at, int lane, const Put& put) {
        codes.read(at, lane);
        Factors<VALUES> norms;
        norms.read(at + Own::CODES, lane);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; ++n) {
            u32 x[4];
            const u32 w = codes.nibbles(n);
            levels.four(w, x[0], x[1]);
            levels.four(down(w, codes.by16), x[2], x[3]);
            put(n, lane, norms.times(x, n));
        }
    }
};

// Scalar types: a code as the lower byte of 1024 + code + ZERO is a half, of which 1024 + ZERO is subtracted. Lanes take four
// codes from the word of a group, or from two.
template <int TYPE, int WIDTH, bool VALUES> struct Scalar {
    using Own = Codes<TYPE, WIDTH>;
    static constexpr bool EIGHT = TYPE == Q8_0;
    static constexpr int BYTES = Own::BYTES, TABLE = 0;
    // 1024 + 128 or 8, and 511.75 or 8188: what a scale may be, that of Q4_0 of either sign.
    static constexpr u32 ZERO = EIGHT ? 0x64806480 : 0x64086408, LARGEST = EIGHT ? 0x5FFF5FFF : 0x6FFF6FFF;

    __device__ __forceinline__ void levels_from(const float*, u32) {}
    // Codes of four groups, and their scales.
    struct Four {
        u32 w[EIGHT ? 8 : 4];
        Factors<VALUES> scales;
        __device__ __forceinline__ void read(u32 at, int s, int lane) {
#pragma unroll
            for (int i = 0; i < (EIGHT ? 2 : 1); ++i) {
                const uint4 x = shared16(at + (EIGHT ? 1024 : 512) * s + 512 * i + 16 * lane);
                w[4 * i] = x.x, w[4 * i + 1] = x.y, w[4 * i + 2] = x.z, w[4 * i + 3] = x.w;
            }
            // No product with a code is more than a half holds.
            scales.template read<LARGEST, !EIGHT>(at + Own::CODES + 64 * s, lane);
        }
    };
    template <typename Put> __device__ __forceinline__ void each(u32 at, int lane, const Put& put) {
        // The next are read before these are put: no compiler knows that they are not what is put.
        Four of, next;
        of.read(at, 0, lane);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; ++n) {
            if (n % 4 == 0 && n + 4 < WIDTH / 8) next.read(at, n / 4 + 1, lane);
            u32 low, high, x[4];
            if constexpr (EIGHT) low = of.w[n % 4 * 2] ^ 0x80808080u, high = of.w[n % 4 * 2 + 1] ^ 0x80808080u;
            else low = of.w[n % 4] & 0x0F0F0F0Fu, high = of.w[n % 4] >> 4 & 0x0F0F0F0Fu;
            join(low, 0x64646464u, x[0], x[1]);
            join(high, 0x64646464u, x[2], x[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i) x[i] = halves_less(x[i], ZERO);
            put(n, lane, of.scales.times(x, n));
            if (n % 4 == 3) of = next;
        }
    }
};
template <int WIDTH, bool VALUES> struct Halves<Q8_0, WIDTH, VALUES> : Scalar<Q8_0, WIDTH, VALUES> {};
template <int WIDTH, bool VALUES> struct Halves<Q4_0, WIDTH, VALUES> : Scalar<Q4_0, WIDTH, VALUES> {};

// Trellis types: a level of each state, in shared memory.
template <int BITS, int WIDTH, bool VALUES> struct Paths {
    using Own = Path<BITS, WIDTH, VALUES>;
    static constexpr int BYTES = Own::BYTES, TABLE = Own::STATES * 4;
    const float* table;

    __device__ __forceinline__ void levels_from(const float* from, u32) { table = from; }
    template <typename Put> __device__ __forceinline__ void each(u32 at, int lane, const Put& put) {
        Own::decode((const u8*)memory + (at - shared_address(memory)), table, lane, [](int) { return 0.0f; }, put);
    }
};
template <int WIDTH, bool VALUES> struct Halves<TURBO3_TCQ, WIDTH, VALUES> : Paths<3, WIDTH, VALUES> {};
template <int WIDTH, bool VALUES> struct Halves<TURBO2_TCQ, WIDTH, VALUES> : Paths<2, WIDTH, VALUES> {};

// f16: a group is 16 bytes as they are. (Copies that put them to their places on their way from memory, 16 bytes here and
// 16 there, took 292 us for 131,072 cells, where this takes 132.)
template <int WIDTH, bool VALUES> struct Halves<F16, WIDTH, VALUES> {
    static constexpr int BYTES = 64 * WIDTH, TABLE = 0;
    __device__ __forceinline__ void levels_from(const float*, u32) {}
    template <typename Put> __device__ __forceinline__ void each(u32 at, int lane, const Put& put) {
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            const uint4 first = shared16(at + 512 * n + 16 * lane), second = shared16(at + 512 * n + 512 + 16 * lane);
            put(n, lane, first), put(n + 1, lane, second);
        }
    }
};
