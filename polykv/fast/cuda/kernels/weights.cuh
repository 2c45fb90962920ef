// Packed weights of blocks of 32 values, as a lane of a warp sees them; weights_k.cuh has those of 256.
//
// On the device a matrix is cut into fields (weights.py): all codes, then all scales, and so on, each in the order of
// the blocks. Every field begins at a multiple of its own alignment, so a block's codes are read 16 bytes at a time,
// whatever the size of a block in a file (18 bytes for Q4_0).
//
// A *piece* is what a lane reads at once: RUNS runs of 16 values, run k at value start(part) + k * STRIDE of the block,
// part = 0 .. PIECES - 1 saying which piece of its block it is. A value is
//
//     scale(run) * (code - ZERO)              MINIMUM = 0
//     scale(run) * code - minimum(run)        MINIMUM = 1
//
// and the codes of a run come as four words of four int8. JOIN = 2 says that runs 2 i and 2 i + 1 are 32 consecutive
// values with one scale, so that their integer dot products can be added before they are scaled.
//
// Raw is what was read, nothing computed yet: several pieces can be on their way at once.

#include "half.cuh"
#include "memory.cuh"

// Where the fields of a row of blocks begin; and how many bytes of each a block has, in their order in memory.
struct Fields {
    const unsigned char *f0, *f1, *f2, *f3;
};

template <int S0, int S1, int S2 = 0, int S3 = 0>
struct Layout {
    // data: the matrix, of `blocks` blocks in all; first: the first block of the row.
    __device__ __forceinline__ static Fields fields(const unsigned char* data, long long blocks, long long first) {
        return {data + S0 * first, data + S0 * blocks + S1 * first, data + (S0 + S1) * blocks + S2 * first,
                data + (S0 + S1 + S2) * blocks + S3 * first};
    }
};

// Nibbles of a word: the lower ones (run 0) or the upper ones (run 1) of its bytes.
__device__ __forceinline__ unsigned nibbles(unsigned word, int run) {
    return (word >> (4 * run)) & 0x0f0f0f0fu;
}

__device__ __forceinline__ unsigned word_of(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Bits 0 .. 3 of `bits` to bit `place` of bytes 0 .. 3. The products of the multiplication do not meet: bit i goes to
// bits i, i + 7, i + 14 and i + 21, of which one is the lowest of byte i.
__device__ __forceinline__ unsigned spread(unsigned bits, int place) {
    return (((bits & 15u) * 0x00204081u) & 0x01010101u) << place;
}

// 32 values in 16 bytes of nibbles: byte j has value j and value j + 16.
struct Nibbles {
    enum { VALUES = 32, PIECES = 1, RUNS = 2, STRIDE = 16, JOIN = 2 };
    __device__ static int start(int) { return 0; }
};

struct Q4_0 : Nibbles, Layout<16, 2> {
    enum { ZERO = 8, MINIMUM = 0 };
    struct Raw { uint4 codes; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 16 * block), stream2(f.f1 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) { return nibbles(word_of(raw.codes, i), run); }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32(raw.d); }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};

struct Q4_1 : Nibbles, Layout<16, 4> {
    enum { ZERO = 0, MINIMUM = 1 };
    struct Raw { uint4 codes; unsigned dm; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 16 * block), stream4(f.f1 + 4 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) { return nibbles(word_of(raw.codes, i), run); }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32((unsigned short)raw.dm); }
    __device__ static float minimum(const Raw& raw, int, int) { return -f16_to_f32((unsigned short)(raw.dm >> 16)); }
};

struct Q5_0 : Nibbles, Layout<16, 4, 2> {
    enum { ZERO = 16, MINIMUM = 0 };
    struct Raw { uint4 codes; unsigned high; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 16 * block), stream4(f.f1 + 4 * block), stream2(f.f2 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) {
        return nibbles(word_of(raw.codes, i), run) | spread(raw.high >> (16 * run + 4 * i), 4);
    }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32(raw.d); }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};

struct Q5_1 : Nibbles, Layout<16, 8> {
    enum { ZERO = 0, MINIMUM = 1 };
    struct Raw { uint4 codes; uint2 head; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 16 * block), stream8(f.f1 + 8 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) {
        return nibbles(word_of(raw.codes, i), run) | spread(raw.head.y >> (16 * run + 4 * i), 4);
    }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32((unsigned short)raw.head.x); }
    __device__ static float minimum(const Raw& raw, int, int) { return -f16_to_f32((unsigned short)(raw.head.x >> 16)); }
};

struct Q8_0 : Nibbles, Layout<32, 2> {
    enum { ZERO = 0, MINIMUM = 0 };
    struct Raw { uint4 first, second; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 32 * block), stream16(f.f0 + 32 * block + 16), stream2(f.f1 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) {
        return word_of(run == 0 ? raw.first : raw.second, i);
    }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32(raw.d); }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};

// -- types with a table of 16 values ----------------------------------------------------------------------------------

// int8 values of the four nibbles in the lower half of `codes`, in order. A byte permutation looks up 8 values; the
// third one chooses between the results for the lower and the upper half of the table, by bit 3 of each nibble.
__device__ __forceinline__ unsigned iq4_values(unsigned codes) {
    // -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113
    const unsigned places = codes & 0x7777u;
    const unsigned low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, places);
    const unsigned high = __byte_perm(0x26190d01u, 0x71594535u, places);
    return __byte_perm(low, high, 0x3210u | ((codes & 0x8888u) >> 1));
}

// The same for the lower (run 0) or upper (run 1) nibbles of a word's bytes.
__device__ __forceinline__ unsigned iq4_run(unsigned word, int run) {
    // Values of the nibbles 0 1 2 3 and 4 5 6 7; every second one is of this run.
    return __byte_perm(iq4_values(word & 0xffffu), iq4_values(word >> 16), run == 0 ? 0x6420u : 0x7531u);
}

struct IQ4_NL : Nibbles, Layout<16, 2> {
    enum { ZERO = 0, MINIMUM = 0 };
    struct Raw { uint4 codes; unsigned short d; };
    __device__ static Raw load(const Fields& f, int block, int) {
        return {stream16(f.f0 + 16 * block), stream2(f.f1 + 2 * block)};
    }
    __device__ static unsigned word(const Raw& raw, int, int run, int i) { return iq4_run(word_of(raw.codes, i), run); }
    __device__ static float scale(const Raw& raw, int, int) { return f16_to_f32(raw.d); }
    __device__ static float minimum(const Raw&, int, int) { return 0.0f; }
};
