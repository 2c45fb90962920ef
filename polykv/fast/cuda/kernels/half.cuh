// 16-bit floats as bits, without system headers: NVRTC needs no include path then.
//
// Conversions are instructions. Without .ftz they keep denormal halves, whose float32 values are normal numbers.

__device__ __forceinline__ float f16_to_f32(unsigned short bits) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
}

// Rounded to the nearest, ties to even; too large is infinite.
__device__ __forceinline__ unsigned short f32_to_f16(float x) {
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// A bfloat16 is the upper half of a float32.
__device__ __forceinline__ float bf16_to_f32(unsigned short bits) {
    return __uint_as_float((unsigned)bits << 16);
}

__device__ __forceinline__ unsigned short f32_to_bf16(float x) {
    unsigned short y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned f32_to_bf16x2(float first, float second) {
    unsigned y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}

// Two halves in a register: the first in the lower bits.
__device__ __forceinline__ unsigned f32_to_f16x2(float first, float second) {
    unsigned y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
