// Rows of a matrix of floats as float32 or float16, one thread a value: see dequantize.cu.
//
// Defines: WEIGHT_FLOAT (a reader of plain.cuh), OUTPUT_HALF.

#include "plain.cuh"

#if OUTPUT_HALF
using Output = unsigned short;
__device__ __forceinline__ Output as_output(float x) {
    return f32_to_f16(x);
}
#else
using Output = float;
__device__ __forceinline__ Output as_output(float x) {
    return x;
}
#endif

extern "C" __global__ void __launch_bounds__(128)
dequantize_rows(Output* y, const unsigned char* data, const int* rows, int first, int total, int cols, float scale) {
    const int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= cols) return;
    const long long out = blockIdx.x;
    const int row = rows ? rows[out] : first + (int)out;
    float v = __uint_as_float(0x7fffffffu);
    if (row >= 0 && row < total) v = WEIGHT_FLOAT::value(data, (long long)row * cols + column);
    y[out * cols + column] = as_output(scale == 1.0f ? v : v * scale);
}
