// Packed weights as lanes of a warp hold them for tensor cores; tiles_k.cuh has the types with blocks of 256 values.
//
// A tile is 128 values of one row of W: four steps of 32, and a step is two halves of 16 values. Lane q of a quad holds
// word q of every half: word(step, half, q) is its four codes as int8. With HALVES = 0 the values of a step are
//
//     scale(step) * (code - ZERO), or scale(step) * code - minimum(step) with MINIMUM = 1
//
// and with HALVES = 1, where each half has a scale of its own, small integers times a factor of the block:
//
//     scale() * factor(step, half) * (code - ZERO) [- minimum() * offset(step, half)]
//
// `start` only reads; `finish` lets the lanes of a quad exchange what they have read (quad.cuh). SEGMENT: bytes.

#include "quad.cuh"
#include "weights_k.cuh"

__device__ __forceinline__ float low_half(unsigned word) {
    return f16_to_f32((unsigned short)word);
}

__device__ __forceinline__ float high_half(unsigned word) {
    return f16_to_f32((unsigned short)(word >> 16));
}

// Half i of the four in two words.
__device__ __forceinline__ float half_of(uint2 v, int i) {
    const unsigned word = i < 2 ? v.x : v.y;
    return (i & 1) ? high_half(word) : low_half(word);
}

template <typename Weight>
struct Tile;

// Four blocks of 16 bytes of nibbles: step is the block, half the upper or lower nibbles.
struct NibbleTile {
    enum { HALVES = 0 };
    uint4 codes;
    __device__ __forceinline__ void finish(int q) { codes = quad_finish(codes, q); }
    __device__ __forceinline__ unsigned word(int step, int half, int) const { return nibbles(word_of(codes, step), half); }
};

template <>
struct Tile<Q4_0> : NibbleTile {
    uint2 d;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        d = stream8(f.f1 + 8 * tile);
    }
    __device__ __forceinline__ float scale(int step) const { return half_of(d, step); }
    __device__ __forceinline__ float minimum(int) const { return 0.0f; }
};

template <>
struct Tile<IQ4_NL> : Tile<Q4_0> {
    __device__ __forceinline__ unsigned word(int step, int half, int) const { return iq4_run(word_of(codes, step), half); }
};

template <>
struct Tile<Q4_1> : NibbleTile {
    uint4 dm;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        dm = stream16(f.f1 + 16 * tile);
    }
    __device__ __forceinline__ float scale(int step) const { return low_half(word_of(dm, step)); }
    __device__ __forceinline__ float minimum(int step) const { return -high_half(word_of(dm, step)); }
};

template <>
struct Tile<Q5_0> : NibbleTile {
    uint4 high;
    uint2 d;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        high = stream16(f.f1 + 16 * tile);
        d = stream8(f.f2 + 8 * tile);
    }
    __device__ __forceinline__ unsigned word(int step, int half, int q) const {
        return NibbleTile::word(step, half, q) | spread(word_of(high, step) >> (16 * half + 4 * q), 4);
    }
    __device__ __forceinline__ float scale(int step) const { return half_of(d, step); }
    __device__ __forceinline__ float minimum(int) const { return 0.0f; }
};

template <>
struct Tile<Q5_1> : NibbleTile {
    uint4 first, second;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        codes = quad_start(f.f0 + 64 * tile, q);
        first = stream16(f.f1 + 32 * tile);
        second = stream16(f.f1 + 32 * tile + 16);
    }
    // Word 0 of a block's head is d and m, word 1 the fifth bits.
    __device__ __forceinline__ unsigned head(int step, int i) const {
        return word_of(step < 2 ? first : second, 2 * (step & 1) + i);
    }
    __device__ __forceinline__ unsigned word(int step, int half, int q) const {
        return NibbleTile::word(step, half, q) | spread(head(step, 1) >> (16 * half + 4 * q), 4);
    }
    __device__ __forceinline__ float scale(int step) const { return low_half(head(step, 0)); }
    __device__ __forceinline__ float minimum(int step) const { return -high_half(head(step, 0)); }
};

template <>
struct Tile<Q8_0> {
    enum { HALVES = 0 };
    uint4 first, second;
    uint2 d;
    __device__ __forceinline__ void start(const Fields& f, int tile, int q) {
        first = quad_start(f.f0 + 128 * tile, q);
        second = quad_start(f.f0 + 128 * tile + 64, q);
        d = stream8(f.f1 + 8 * tile);
    }
    __device__ __forceinline__ void finish(int q) {
        first = quad_finish(first, q);
        second = quad_finish(second, q);
    }
    __device__ __forceinline__ unsigned word(int step, int half, int) const {
        return word_of(step < 2 ? first : second, 2 * (step & 1) + half);
    }
    __device__ __forceinline__ float scale(int step) const { return half_of(d, step); }
    __device__ __forceinline__ float minimum(int) const { return 0.0f; }
};
