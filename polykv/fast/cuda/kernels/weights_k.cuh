// Packed weights of blocks of 256 values: sub-blocks of 32 or 16 values have small scales of their own. See weights.cuh.

#include "weights.cuh"

// Byte i of four words.
__device__ __forceinline__ unsigned byte_of(const uint4& v, int i) {
    return (word_of(v, i >> 2) >> (8 * (i & 3))) & 255u;
}

// -- 8 sub-blocks of 32 -----------------------------------------------------------------------------------------------

// Q4_K and Q5_K: 32 bytes of nibbles are sub-block 2 c in their lower and 2 c + 1 in their upper halves. A piece is 16
// of these bytes: half of either sub-block. The 16 bytes of d, dmin and scales are read by 8 lanes at once.
struct Sub32 {
    enum { VALUES = 256, PIECES = 8, RUNS = 2, STRIDE = 32, JOIN = 1, ZERO = 0, MINIMUM = 1 };
    __device__ static int start(int part) { return 64 * (part >> 1) + 16 * (part & 1); }

    // 6-bit scales and minimums of sub-blocks 2 c and 2 c + 1, in bytes 0 and 1. The first four of each are the lower
    // bits of bytes 0-3 and 4-7; the others have nibbles in bytes 8-11, and their upper two bits on top of the former.
    __device__ static unsigned scales(const uint4& head, int c) {
        const int shift = 16 * (c & 1);
        const unsigned a = head.y >> shift, e = head.w >> shift;
        return c < 2 ? a & 0x3f3fu : (e & 0x0f0fu) | ((a >> 2) & 0x3030u);
    }
    __device__ static unsigned minimums(const uint4& head, int c) {
        const int shift = 16 * (c & 1);
        const unsigned a = head.z >> shift, e = head.w >> shift;
        return c < 2 ? a & 0x3f3fu : ((e >> 4) & 0x0f0fu) | ((a >> 2) & 0x3030u);
    }
    __device__ static float scale_of(const uint4& head, int part, int run) {
        return f16_to_f32((unsigned short)head.x) * (float)((scales(head, part >> 1) >> (8 * run)) & 255u);
    }
    __device__ static float minimum_of(const uint4& head, int part, int run) {
        return f16_to_f32((unsigned short)(head.x >> 16)) * (float)((minimums(head, part >> 1) >> (8 * run)) & 255u);
    }
};

struct Q4_K : Sub32, Layout<128, 16> {
    struct Raw { uint4 codes, head; };
    __device__ static Raw load(const Fields& f, int block, int part) {
        return {stream16(f.f0 + 128 * block + 16 * part), stream16(f.f1 + 16 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) { return nibbles(word_of(raw.codes, i), run); }
    __device__ static float scale(const Raw& raw, int part, int run) { return scale_of(raw.head, part, run); }
    __device__ static float minimum(const Raw& raw, int part, int run) { return minimum_of(raw.head, part, run); }
};

struct Q5_K : Sub32, Layout<128, 32, 16> {
    struct Raw { uint4 codes, high, head; };
    __device__ static Raw load(const Fields& f, int block, int part) {
        return {stream16(f.f0 + 128 * block + 16 * part),
                // Bit i of byte l is the fifth bit of value 32 i + l: four lanes read the same bytes.
                stream16(f.f1 + 32 * block + 16 * (part & 1)), stream16(f.f2 + 16 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int part, int run, int i) {
        const unsigned fifth = (word_of(raw.high, i) >> (2 * (part >> 1) + run)) & 0x01010101u;
        return nibbles(word_of(raw.codes, i), run) | (fifth << 4);
    }
    __device__ static float scale(const Raw& raw, int part, int run) { return scale_of(raw.head, part, run); }
    __device__ static float minimum(const Raw& raw, int part, int run) { return minimum_of(raw.head, part, run); }
};

// 16 bytes of nibbles are a sub-block as in IQ4_NL; its 6-bit scale is in two places.
struct IQ4_XS : Layout<128, 8> {
    enum { VALUES = 256, PIECES = 8, RUNS = 2, STRIDE = 16, JOIN = 2, ZERO = 0, MINIMUM = 0 };
    struct Raw { uint4 codes; uint2 head; };
    __device__ static int start(int part) { return 32 * part; }
    __device__ static Raw load(const Fields& f, int block, int part) {
        return {stream16(f.f0 + 128 * block + 16 * part), stream8(f.f1 + 8 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) { return iq4_run(word_of(raw.codes, i), run); }
    __device__ static float scale(const Raw& raw, int part, int) {
        const int low = (raw.head.y >> (4 * part)) & 15, high = (raw.head.x >> (16 + 2 * part)) & 3;
        return f16_to_f32((unsigned short)raw.head.x) * (float)((low | (high << 4)) - 32);
    }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};

// -- 16 sub-blocks of 16 ----------------------------------------------------------------------------------------------

// 32 bytes hold 128 values of two bits, bits 2 i and 2 i + 1 those of the i-th 32. A piece is 16 of these bytes: four
// runs of 16 values, each a sub-block, 32 values apart.
struct Sub16 {
    enum { VALUES = 256, PIECES = 4, RUNS = 4, STRIDE = 32, JOIN = 1 };
    __device__ static int start(int part) { return 128 * (part >> 1) + 16 * (part & 1); }
    __device__ static int sub_block(int part, int run) { return 8 * (part >> 1) + (part & 1) + 2 * run; }
};

struct Q2_K : Sub16, Layout<64, 16, 4> {
    enum { ZERO = 0, MINIMUM = 1 };
    struct Raw { uint4 codes, scales; unsigned dm; };
    __device__ static Raw load(const Fields& f, int block, int part) {
        return {stream16(f.f0 + 64 * block + 16 * part), stream16(f.f1 + 16 * block), stream4(f.f2 + 4 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) {
        return (word_of(raw.codes, i) >> (2 * run)) & 0x03030303u;
    }
    __device__ static float scale(const Raw& raw, int part, int run) {
        return f16_to_f32((unsigned short)raw.dm) * (float)(byte_of(raw.scales, sub_block(part, run)) & 15u);
    }
    __device__ static float minimum(const Raw& raw, int part, int run) {
        return f16_to_f32((unsigned short)(raw.dm >> 16)) * (float)(byte_of(raw.scales, sub_block(part, run)) >> 4);
    }
};

struct Q3_K : Sub16, Layout<64, 32, 12, 2> {
    enum { ZERO = 4, MINIMUM = 0 };
    struct Raw { uint4 codes, high; unsigned s0, s1, s2; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int part) {
        const unsigned char* scales = f.f2 + 12 * block;
        return {stream16(f.f0 + 64 * block + 16 * part), stream16(f.f1 + 32 * block + 16 * (part & 1)),
                stream4(scales), stream4(scales + 4), stream4(scales + 8), stream2(f.f3 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int part, int run, int i) {
        const unsigned third = (word_of(raw.high, i) >> (4 * (part >> 1) + run)) & 0x01010101u;
        return ((word_of(raw.codes, i) >> (2 * run)) & 0x03030303u) | (third << 2);
    }
    // Nibbles in bytes 0-7, all lower ones first; the upper two bits of scale i are bits 2 (i / 4) of byte 8 + i % 4.
    __device__ static float scale(const Raw& raw, int part, int run) {
        const int i = sub_block(part, run);
        const int low = ((((i >> 2) & 1) ? raw.s1 : raw.s0) >> (8 * (i & 3) + 4 * (i >> 3))) & 15;
        const int high = (raw.s2 >> (8 * (i & 3) + 2 * (i >> 2))) & 3;
        return f16_to_f32(raw.d) * (float)((low | (high << 4)) - 32);
    }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};

// 64 bytes of nibbles hold 128 values, the first 64 in their lower halves. So the runs of a piece have their nibbles in
// two times 16 bytes, 32 apart, and share 16 bytes of upper bits.
struct Q6_K : Sub16, Layout<128, 64, 16, 2> {
    enum { ZERO = 32, MINIMUM = 0 };
    struct Raw { uint4 first, second, high, scales; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int part) {
        const unsigned char* low = f.f0 + 128 * block + 64 * (part >> 1) + 16 * (part & 1);
        return {stream16(low), stream16(low + 32), stream16(f.f1 + 64 * block + 16 * part),
                stream16(f.f2 + 16 * block), stream2(f.f3 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) {
        const unsigned upper = (word_of(raw.high, i) >> (2 * run)) & 0x03030303u;
        return nibbles(word_of((run & 1) ? raw.second : raw.first, i), run >> 1) | (upper << 4);
    }
    __device__ static float scale(const Raw& raw, int part, int run) {
        return f16_to_f32(raw.d) * (float)(signed char)byte_of(raw.scales, sub_block(part, run));
    }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};
