// Trellis types as halves. A lane has runs of dims as strings of bits (attend_trellis.cuh says which): of K of its
// four cells, of V of its eight. The state of a value are its own bits and the six before them; those before a run are the
// last ones of the lane that has the dims before it, or of the byte of its cell behind the norms.

template <int BITS, int WIDTH, bool VALUES> struct Path {
    static constexpr int RUNS = VALUES ? 8 : 4, COUNT = WIDTH / RUNS, SPAN = BITS * COUNT, WORDS = WIDTH * BITS / 32;
    static constexpr int STATES = 64 << BITS, CODE_BYTES = WIDTH * 4 * BITS, BYTES = CODE_BYTES + 64 + 32;

    // 32 bits of a lane from `bit` on, as far as it has them.
    static __device__ __forceinline__ u32 bits_from(const u32* words, int bit, int lane) {
        const u32 low = words[word_at(WORDS, bit / 32, lane)];
        if (bit % 32 == 0) return low;
        return low >> bit % 32 | words[word_at(WORDS, min(bit / 32 + 1, WORDS - 1), lane)] << (32 - bit % 32);
    }

    // The state of value a of a run; before: the six bits before the run.
    static __device__ __forceinline__ int state_of(const u32* words, int run, int a, u32 before, int lane) {
        const int at = SPAN * run + BITS * a;
        const u32 bits = BITS * a < 6 ? (bits_from(words, SPAN * run, lane) << 6 | before) >> BITS * a : bits_from(words, at - 6, lane);
        return bits & (STATES - 1);
    }

    // All values of a lane from a slice of a tile: put(n, lane, eight) for group n of a lane; table: a level of each state;
    // more(d): to be added to dim d of keys.
    template <typename More, typename Put>
    static __device__ __forceinline__ void decode(const u8* slice, const float* table, int lane, const More& more, const Put& put) {
        const int g = lane / 4, t = lane % 4;
        const u32* words = (const u32*)slice;
        const u16* norms = (const u16*)(slice + CODE_BYTES);
        const u8* first = slice + CODE_BYTES + 64;
        u32 before[RUNS];
        float norm[RUNS];
#pragma unroll
        for (int r = 0; r < RUNS; ++r) {
            // Cells 8 r + g of K, 8 (r / 2) + 2 t + r % 2 of V.
            norm[r] = f16_to_f32(norms[VALUES ? (2 * t + r % 2) * 4 + r / 2 : 4 * g + r]);
            const bool inside = VALUES ? g > 0 : t > 0;
            const u32 byte = first[VALUES ? 8 * t + r : 4 * g + r] >> 2;
            before[r] = inside ? bits_from(words, SPAN * (r + 1) - 6, lane - (VALUES ? 4 : 1)) & 63 : byte;
        }
        if constexpr (VALUES) {
            // Dim COUNT g + a of all eight cells.
#pragma unroll 4
            for (int a = 0; a < COUNT; ++a) {
                const int d = COUNT * g + a;
                float x[8];
#pragma unroll
                for (int r = 0; r < RUNS; ++r) x[r] = table[state_of(words, r, a, before[r], lane)] * norm[r];
                put(d / 8, d % 8 * 4 + t, eight_halves(x));
            }
        } else {
            // Eight dims of a cell: octet number COUNT / 8 t + o of the slice.
#pragma unroll
            for (int r = 0; r < RUNS; ++r)
#pragma unroll
                for (int o = 0; o < COUNT / 8; ++o) {
                    const int octet = COUNT / 8 * t + o;
                    float x[8];
#pragma unroll
                    for (int i = 0; i < 8; ++i) x[i] = table[state_of(words, r, 8 * o + i, before[r], lane)] * norm[r] + more(8 * octet + i);
                    put(octet / 4 * 4 + r, 4 * g + octet % 4, eight_halves(x));
                }
        }
    }
};
