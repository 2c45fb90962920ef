// Arithmetic on two halves in a register.

__device__ __forceinline__ unsigned halves_times(unsigned a, unsigned b) {
    unsigned y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

__device__ __forceinline__ unsigned halves_less(unsigned a, unsigned b) {
    unsigned y;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

__device__ __forceinline__ unsigned halves_least(unsigned a, unsigned b) {
    unsigned y;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

__device__ __forceinline__ unsigned halves_most(unsigned a, unsigned b) {
    unsigned y;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
