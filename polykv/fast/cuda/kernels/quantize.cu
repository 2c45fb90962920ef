// Rows of activations as int8, 32 values to a scale:
//
//     d = max|x| / 127,  q = round(x / d), halves away from zero
//
// codes [n, cols]; scales [n, cols / 32]: d as float32, and the sums of the codes of each 16 values as two int16.
// Eight threads a block of 32 values, four values each. NaN or infinity in a block makes d, and so every product, NaN
// or infinite.

#include "warp.cuh"

__device__ __forceinline__ float fourth_max(const float4& v) {
    return max_nan(max_nan(fabsf(v.x), fabsf(v.y)), max_nan(fabsf(v.z), fabsf(v.w)));
}

extern "C" __global__ void __launch_bounds__(256)
quantize_rows(unsigned* codes, uint2* scales, const float4* x, int fours) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    // Threads past the end take part in the exchanges.
    const float4 v = i < fours ? x[i] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    float top = fourth_max(v);
    for (int distance = 4; distance > 0; distance /= 2) top = max_nan(top, __shfl_xor_sync(WARP_ALL, top, distance));
    const float d = top / 127.0f;
    // Below 2^-126 there is no float32 inverse; such blocks become zeros.
    const float inverse = d >= 1.17549435e-38f ? 1.0f / d : 0.0f;
    const int a = (int)roundf(v.x * inverse), b = (int)roundf(v.y * inverse);
    const int c = (int)roundf(v.z * inverse), e = (int)roundf(v.w * inverse);
    const unsigned word = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (unsigned)(e & 255) << 24;
    if (i < fours) codes[i] = word;
    int sum = a + b + c + e;
    for (int distance = 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    const int other = __shfl_xor_sync(WARP_ALL, sum, 4);
    if (i < fours && i % 8 == 0)
        scales[i / 8] = {__float_as_uint(d), ((unsigned)sum & 0xffffu) | (unsigned)other << 16};
}
