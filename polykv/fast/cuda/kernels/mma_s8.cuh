// Products of int8 on tensor cores: c += a b for 16 rows of a and 8 columns of b. Lane 4 g + q of a warp holds
//
//     a    words q of rows g and g + 8: four values each, of every 16 along k
//     b    word q of column g, of every 16 along k
//     c    rows g (c[0], c[1]) and g + 8 (c[2], c[3]) of columns 2 q and 2 q + 1

// 32 along k: a word of either row for the first 16, then for the other 16.
__device__ __forceinline__ void mma_s8_32(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y));
}

// 32 along k: d = c + a b.
__device__ __forceinline__ void
mma_s8_32_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// The same for a without sign.
__device__ __forceinline__ void
mma_u8_32_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, uint2 b) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// x in a register of its own: as a constant it would be moved there for every product.
__device__ __forceinline__ void keep_in_register(int& x) {
    asm volatile("" : "+r"(x));
}

// 16 along k.
__device__ __forceinline__ void mma_s8_16(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

// 16 along k: d = c + a b.
__device__ __forceinline__ void mma_s8_16_from(int (&d)[4], const int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// 64 along k, of which a has two of every four: in rows g the first two, in rows g + 8 the last two. Both are the same numbers: word
// q of every 16 of 32. b has word q of column g of every 16 of 64. (PTX ISA, "mma.sp": lanes of even q say which for rows g.)
__device__ __forceinline__ void mma_s8_64_of_two(int (&c)[4], unsigned a0, unsigned a1, const unsigned (&b)[4]) {
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 5)
#define MMA_SPARSE "mma.sp::ordered_metadata"
#else
#define MMA_SPARSE "mma.sp"
#endif
    asm(MMA_SPARSE ".sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %4, %5, %5}, {%6, %7, %8, %9}, {%0, %1, %2, %3}, %10, 0;"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(threadIdx.x % 2 ? 0xEEEEEEEEu : 0x44444444u));
}

// by * (low + high) + start for the two int16 of a word; by fits a signed byte.
__device__ __forceinline__ int two_times(unsigned word, int by, int start) {
    return __dp2a_lo((int)word, (by & 255) * 0x0101, start);
}
