// The states of a path from its last one back, by the choices that a search has left (kv_trellis.cuh).
//
// Every state but the last follows from the one after it: a chain of loads. But paths from all states run together after
// a few steps back, so every lane takes some steps of its own, in fours: it starts AHEAD fours after them with any state, and
// what it arrives with is most often right. If it is not what the lane after it found, its steps are taken once more, and
// so on.

// Whether a unit's first symbol is the larger one (Search::place says why).
template <int B> __device__ __forceinline__ int swapped(u32 unit) { return B == 3 ? unit >> 2 & 1 : 0; }

template <int B, int LANES> struct Trace {
    enum { AHEAD = B == 3 ? 6 : 9, ALL = (64 << B) - 1 };
    // Of every eight steps a word for each of the 64 numbers: choices of the first four in the lower half, from bit 4 on.
    const u8* choices;
    u16* states;
    int fours, end;

    // The states of a four, of which `s` is the one after, or is not there: then `end` is the last of them. Above the bits
    // of a state there are others, which do not matter.
    __device__ __forceinline__ u32 back(u32 s, int four, u32 (&found)[4]) const {
        const u8* row = choices + (u32)four / 2 * 256 + (u32)four % 2 * 2;
#pragma unroll
        for (int i = 3; i >= 0; --i) {
            s = __funnelshift_l((u32)*(const u16*)(row + s % 64 * 4) << (28 - B - 3 * i), s, B);
            if (i == 3 && four == fours - 1) s = end;
            found[i] = s;
        }
        return s;
    }
    __device__ __forceinline__ void write(u32 s, int first, int last) const {
#pragma unroll 1
        for (int four = last - 1; four >= first; --four) {
            u32 found[4];
            s = back(s, four, found);
            *(uint2*)(states + 4 * four) = make_uint2(__byte_perm(found[0], found[1], 0x5410) & (ALL * 0x10001),
                                                     __byte_perm(found[2], found[3], 0x5410) & (ALL * 0x10001));
        }
    }

    // All lanes have written their choices.
    __device__ __forceinline__ void run(int lane) const {
        __syncwarp();
        const int each = (fours + LANES - 1) / LANES, first = min(each * lane, fours), last = min(first + each, fours);
        u32 s = 0, found[4];
#pragma unroll 1
        for (int four = min(last + AHEAD, fours) - 1; four >= last; --four) s = back(s, four, found);
        write(s, first, last);
        __syncwarp();
        if (LANES == 1) return;
        while (true) {
            // What the lane after this one found: the state that this one should have begun with.
            const u32 after = last < fours ? states[4 * last] : s;
            const bool wrong = (after - s) % 64 != 0 && first < last;
            if (!__any_sync(~0u, wrong)) break;
            // All lanes have read: a vote alone does not order what they read and write.
            __syncwarp();
            if (wrong) write(s = after, first, last);
            __syncwarp();
        }
    }
};
