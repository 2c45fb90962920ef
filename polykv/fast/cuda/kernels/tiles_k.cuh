// Tiles of the types with blocks of 256 values: tile 2 b and 2 b + 1 are the halves of block b. See tiles.cuh.

#include "tiles.cuh"

// -- sub-blocks of 32: a step is one --------------------------------------------------------------------------------

// 32 bytes are step 2 c in their lower nibbles, step 2 c + 1 in their upper ones.
struct SubTile32 {
    enum { HALVES = 0 };
    uint4 codes, head;
    int first;  // sub-block of step 0
    __device__ __forceinline__ void finish(int q) { codes = quad_finish(codes, q); }
    __device__ __forceinline__ unsigned word(int step, int half, int) const {
        return nibbles(word_of(codes, 2 * (step >> 1) + half), step & 1);
    }
    __device__ __forceinline__ float scale(int step) const {
        return low_half(head.x) * (float)((Sub32::scales(head, (first + step) >> 1) >> (8 * (step & 1))) & 255u);
    }
    __device__ __forceinline__ float minimum(int step) const {
        return high_half(head.x) * (float)((Sub32::minimums(head, (first + step) >> 1) >> (8 * (step & 1))) & 255u);
    }
};

template <>
struct Tile<Q4_K> : SubTile32 {
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        head = stream16(f.f1 + 16 * (tile >> 1));
        first = 4 * (tile & 1);
    }
};

template <>
struct Tile<Q5_K> : SubTile32 {
    unsigned fifth[2];
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        head = stream16(f.f2 + 16 * (tile >> 1));
        fifth[0] = stream4(f.f1 + 32 * (tile >> 1) + 4 * q);
        fifth[1] = stream4(f.f1 + 32 * (tile >> 1) + 16 + 4 * q);
        first = 4 * (tile & 1);
    }
    __device__ __forceinline__ unsigned word(int step, int half, int q) const {
        return SubTile32::word(step, half, q) | (((fifth[half] >> (first + step)) & 0x01010101u) << 4);
    }
};

template <>
struct Tile<IQ4_XS> : NibbleTile {
    uint2 head;
    int first;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        head = stream8(f.f1 + 8 * (tile >> 1));
        first = 4 * (tile & 1);
    }
    __device__ __forceinline__ unsigned word(int step, int half, int) const { return iq4_run(word_of(codes, step), half); }
    __device__ __forceinline__ float scale(int step) const {
        const int i = first + step, low = (head.y >> (4 * i)) & 15, high = (head.x >> (16 + 2 * i)) & 3;
        return low_half(head.x) * (float)((low | (high << 4)) - 32);
    }
    __device__ __forceinline__ float minimum(int) const { return 0.0f; }
};

// -- sub-blocks of 16: a half is one --------------------------------------------------------------------------------

// Two bits of every value: 32 bytes, bits 2 s and 2 s + 1 those of step s; the first 16 bytes are half 0.
struct TwoBits {
    unsigned bits[2];
    __device__ __forceinline__ void start(const unsigned char* at, int q) {
        bits[0] = stream4(at + 4 * q);
        bits[1] = stream4(at + 16 + 4 * q);
    }
    __device__ __forceinline__ unsigned word(int step, int half) const { return (bits[half] >> (2 * step)) & 0x03030303u; }
};

// Byte i of two words.
__device__ __forceinline__ unsigned byte_of(uint2 v, int i) {
    return ((i < 4 ? v.x : v.y) >> (8 * (i & 3))) & 255u;
}

template <>
struct Tile<Q2_K> {
    enum { HALVES = 1 };
    TwoBits codes;
    uint2 scales;
    unsigned dm;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes.start(f.f0 + 32 * tile, q);
        scales = stream8(f.f1 + 8 * tile);
        dm = stream4(f.f2 + 4 * (tile >> 1));
    }
    __device__ __forceinline__ void finish(int) {}
    __device__ __forceinline__ unsigned word(int step, int half, int) const { return codes.word(step, half); }
    __device__ __forceinline__ float scale() const { return low_half(dm); }
    __device__ __forceinline__ float minimum() const { return high_half(dm); }
    __device__ __forceinline__ int factor(int step, int half) const { return byte_of(scales, 2 * step + half) & 15u; }
    __device__ __forceinline__ int offset(int step, int half) const { return byte_of(scales, 2 * step + half) >> 4; }
};

template <>
struct Tile<Q3_K> {
    enum { HALVES = 1 };
    TwoBits codes;
    unsigned third[2], s0, s1, s2;
    unsigned short d;
    int first;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes.start(f.f0 + 32 * tile, q);
        third[0] = stream4(f.f1 + 32 * (tile >> 1) + 4 * q);
        third[1] = stream4(f.f1 + 32 * (tile >> 1) + 16 + 4 * q);
        const unsigned char* scales = f.f2 + 12 * (tile >> 1);
        s0 = stream4(scales);
        s1 = stream4(scales + 4);
        s2 = stream4(scales + 8);
        d = stream2(f.f3 + 2 * (tile >> 1));
        first = 4 * (tile & 1);
    }
    __device__ __forceinline__ void finish(int) {}
    __device__ __forceinline__ unsigned word(int step, int half, int) const {
        return codes.word(step, half) | (((third[half] >> (first + step)) & 0x01010101u) << 2);
    }
    __device__ __forceinline__ float scale() const { return f16_to_f32(d); }
    __device__ __forceinline__ float minimum() const { return 0.0f; }
    __device__ __forceinline__ int factor(int step, int half) const {
        const int i = 2 * (first + step) + half;
        const int low = ((((i >> 2) & 1) ? s1 : s0) >> (8 * (i & 3) + 4 * (i >> 3))) & 15;
        return (low | ((s2 >> (8 * (i & 3) + 2 * (i >> 2))) & 3) << 4) - 32;
    }
    __device__ __forceinline__ int offset(int, int) const { return 0; }
};

template <>
struct Tile<Q6_K> {
    enum { HALVES = 1 };
    uint4 low;
    TwoBits high;
    uint2 scales;
    unsigned short d;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        low = quad_start(f.f0 + 64 * tile, q);
        high.start(f.f1 + 32 * tile, q);
        scales = stream8(f.f2 + 8 * tile);
        d = stream2(f.f3 + 2 * (tile >> 1));
    }
    __device__ __forceinline__ void finish(int q) { low = quad_finish(low, q); }
    // Lower nibbles are steps 0 and 1, upper ones steps 2 and 3.
    __device__ __forceinline__ unsigned word(int step, int half, int) const {
        return nibbles(word_of(low, 2 * (step & 1) + half), step >> 1) | (high.word(step, half) << 4);
    }
    __device__ __forceinline__ float scale() const { return f16_to_f32(d); }
    __device__ __forceinline__ float minimum() const { return 0.0f; }
    __device__ __forceinline__ int factor(int step, int half) const {
        return (int)(signed char)byte_of(scales, 2 * step + half);
    }
    __device__ __forceinline__ int offset(int, int) const { return 0; }
};
