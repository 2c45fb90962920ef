// The states of a path from its last one back, by the choices that a search has left (kv_trellis.cuh).
//
// Every state but the first follows from the one after it: a chain of loads. But paths from all states run together after
// a few steps back, so every lane takes some steps of its own: it starts AHEAD steps after them with any state, and what it
// arrives with is most often right. If it is not what the lane after it found, its steps are taken once more, and so on.

// Whether a unit's first symbol is the larger one (Search::place says why).
template <int B> __device__ __forceinline__ int swapped(u32 unit) { return B == 3 ? unit >> 2 & 1 : 0; }

template <int B, int LANES> struct Trace {
    enum { AHEAD = 20, ALL = (64 << B) - 1 };
    const u8* choices;
    u16* states;
    int n;

    // The state before state s of step t, below other bits, which do not matter.
    __device__ __forceinline__ u32 before(u32 s, int t) const {
        const u32 second = (s >> 5 ^ swapped<B>(s)) & 1;
        return s << B | (choices[32 * t + (s & 31)] >> 4 * second & ((1 << B) - 1));
    }
    // States of steps first .. last - 1, of which `s` is the one of step last.
    __device__ __forceinline__ void back(u32 s, int first, int last) const {
#pragma unroll 1
        for (int t = last; t > first; --t) s = before(s, t), states[t - 1] = (u16)(s & ALL);
    }

    // state: that of step n - 1. All lanes have written their choices.
    __device__ __forceinline__ void run(int state, int lane) const {
        const int top = n - 1, each = (top + LANES - 1) / LANES, first = min(each * lane, top), last = min(first + each, top);
        int t = min(last + AHEAD, top);
        u32 s = t == top ? state : 0;
#pragma unroll 1
        for (; t > last; --t) s = before(s, t);
        back(s, first, last);
        if (lane == 0) states[top] = (u16)state;
        __syncwarp();
        if (LANES == 1) return;
        while (true) {
            // What the lane after this one found: the state that this one should have begun with.
            const u32 found = states[last];
            const bool wrong = found != (s & ALL) && first < last;
            if (!__any_sync(~0u, wrong)) break;
            if (wrong) back(s = found, first, last);
            __syncwarp();
        }
    }
};
