// Rows of a packed matrix as float32 or float16.
//
// Defines: WEIGHT_TYPE, OUTPUT_HALF (1: float16 bits). One thread a piece; blockIdx.x is the row of the output.
// A thread writes whole runs, 64 or 32 bytes at a time. scale = 1 leaves values as they are, denormals included.

#include "dequantize.cuh"
#include "weight_type.cuh"

__device__ __forceinline__ float4 scaled(float4 v, float scale) {
    return scale == 1.0f ? v : float4{v.x * scale, v.y * scale, v.z * scale, v.w * scale};
}

__device__ __forceinline__ void store(float* y, float4 v) {
    *(float4*)y = v;
}

__device__ __forceinline__ void store(unsigned short* y, float4 v) {
    *(uint2*)y = {f32_to_f16x2(v.x, v.y), f32_to_f16x2(v.z, v.w)};
}

#if OUTPUT_HALF
using Output = unsigned short;
#else
using Output = float;
#endif

// rows: which rows of W [total rows, cols]; null = first, first + 1, ... A row that W does not have becomes NaN: what
// was asked for is known on the device only, and the result must not look like one.
extern "C" __global__ void __launch_bounds__(128)
dequantize_rows(Output* y, const unsigned char* data, const int* rows, int first, int total, int cols, float scale) {
    const int blocks = cols / Weight::VALUES, piece = blockIdx.y * blockDim.x + threadIdx.x;
    if (piece >= blocks * Weight::PIECES) return;
    const long long out = blockIdx.x;
    const int row = rows ? rows[out] : first + (int)out;
    const int block = piece / Weight::PIECES, part = piece % Weight::PIECES;
    Output* to = y + out * cols + block * Weight::VALUES + Weight::start(part);
    if (row < 0 || row >= total) {
        const float nan = __uint_as_float(0x7fffffffu);
        for (int i = 0; i < Weight::RUNS * 4; ++i)
            store(to + i / 4 * Weight::STRIDE + i % 4 * 4, {nan, nan, nan, nan});
        return;
    }
    const Fields fields = Weight::fields(data, (long long)total * blocks, (long long)row * blocks);
    const auto raw = Weight::load(fields, block, part);
#pragma unroll
    for (int run = 0; run < Weight::RUNS; ++run)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            store(to + run * Weight::STRIDE + 4 * i, scaled(values_of<Weight>(raw, part, run, i), scale));
}
