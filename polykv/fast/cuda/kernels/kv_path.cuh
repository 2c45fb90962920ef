// A cell of a tile of a trellis type (attend_trellis.cuh): its dims lie in runs, each a string of bits in the words of a lane.

template <class T> struct Path {
    enum { B = T::BITS, ONES = (1 << B) - 1, BEFORE = T::BEFORE, OLDER = BEFORE / B };
    int width, cell, values, runs, count, start;

    __device__ __forceinline__ Path(int w, int c, int v) : width(w), cell(c), values(v) {
        runs = v ? 8 : 4, count = w / runs;
        start = B * count * (v ? 2 * (c / 8) + c % 2 : c / 8);
    }
    // Who has run r of the cell, and how many words every lane has.
    __device__ __forceinline__ int lane_of(int r) const { return values ? 4 * r + cell % 8 / 2 : 4 * (cell % 8) + r; }
    __device__ __forceinline__ int words() const { return width * B / 32; }
    __device__ __forceinline__ u8* prefix(u8* tile) const {
        return tile + width * 4 * B + 64 + (values ? 8 * (cell % 8 / 2) + 2 * (cell / 8) + cell % 2 : 4 * (cell % 8) + cell / 8);
    }

    // codes: their place is taken by fours of symbols, of 4 B bits, in every fourth of them.
    __device__ void put(u8* tile, u16* codes, int lane, int lanes) const {
        if (lane == 0) *prefix(tile) = (u8)((codes[0] & ((1 << BEFORE) - 1)) << 2);
        for (int d = 4 * lane; d < width; d += 4 * lanes) {
            u32 four = 0;
#pragma unroll
            for (int i = 0; i < 4; ++i) four |= codes[d + i] >> BEFORE << B * i;
            codes[d] = (u16)four;
        }
        __syncwarp();
        const int end = start + B * count, first = start / 32, each = (end - 1) / 32 - first + 1;
        for (int i = lane; i < runs * each; i += lanes) {
            const int r = i % runs, k = first + i / runs, low = 32 * k;
            u32 bits = 0;
            for (int d = max(0, low - start) / (4 * B) * 4; d < count && start + B * d < low + 32; d += 4) {
                const int at = start + B * d - low;
                const u32 four = codes[r * count + d];
                bits |= at < 0 ? four >> -at : four << at;
            }
            const u32 mask = ~0u << max(0, start - low) & ~0u >> max(0, low + 32 - end);
            set_bits((u32*)tile + word_at(words(), k, lane_of(r)), mask, bits);
        }
    }

    __device__ u32 symbol(const u32* tile, int d) const {
        const int bit = start + B * (d % count), k = bit / 32, lane = lane_of(d / count);
        const u32 low = tile[word_at(words(), k, lane)] >> bit % 32;
        return (bit % 32 + B > 32 ? low | tile[word_at(words(), k + 1, lane)] << (32 - bit % 32) : low) & ONES;
    }

    __device__ void get(u16* codes, const u8* tile, int lane, int lanes) const {
        const u32 older = *prefix((u8*)tile) >> 2;
#pragma unroll 1
        for (int d = lane; d < width; d += lanes) {
            u32 state = 0;
            for (int i = 0; i <= OLDER; ++i) {
                const int from = d - OLDER + i;
                state |= (from < 0 ? older >> B * (OLDER + from) & ONES : symbol((const u32*)tile, from)) << B * i;
            }
            codes[d] = (u16)state;
        }
    }
};
