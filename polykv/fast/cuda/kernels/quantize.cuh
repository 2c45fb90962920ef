// Four values of a row of activations as int8, 32 values to a scale; eight threads have a block of 32.
//
//     d = max|x| / 127,  q = round(x / d), halves away from zero
//
// TILES 0: codes [n, cols]; scales [n, cols / 32]: d as float32, and the sums of the codes of each 16 values as two int16.
// TILES 1: the rows are completed to a multiple of 8 by zeros. A chunk is 8 rows, a step 32 columns, a tile four steps;
//    codes [tile][chunk][step][row][q][half]: word q of four codes of each half of 32 values, as lanes 4 row + q of a warp
//    want them; scales [tile][chunk][step][row]. So what a tile takes of any chunk and step is at a constant distance.
// NaN or infinity in a block makes d, and so every product, NaN or infinite.

#include "max_nan.cuh"
#include "warp.cuh"

__device__ __forceinline__ float fourth_max(const float4& v) {
    return max_nan(max_nan(fabsf(v.x), fabsf(v.y)), max_nan(fabsf(v.z), fabsf(v.w)));
}

// Values 4 `four` to 4 `four` + 3 of row `row`. All lanes of a warp take part, eight next to each other with a block of 32
// values; what they have is written where `wanted`. chunks: of all rows, with TILES.
template <int TILES>
__device__ __forceinline__ void
put_four(unsigned* codes, uint2* scales, const float4& v, int row, int four, int cols, int chunks, bool wanted) {
    float top = fourth_max(v);
    for (int distance = 4; distance > 0; distance /= 2) top = max_nan(top, __shfl_xor_sync(WARP_ALL, top, distance));
    const float d = top / 127.0f;
    // Below 2^-126 there is no float32 inverse; such blocks become zeros.
    const float inverse = d >= 1.17549435e-38f ? 1.0f / d : 0.0f;
    const int a = (int)roundf(v.x * inverse), b = (int)roundf(v.y * inverse);
    const int c = (int)roundf(v.z * inverse), e = (int)roundf(v.w * inverse);
    const unsigned word = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (unsigned)(e & 255) << 24;
    int sum = a + b + c + e;
    for (int distance = 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(WARP_ALL, sum, distance);
    const int other = __shfl_xor_sync(WARP_ALL, sum, 4);
    if (!wanted) return;
    const int tile = four / 32 * chunks + row / 8;
    const int place = TILES ? (4 * tile + four / 8 % 4) * 8 + row % 8 : row * (cols / 32) + four / 8;
    if (TILES)
        codes[(4 * place + four % 4) * 2 + four / 4 % 2] = word;
    else
        codes[row * (cols / 4) + four] = word;
    if (four % 8 == 0) scales[place] = {__float_as_uint(d), ((unsigned)sum & 0xffffu) | (unsigned)other << 16};
}
