// Packed weights that come to shared memory, as operands of tensor cores: a tile is 128 values of 32 rows of W.
//
// The fields of a row lie side by side, PITCH bytes to a row: an odd number of 16, so that eight rows are in all banks.
// Steps are taken two at a time, h = 0 and 1: i = 0 and 1 of them is step(h, i), of 32 values. A pair is 16 rows, octets
// 2 p and 2 p + 1; lane 4 g + q has word q of rows g of both, of each half of 16 values, as `matrices` gives them:
//
//     read(at, tile, h)      what steps h of a tile need; of the SPAN tiles that lie together at `at`, it is number `tile`
//     words(a, p, h, i)      operand a: both octets of half 0, then of half 1; four codes each, without sign if UNSIGNED
//     scales(row, tile, q, number, odd)   of step q of a row of that tile, which has this number in its rows: x the scale; y
//                            that of half 1 (HALVES), or the minimum (MINIMUM). odd: whether the number of the row's block in
//                            the whole matrix is
//     copy(to, number)       SPAN tiles from this one on are on their way
//
// A value is scale * word [- minimum]. Words are codes less their zero, times a power of two that spares a shift and that
// scales are divided by.

#include "mma.cuh"
#include "weights_k.cuh"

constexpr int PAIRS = 2, STAGED_ROWS = 16 * PAIRS, SPAN = LINEAR_TILES;

// BYTES of each of the rows, `stride` bytes apart, go to rows of PITCH: what a lane copies of them.
template <int BYTES, int PITCH> struct RowCopy {
    static constexpr int SIZE = BYTES < 16 ? BYTES : 16, LANES = BYTES / SIZE, ROWS = 32 / LANES;
    const unsigned char* from;
    int stride;
    u32 to;
    __device__ __forceinline__ RowCopy(const unsigned char* first, int stride, int lane)
        : from(first + (long long)(lane / LANES) * stride + lane % LANES * SIZE), stride(stride), to(lane / LANES * PITCH + lane % LANES * SIZE) {}
    __device__ __forceinline__ void copy(u32 tile, int offset) const {
#pragma unroll
        for (int i = 0; i < STAGED_ROWS / ROWS; ++i) copy_async<SIZE>(tile + to + i * ROWS * PITCH, from + offset + (long long)i * ROWS * stride);
    }
};

// (v & bits) ^ 0x80 for every byte: one instruction if one number is in a register. gridDim.z is 1, which no compiler knows.
struct Mask {
    unsigned bits;
    __device__ __forceinline__ explicit Mask(unsigned of) : bits(of * gridDim.z) {}
    __device__ __forceinline__ unsigned signed_of(unsigned v) const { return (v & bits) ^ 0x80808080u; }
};

// 16 bytes of two octets, of pieces `piece` and `piece` + 1 of their rows.
template <int PITCH> __device__ __forceinline__ uint4 octets(u32 at, int pair, int piece, int lane) {
    return matrices(at + (16 * pair + lane / 8 % 2 * 8 + lane % 8) * PITCH + 16 * (piece + lane / 16));
}

// The next odd multiple of 16.
__device__ constexpr int odd_sixteens(int bytes) { return ((bytes + 15) / 16 | 1) * 16; }

template <typename Weight> struct Staged;

// Nibbles: `piece` 2 h and 2 h + 1 are what steps h need.
struct StagedNibbles {
    enum { HALVES = 0, PITCH = odd_sixteens(72 * SPAN) };
    uint4 codes[PAIRS];
    __device__ __forceinline__ static constexpr int step(int h, int i) { return 2 * h + i; }
    __device__ __forceinline__ void read(u32 at, int tile, int h, int lane) {
        for (int p = 0; p < PAIRS; ++p) codes[p] = octets<PITCH>(at + 64 * tile, p, 2 * h, lane);
    }
};

template <> struct Staged<Q4_0> : StagedNibbles {
    enum { MINIMUM = 0, UNSIGNED = 0 };
    Mask upper{0xf0f0f0f0u};
    RowCopy<64 * SPAN, PITCH> of_codes;
    RowCopy<8 * SPAN, PITCH> of_scales;
    __device__ __forceinline__ Staged(const Fields& f, int blocks, int lane) : of_codes(f.f0, 16 * blocks, lane), of_scales(f.f1, 2 * blocks, lane) {}
    __device__ __forceinline__ void copy(u32 to, int tile) const {
        of_codes.copy(to, 64 * tile);
        of_scales.copy(to + 64 * SPAN, 8 * tile);
    }
    // 16 (code - 8): nibbles in the upper half of a byte.
    __device__ __forceinline__ void words(unsigned (&a)[4], int p, int, int i) const {
        const unsigned v[2] = {i ? codes[p].z : codes[p].x, i ? codes[p].w : codes[p].y};
        for (int o = 0; o < 2; ++o) {
            a[o] = upper.signed_of(v[o] << 4);
            a[2 + o] = upper.signed_of(v[o]);
        }
    }
    __device__ __forceinline__ static float2 scales(u32 row, int tile, int q, int, int) {
        return {f16_to_f32((u16)shared2(row + 64 * SPAN + 8 * tile + 2 * q)) * (1.0f / 16), 0.0f};
    }
};

template <> struct Staged<Q8_0> {
    enum { HALVES = 0, MINIMUM = 0, UNSIGNED = 0, PITCH = odd_sixteens(136 * SPAN) };
    uint4 codes[PAIRS][2];
    __device__ __forceinline__ static constexpr int step(int h, int i) { return 2 * h + i; }
    RowCopy<128 * SPAN, PITCH> of_codes;
    RowCopy<8 * SPAN, PITCH> of_scales;
    __device__ __forceinline__ Staged(const Fields& f, int blocks, int lane) : of_codes(f.f0, 32 * blocks, lane), of_scales(f.f1, 2 * blocks, lane) {}
    __device__ __forceinline__ void copy(u32 to, int tile) const {
        of_codes.copy(to, 128 * tile);
        of_scales.copy(to + 128 * SPAN, 8 * tile);
    }
    __device__ __forceinline__ void read(u32 at, int tile, int h, int lane) {
        for (int p = 0; p < PAIRS; ++p)
            for (int i = 0; i < 2; ++i) codes[p][i] = octets<PITCH>(at + 128 * tile, p, 2 * step(h, i), lane);
    }
    __device__ __forceinline__ void words(unsigned (&a)[4], int p, int, int i) const {
        a[0] = codes[p][i].x, a[1] = codes[p][i].y, a[2] = codes[p][i].z, a[3] = codes[p][i].w;
    }
    __device__ __forceinline__ static float2 scales(u32 row, int tile, int q, int, int) {
        return {f16_to_f32((u16)shared2(row + 128 * SPAN + 8 * tile + 2 * q)), 0.0f};
    }
};

template <> struct Staged<Q4_K> : StagedNibbles {
    enum { MINIMUM = 1, UNSIGNED = 1 };
    RowCopy<64 * SPAN, PITCH> of_codes;
    RowCopy<16, PITCH> of_heads;
    __device__ __forceinline__ Staged(const Fields& f, int blocks, int lane) : of_codes(f.f0, 128 * blocks, lane), of_heads(f.f1, 16 * blocks, lane) {}
    __device__ __forceinline__ void copy(u32 to, int tile) const {
        of_codes.copy(to, 64 * tile);
        of_heads.copy(to + 64 * SPAN, 16 * (tile >> 1));
    }
    // The upper nibbles of odd steps stay where they are.
    __device__ __forceinline__ void words(unsigned (&a)[4], int p, int, int i) const {
        const unsigned mask = i ? 0xf0f0f0f0u : 0x0f0f0f0fu;
        a[0] = codes[p].x & mask, a[1] = codes[p].y & mask, a[2] = codes[p].z & mask, a[3] = codes[p].w & mask;
    }
    __device__ __forceinline__ static float2 scales(u32 row, int, int q, int number, int) {
        const uint4 head = shared16(row + 64 * SPAN);
        const int at = 2 * (number & 1) + (q >> 1), byte = 8 * (q & 1);
        const float scale = (float)((Sub32::scales(head, at) >> byte) & 255u), least = (float)((Sub32::minimums(head, at) >> byte) & 255u);
        return {f16_to_f32((u16)head.x) * scale * (q & 1 ? 1.0f / 16 : 1.0f), f16_to_f32((u16)(head.x >> 16)) * least};
    }
};

template <> struct Staged<Q6_K> {
    enum { HALVES = 1, MINIMUM = 0, UNSIGNED = 0, PITCH = odd_sixteens(104 * SPAN + 4) };
    uint4 low[PAIRS], high[PAIRS];
    Mask nibble{0x3c3c3c3cu};
    // Lower nibbles are steps 0 and 1, upper ones steps 2 and 3.
    __device__ __forceinline__ static constexpr int step(int h, int i) { return h + 2 * i; }
    RowCopy<64 * SPAN, PITCH> of_low;
    RowCopy<32 * SPAN, PITCH> of_high;
    RowCopy<8 * SPAN, PITCH> of_scales;
    RowCopy<4, PITCH> of_d;
    __device__ __forceinline__ Staged(const Fields& f, int blocks, int lane)
        : of_low(f.f0, 128 * blocks, lane), of_high(f.f1, 64 * blocks, lane), of_scales(f.f2, 16 * blocks, lane), of_d(f.f3, 2 * blocks, lane) {}
    __device__ __forceinline__ void copy(u32 to, int tile) const {
        of_low.copy(to, 64 * tile);
        of_high.copy(to + 64 * SPAN, 32 * tile);
        of_scales.copy(to + 96 * SPAN, 8 * tile);
        // d is two bytes: those of two blocks come together. Rows 32 apart are on the same side of them.
        const int at = 2 * (tile >> 1);
        of_d.copy(to + 104 * SPAN, at - (int)((unsigned long long)(of_d.from + at) & 2));
    }
    __device__ __forceinline__ void read(u32 at, int tile, int h, int lane) {
        for (int p = 0; p < PAIRS; ++p) {
            low[p] = octets<PITCH>(at + 64 * tile, p, 2 * h, lane);
            high[p] = octets<PITCH>(at + 64 * SPAN + 32 * tile, p, 0, lane);
        }
    }
    // 4 (code - 32): two upper bits on top, the nibble below.
    __device__ __forceinline__ unsigned joined(unsigned low, unsigned high, int h, int i) const {
        const unsigned below = nibble.signed_of(i ? low >> 2 : low << 2), place = step(h, i);
        return ((high << (6 - 2 * place)) & 0xc0c0c0c0u) ^ below;
    }
    __device__ __forceinline__ void words(unsigned (&a)[4], int p, int h, int i) const {
        a[0] = joined(low[p].x, high[p].x, h, i), a[1] = joined(low[p].y, high[p].y, h, i);
        a[2] = joined(low[p].z, high[p].z, h, i), a[3] = joined(low[p].w, high[p].w, h, i);
    }
    // odd: whether the number of this row's block is, in the whole matrix.
    __device__ __forceinline__ static float2 scales(u32 row, int tile, int q, int, int odd) {
        const float d = f16_to_f32((u16)shared2(row + 104 * SPAN + 2 * odd)) * 0.25f;
        const unsigned two = shared2(row + 96 * SPAN + 8 * tile + 2 * q);
        return {d * (float)(signed char)(two & 255u), d * (float)(signed char)(two >> 8)};
    }
};
