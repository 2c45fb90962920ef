// Eight float32 values rounded to halves; what is above the largest half becomes that, as it does when f16 is stored.

__device__ __forceinline__ float as_half(float x) { return x < -65504.0f ? -65504.0f : x > 65504.0f ? 65504.0f : x; }

__device__ __forceinline__ uint4 eight_halves(float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = as_half(x[i]);
    return {f32_to_f16x2(x[0], x[1]), f32_to_f16x2(x[2], x[3]), f32_to_f16x2(x[4], x[5]), f32_to_f16x2(x[6], x[7])};
}
