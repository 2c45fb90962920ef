// Trellis types: codes are the states of a path of least squared error, found as in polykv/ref/trellis.py: costs are added
// in the same order, and ties broken in the same way, so paths are the same.
//
// Of the 2^(6 + B) costs of a step only the best of each 2^B that have the same successors goes on: 64 numbers, one for
// the upper six bits of those. Lane n has numbers n and n + 32: it reads 2^B of the step before, which it continues to
// two symbols.
//
// A step of 3 bits is 48 additions and multiplications of a lane's 16 states; all else is kept small. Costs are not
// negative, so they are compared as integers, of which one instruction of Hopper finds the least of three. Which one it
// was is found from the least backwards, by three comparisons instead of seven.

#include "kv_trace.cuh"

template <int B, int LANES> struct Search {
    enum { SYMBOLS = 1 << B, HALF = SYMBOLS / 2, EACH = 64 >> B, STATES = 64 << B, UNITS = 32 / LANES };
    float book[UNITS][2][SYMBOLS];
    int lane;

    // Number i of a lane: its predecessors are SYMBOLS states from `first` on, its symbols that of c = 0 and 1.
    __device__ __forceinline__ int unit(int i) const { return lane + LANES * i; }
    __device__ __forceinline__ static int first(int unit) { return unit % EACH * SYMBOLS; }
    __device__ __forceinline__ static int symbol(int unit, int c) { return unit / EACH + HALF * (c ^ swapped<B>(unit)); }
    // Where the number of a symbol is in a row: of 3 bits the halves of eight that are read together lie apart, so that
    // lanes read and write different banks.
    __device__ __forceinline__ static int place(int unit, int symbol) {
        const int group = unit % EACH;
        return B == 3 ? group / 4 * 32 + symbol * 4 + group % 4 : symbol * EACH + group;
    }
    // Of equally good last states the one with the smallest; ref/trellis.py, final_order. It is its own inverse.
    __device__ static int preference(int state) {
        int key = 0;
        for (int b = 0; b < 5; ++b) key |= (state >> b & 1) << (4 - b);
        for (int b = 5; b < 6 + B; ++b) key |= (state >> b & 1) << (10 + B - b);
        return key;
    }

    __device__ __forceinline__ void open(const float* levels, int l) {
        lane = l;
#pragma unroll
        for (int i = 0; i < 2 * UNITS * SYMBOLS; ++i) {
            const int n = unit(i / SYMBOLS / 2), c = i / SYMBOLS % 2, p = i % SYMBOLS;
            book[i / SYMBOLS / 2][c][p] = levels[64 * symbol(n, c) + first(n) + p];
        }
    }

    // The costs of the unit's states: those before them, and the squared error of y.
    __device__ __forceinline__ void costs(int i, int c, float y, const float* before, int (&cost)[SYMBOLS]) const {
#pragma unroll
        for (int p = 0; p < SYMBOLS; ++p) {
            const float error = y - book[i][c][p];
            cost[p] = __float_as_int(before[p] + error * error);
        }
    }

    // The costs of a symbol's predecessors, and the least of all, of halves and of the first two of each half.
    struct Costs {
        int all[SYMBOLS], pair[SYMBOLS / 4], half[SYMBOLS / 4], least;

        __device__ __forceinline__ void compare() {
#pragma unroll
            for (int i = 0; i < SYMBOLS / 4; ++i) {
                const int* c = all + 4 * i;
                pair[i] = min(c[0], c[1]), half[i] = __vimin3_s32(pair[i], c[2], c[3]);
            }
            least = B == 3 ? min(half[0], half[B - 2]) : half[0];
        }
        // Which one is the least, the first of several.
        __device__ __forceinline__ int chosen() const {
            const bool upper = B == 3 && half[B - 2] < half[0];
            const int *c = all, two = upper ? pair[B - 2] : pair[0], one = upper ? c[4 * (B - 2)] : c[0],
                      three = upper ? c[4 * (B - 2) + 2] : c[2];
            const bool second = two != least, odd = (second ? three : one) != least;
            return (upper ? 4 : 0) | (second ? 2 : 0) | (odd ? 1 : 0);
        }
    };

    // One step: from the costs `now` of what 64 kinds of states have in common to those of the next. How those of the step
    // before came goes to `choices` only here, while the costs are on their way.
    template <bool FIRST>
    __device__ __forceinline__ void step(float y, const float* now, float* next, Costs (&of)[UNITS][2], u8* choices) const {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            float before[SYMBOLS];
            read(now, unit(i), before);
            if (!FIRST) keep(of[i], choices + unit(i));
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                costs(i, c, y, before, of[i][c].all);
                of[i][c].compare();
                next[place(unit(i), symbol(unit(i), c))] = __int_as_float(of[i][c].least);
            }
        }
        __syncwarp();
    }
    __device__ __forceinline__ static void keep(const Costs (&of)[2], u8* choices) {
        *choices = (u8)(of[0].chosen() | of[1].chosen() << 4);
    }
    // Those of the unit's predecessors.
    __device__ __forceinline__ static void read(const float* row, int unit, float (&x)[SYMBOLS]) {
#pragma unroll
        for (int p = 0; p < SYMBOLS; p += 4) {
            const float4 a = *(const float4*)(row + unit % EACH * 4 + 8 * p);
            x[p] = a.x, x[p + 1] = a.y, x[p + 2] = a.z, x[p + 3] = a.w;
        }
    }

    // The best state of the last step; `room` is free for 32 costs and 32 states.
    __device__ __forceinline__ int last(float y, const float* now, int* room) const {
        int cost[UNITS][2][SYMBOLS];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            float before[SYMBOLS];
            read(now, unit(i), before);
            int least = ~(1u << 31);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                costs(i, c, y, before, cost[i][c]);
#pragma unroll
                for (int p = 0; p < SYMBOLS; p += 2) least = __vimin3_s32(least, cost[i][c][p], cost[i][c][p + 1]);
            }
            room[unit(i)] = least;
        }
        __syncwarp();
        const int lowest = least_of(room);
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int n = unit(i);
            int key = STATES;
            if (room[n] == lowest)
#pragma unroll
                for (int c = 0; c < 2; ++c)
#pragma unroll
                    for (int p = 0; p < SYMBOLS; ++p)
                        if (cost[i][c][p] == lowest) key = min(key, preference(64 * symbol(n, c) + first(n) + p));
            room[32 + n] = key;
        }
        __syncwarp();
        return preference(least_of(room + 32));
    }
    __device__ __forceinline__ static int least_of(const int* x) {
        int least = ~(1u << 31);
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            const int4 a = *(const int4*)(x + i);
            least = min(__vimin3_s32(least, a.x, a.y), min(a.z, a.w));
        }
        return least;
    }

    // States of the n values x, an even number, by way of a row of choices for each.
    __device__ __forceinline__ void run(const float* x, int n, u16* states, float* rows, u8* choices) const {
        float *even = rows, *odd = rows + 64;
        for (int i = lane; i < 64; i += LANES) even[i] = 0.0f;
        __syncwarp();
        Costs of[UNITS][2];
        step<true>(x[0], even, odd, of, choices);
        float2 y = *(const float2*)(x + 2);
        float before = x[1];
#pragma unroll 1
        for (int t = 1; t + 1 < n; t += 2) {
            // In the end what lies behind x, which nobody uses.
            const float2 following = *(const float2*)(x + t + 3);
            step<false>(before, odd, even, of, choices + 32 * t);
            step<false>(y.x, even, odd, of, choices + 32 * (t + 1));
            before = y.y, y = following;
        }
#pragma unroll
        for (int i = 0; i < UNITS; ++i) keep(of[i], choices + 32 * (n - 1) + unit(i));
        const int state = last(before, odd, (int*)even);
        Trace<B, LANES>{choices, states, n}.run(state, lane);
    }
};

template <int B> struct Trellis : Rotated<Trellis<B>> {
    enum { BITS = B, SCALED = 0, NIBBLES = 0, PATH = 1, BEFORE = 6 };

    __device__ static const float* levels(const Tables& t) { return t.numbers + Tables::THRESHOLDS; }

    // |x| of every group, the squares added as a tree: value j and j + n / 2, then j and j + n / 4, ...
    __device__ static void lengths(float* measure, const float* x, float* squares, const Form& f, int lane, int lanes) {
        int level = 0;
        while (1 << level < f.group) ++level;
        for (int i = lane; i < f.resident; i += lanes) squares[i] = x[i] * x[i];
        __syncwarp();
        for (int end = f.group; level > 0; end = 1 << level) {
            const int n = 1 << --level;
            for (int i = lane; i < f.resident / f.group << level; i += lanes) {
                float* at = squares + (i >> level) * f.group + (i & (n - 1));
                if ((i & (n - 1)) + n < end) at[0] += at[n];
            }
            __syncwarp();
        }
        for (int i = lane; i < f.resident / f.group; i += lanes) measure[i] = sqrtf(squares[i * f.group]);
        __syncwarp();
    }

    template <int LANES> __device__ __forceinline__ static void search(Vector& v, const Form& f, const Tables& t, int lane) {
        Search<B, LANES> path;
        path.open(levels(t), lane);
        for (int at = 0; at < f.resident; at += f.group)
            path.run(v.x + at, f.group, v.codes + at, (float*)v.spare, v.spare + 512);
    }
    __device__ static void choose(Vector& v, const Form& f, const Tables& t, int lane, int lanes) {
        // A warp, or one lane that stands for it.
        if (lanes == 32) search<32>(v, f, t, lane);
        else search<1>(v, f, t, lane);
    }

    // Byte `at` of a stream: the bits before the first value's own, then the symbols.
    __device__ static u8 byte_of(const u16* states, int at, int group) {
        u32 byte = 0;
        for (int i = 0; i < 8; ++i) {
            const int bit = 8 * at + i - BEFORE, value = bit / B;
            if (bit < 0) byte |= (states[0] >> (bit + BEFORE) & 1) << i;
            else if (value < group) byte |= (states[value] >> (BEFORE + bit % B) & 1) << i;
        }
        return (u8)byte;
    }
    __device__ static u16 state_of(const u8* bytes, int j) {
        const u8* from = bytes + B * j / 8;
        return (from[0] | from[1] << 8) >> B * j % 8 & ((1 << (BEFORE + B)) - 1);
    }
};
