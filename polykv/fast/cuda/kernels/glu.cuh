// Gate functions. Both are g / (1 + exp(-t)): t = g for silu, and for gelu_tanh
//
//     (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)),  z = sqrt(2 / pi) (g + 0.044715 g^3)
//
// which loses no digits where tanh is near -1, and cannot overflow but to the limit that is meant.

__device__ __forceinline__ float gate_silu(float g) {
    return g / (1.0f + expf(-g));
}

__device__ __forceinline__ float gate_gelu_tanh(float g) {
    return g / (1.0f + expf(-1.59576912f * fmaf(0.044715f * g * g, g, g)));
}
