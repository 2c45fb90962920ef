// Values of a piece of a packed matrix, as float32: the arithmetic of polykv/ref/quants_*.py, rounding for rounding.

#include "weights_k.cuh"

// The code of a word's byte i.
__device__ __forceinline__ float code_of(unsigned word, int i) {
    return (float)(signed char)((word >> (8 * i)) & 255u);
}

// Four values of a run.
template <typename T>
__device__ __forceinline__ float4 values_of(const typename T::Raw& raw, int part, int run, int i) {
    const unsigned word = T::word(raw, part, run, i);
    const float s = T::scale(raw, part, run), z = (float)T::ZERO;
    float4 y = {s * (code_of(word, 0) - z), s * (code_of(word, 1) - z), s * (code_of(word, 2) - z),
                s * (code_of(word, 3) - z)};
    if (T::MINIMUM) {
        const float m = T::minimum(raw, part, run);
        y = {y.x - m, y.y - m, y.z - m, y.w - m};
    }
    return y;
}
