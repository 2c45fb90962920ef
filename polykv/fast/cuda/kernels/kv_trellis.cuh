// Trellis types: codes are the states of a path of least squared error, as in polykv/ref/trellis.py, with ties broken in the
// same way, but for the last state (`last`).
//
// Of the 2^(6 + B) costs of a step only the best of each 2^B that have the same successors goes on: 64 numbers, one for
// the upper six bits of those. Lane n has numbers n and n + 32: it reads 2^B of the step before, which it continues to
// two symbols.
//
// Costs are integers. What a state c adds for a value x is (c^2 - 2 c x) S plus a constant, which `fmaf` leaves in the
// mantissa of a float of [2, 4): one rounding, to 2^-22. Eight times its bits (the exponent goes over the top) plus the
// number of the predecessor is a cost whose lower three bits are still those of that number, and these say which of 2^B it
// is: one minimum finds the least and where it came from, the first of several.
//
// S is as large as the largest |x| and |c| of a search allow. So costs are rounded to some 2^-17 of the variance of rotated
// values, and a path may be another one than that of the reference where it is as good but for that.

#include "kv_trace.cuh"

template <int B, int LANES> struct Search {
    enum { SYMBOLS = 1 << B, HALF = SYMBOLS / 2, EACH = 64 >> B, STATES = 64 << B, UNITS = 32 / LANES, FROM = 7 };
    // Of the states of a lane: -2 S c, and S c^2 with the constant.
    float slope[UNITS][2][SYMBOLS], base[UNITS][2][SYMBOLS];
    // Where its numbers go, the lower bits of both, and where those of its predecessors begin.
    int lane, to[UNITS][2], index[UNITS], from_row[UNITS];

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
    __device__ __forceinline__ static int preference(int state) {
        int key = 0;
#pragma unroll
        for (int b = 0; b < 5; ++b) key |= (state >> b & 1) << (4 - b);
#pragma unroll
        for (int b = 5; b < 6 + B; ++b) key |= (state >> b & 1) << (10 + B - b);
        return key;
    }

    // In a register: it would be computed anew for every step.
    __device__ __forceinline__ static void keep(int& x) { asm volatile("" : "+r"(x)); }

    // Of all lanes. Numbers are not negative.
    __device__ __forceinline__ static float largest(float x) {
        return LANES == 1 ? x : __int_as_float(__reduce_max_sync(~0u, __float_as_int(x)));
    }
    __device__ __forceinline__ static int least(int x) { return LANES == 1 ? x : __reduce_min_sync(~0u, x); }

    // For the n values x.
    __device__ __forceinline__ Search(const float* levels, const float* x, int n, int l) : lane(l) {
        float most = 0.0f, far = 0.0f;
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
#pragma unroll
            for (int c = 0; c < 2; ++c) keep(to[i][c] = place(unit(i), symbol(unit(i), c)));
            keep(index[i] = unit(i) % SYMBOLS);
            keep(from_row[i] = unit(i) % EACH * 4);
        }
        for (int i = lane; i < n; i += LANES) far = fmaxf(far, fabsf(x[i]));
#pragma unroll
        for (int i = 0; i < UNITS * 2; ++i)
#pragma unroll
            for (int p = 0; p < SYMBOLS; p += 4) {
                const float4 a = *(const float4*)(levels + 64 * symbol(unit(i / 2), i % 2) + first(unit(i / 2)) + p);
                float* to = slope[i / 2][i % 2] + p;
                to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
                most = fmaxf(fmaxf(fmaxf(most, fabsf(a.x)), fmaxf(fabsf(a.y), fabsf(a.z))), fabsf(a.w));
            }
        far = largest(far), most = largest(most);
        // (far + most)^2 S is 2, less what roundings could add.
        const float scale = 1.998f / fmaxf((far + most) * (far + most), 1e-30f);
        const float constant = 2.0001f + far * far * scale;
#pragma unroll
        for (int i = 0; i < 2 * UNITS * SYMBOLS; ++i) {
            const float c = (&slope[0][0][0])[i];
            (&base[0][0][0])[i] = fmaf(c * c, scale, constant), (&slope[0][0][0])[i] = -2.0f * scale * c;
        }
    }

    // The costs of a symbol's predecessors, with value y.
    __device__ __forceinline__ void costs(int i, int c, float y, const int (&before)[SYMBOLS], int (&cost)[SYMBOLS]) const {
#pragma unroll
        for (int p = 0; p < SYMBOLS; ++p)
            cost[p] = (int)(__float_as_uint(fmaf(y, slope[i][c][p], base[i][c][p])) * 8) + before[p];
    }
    __device__ __forceinline__ static int least_of(const int (&x)[SYMBOLS]) {
        const int four = min(__vimin3_s32(x[0], x[1], x[2]), x[3]);
        return B == 2 ? four : __vimin3_s32(__vimin3_s32(x[SYMBOLS - 4], x[SYMBOLS - 3], x[SYMBOLS - 2]), x[SYMBOLS - 1], four);
    }

    // One step, number T of eight: from the costs `now` of what 64 kinds of states have in common to those of the next.
    // Where they came from is kept from the top of a word for each, such that four steps are bits 4 to 15 of a half. An edge
    // adds less than 2^26, and any two costs are three edges apart at most: once in eight steps one of them is taken from all
    // (number 0, whose lower bits are zero), so that sums stay below 2^30 however long a path is.
    template <int T> __device__ __forceinline__ void step(float y, const int* now, int* next, u32 (&from)[UNITS][2]) const {
        const int less = T == 7 ? now[0] : 0;
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            int before[SYMBOLS];
            read(now + from_row[i], before);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                int cost[SYMBOLS];
                costs(i, c, y, before, cost);
                const int least = least_of(cost);
                from[i][c] = __funnelshift_r(from[i][c], least, T == 3 ? 7 : 3);
                next[to[i][c]] = ((least & ~FROM) | index[i]) - less;
            }
        }
        __syncwarp();
    }
    // Those of a unit's predecessors.
    __device__ __forceinline__ static void read(const int* at, int (&x)[SYMBOLS]) {
#pragma unroll
        for (int p = 0; p < SYMBOLS; p += 4) {
            const int4 a = *(const int4*)(at + 8 * p);
            x[p] = a.x, x[p + 1] = a.y, x[p + 2] = a.z, x[p + 3] = a.w;
        }
    }

    // The best state of the last step, of the costs after it and what was kept of it: of equally good ones that of the
    // smallest `preference`, but for those of one number, of which the first was kept.
    __device__ __forceinline__ int last(const int* now, const u32 (&from)[UNITS][2]) const {
        int cost[UNITS][2], lowest = ~(1u << 31), key = STATES;
#pragma unroll
        for (int i = 0; i < 2 * UNITS; ++i) lowest = min(lowest, cost[i / 2][i % 2] = now[to[i / 2][i % 2]] & ~FROM);
        lowest = least(lowest);
#pragma unroll
        for (int i = 0; i < UNITS; ++i)
#pragma unroll
            for (int c = 0; c < 2; ++c)
                if (cost[i][c] == lowest)
                    key = min(key, preference(64 * symbol(unit(i), c) + first(unit(i)) + (from[i][c] >> 29)));
        return preference(least(key));
    }

    // States of the n values x, whole eights, by way of two rows of costs and a word of choices for every number and eight.
    __device__ __forceinline__ void run(const float* x, int n, u16* states, int* rows, u32* choices) const {
        int *even = rows, *odd = rows + 64;
        u32 from[UNITS][2], *to_choices[UNITS];
        // From the choices of a unit's first symbol to those of its second.
        int far[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            even[to[i][0]] = even[to[i][1]] = index[i];
            to_choices[i] = choices + EACH * symbol(unit(i), 0) + unit(i) % EACH;
            keep(far[i] = EACH * (symbol(unit(i), 1) - symbol(unit(i), 0)));
        }
        __syncwarp();
#pragma unroll 1
        for (int t = 0; t < n; t += 8) {
            float4 y = *(const float4*)(x + t);
            step<0>(y.x, even, odd, from);
            step<1>(y.y, odd, even, from);
            step<2>(y.z, even, odd, from);
            step<3>(y.w, odd, even, from);
            y = *(const float4*)(x + t + 4);
            step<4>(y.x, even, odd, from);
            step<5>(y.y, odd, even, from);
            step<6>(y.z, even, odd, from);
            step<7>(y.w, odd, even, from);
#pragma unroll
            for (int i = 0; i < UNITS; ++i) {
                to_choices[i][0] = from[i][0], to_choices[i][far[i]] = from[i][1];
                to_choices[i] += 64;
            }
        }
        Trace<B, LANES>{(const u8*)choices, states, n / 4, last(even, from)}.run(lane);
    }
};

template <int B> struct Trellis : Rotated<Trellis<B>> {
    enum { BITS = B, SCALED = 0, NIBBLES = 0, PATH = 1, BEFORE = 6 };

    __device__ static const float* levels(const Tables& t) { return t.numbers + Tables::THRESHOLDS; }

    // |x| of every group, the squares added as a tree: value j and j + n / 2, then j and j + n / 4, ...
    __device__ static void lengths(float* measure, const float* x, float* squares, const Form& f, int lane, int lanes) {
        if (lanes == 32 && f.group == 128) {
            for (int i = 0; i < f.resident / 128; ++i) {
                const float sum = Four(x + 128 * i, lane).squares();
                if (lane == 0) measure[i] = sqrtf(sum);
            }
            __syncwarp();
            return;
        }
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
        for (int at = 0; at < f.resident; at += f.group) {
            const Search<B, LANES> path(levels(t), v.x + at, f.group, lane);
            path.run(v.x + at, f.group, v.codes + at, (int*)v.spare, (u32*)(v.spare + 512));
        }
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
