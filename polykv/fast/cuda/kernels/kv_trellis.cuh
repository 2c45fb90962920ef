// Trellis types: codes are the states of a path of least squared error, found as in polykv/ref/trellis.py: costs are added
// in the same order, and ties broken in the same way, so paths are the same.
//
// Of the 2^(6 + B) costs of a step only the best of each 2^B that have the same successors goes on: 64 numbers. Two of
// them are a lane's: it reads 2^B of the step before, which it continues to two symbols.

template <int B, int LANES> struct Search {
    enum { SYMBOLS = 1 << B, EACH = 64 >> B, STATES = 64 << B, UNITS = 32 / LANES };
    float book[UNITS][2][SYMBOLS];
    int lane;

    // Number i of a lane: its predecessors are SYMBOLS states from `first` on, its symbols that of c = 0 and 1.
    __device__ __forceinline__ int unit(int i) const { return lane + LANES * i; }
    __device__ __forceinline__ static int first(int unit) { return 2 * unit / SYMBOLS * SYMBOLS; }
    __device__ __forceinline__ static int symbol(int unit, int c) { return (2 * unit + c) % SYMBOLS; }
    // Of equally good last states the one with the smallest; ref/trellis.py, final_order.
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
    __device__ __forceinline__ void costs(int i, int c, float y, const float* before, float (&cost)[SYMBOLS]) const {
#pragma unroll
        for (int p = 0; p < SYMBOLS; ++p) {
            const float error = y - book[i][c][p];
            cost[p] = before[p] + error * error;
        }
    }

    // Which cost is the lowest, the first of several; it is left in cost[0]. What the next step waits for are the minima
    // alone, which do not wait for comparisons.
    __device__ __forceinline__ static int best(float (&cost)[SYMBOLS]) {
        int at[SYMBOLS];
#pragma unroll
        for (int p = 0; p < SYMBOLS; ++p) at[p] = p;
#pragma unroll
        for (int n = SYMBOLS / 2; n > 0; n /= 2)
#pragma unroll
            for (int p = 0; p < n; ++p) {
                at[p] = cost[2 * p + 1] < cost[2 * p] ? at[2 * p + 1] : at[2 * p];
                cost[p] = fminf(cost[2 * p], cost[2 * p + 1]);
            }
        return at[0];
    }

    // One step: from the costs `now` of what 64 kinds of states have in common to those of the next, and how they came.
    __device__ __forceinline__ void step(float y, const float* now, float* next, u8* choices) const {
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int n = unit(i);
            float before[SYMBOLS];
            read(now + first(n), before);
            int chosen = 0;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float cost[SYMBOLS];
                costs(i, c, y, before, cost);
                chosen |= best(cost) << 4 * c;
                next[symbol(n, c) * EACH + first(n) / SYMBOLS] = cost[0];
            }
            choices[n] = (u8)chosen;
        }
    }
    __device__ __forceinline__ static void read(const float* from, float (&x)[SYMBOLS]) {
#pragma unroll
        for (int p = 0; p < SYMBOLS; p += 4) {
            const float4 a = *(const float4*)(from + p);
            x[p] = a.x, x[p + 1] = a.y, x[p + 2] = a.z, x[p + 3] = a.w;
        }
    }

    // The best state of the last step; `room` is free for 32 costs and 32 states.
    __device__ __forceinline__ int last(float y, const float* now, float* room) const {
        int* states = (int*)(room + 32);
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const int n = unit(i);
            float before[SYMBOLS], least = INFINITE;
            int state = 0;
            read(now + first(n), before);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                float cost[SYMBOLS];
                costs(i, c, y, before, cost);
#pragma unroll
                for (int p = 0; p < SYMBOLS; ++p) better(least, state, cost[p], 64 * symbol(n, c) + first(n) + p);
            }
            room[n] = least, states[n] = state;
        }
        __syncwarp();
        for (int half = 16; half > 0; half /= 2) {
            for (int i = lane; i < half; i += LANES) better(room[i], states[i], room[i + half], states[i + half]);
            __syncwarp();
        }
        return states[0];
    }
    __device__ __forceinline__ static void better(float& least, int& state, float cost, int of) {
        if (cost < least || (cost == least && preference(of) < preference(state))) least = cost, state = of;
    }

    // States of the n values x, by way of a row of choices for each.
    __device__ __forceinline__ void run(const float* x, int n, u16* states, float* rows, u8* choices) const {
        for (int i = lane; i < 64; i += LANES) rows[i] = 0.0f;
        __syncwarp();
        float y = x[0];
#pragma unroll 1
        for (int t = 0; t + 1 < n; ++t) {
            const float following = x[t + 1];
            step(y, rows + t % 2 * 64, rows + (t + 1) % 2 * 64, choices + 32 * (t + 1));
            y = following;
            __syncwarp();
        }
        int s = last(y, rows + (n - 1) % 2 * 64, rows + n % 2 * 64);
        if (lane == 0)
#pragma unroll 1
            for (int t = n - 1; t >= 0; --t) {
                states[t] = (u16)s;
                const int kept = s & 63, c = kept % EACH * SYMBOLS + kept / EACH;
                if (t) s = kept << B | (choices[32 * t + c / 2] >> 4 * (c % 2) & 7);
            }
        __syncwarp();
    }
};

template <int B> struct Trellis : Rotated<Trellis<B>> {
    enum { BITS = B, SCALED = 0, NIBBLES = 0, PATH = 1, BEFORE = 6 };

    __device__ static const float* levels(const Tables& t) { return t.numbers + Tables::THRESHOLDS; }

    // |x| of every group, the squares added as a tree: value j and j + n / 2, then j and j + n / 4, ...
    __device__ static void lengths(float* measure, const float* x, float* squares, const Form& f, int lane, int lanes) {
        int n = 1;
        while (n < f.group) n *= 2;
        for (int i = lane; i < f.resident; i += lanes) squares[i] = x[i] * x[i];
        __syncwarp();
        for (int end = f.group; n > 1; end = n) {
            n /= 2;
            for (int i = lane; i < f.resident / f.group * n; i += lanes) {
                float* group = squares + i / n * f.group;
                if (i % n + n < end) group[i % n] += group[i % n + n];
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
