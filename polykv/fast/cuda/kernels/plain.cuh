// Matrices of floats, as their files have them: value i of the whole matrix.

#include "half.cuh"

struct PlainF32 {
    enum { BYTES = 4 };
    __device__ static float value(const unsigned char* data, long long i) { return ((const float*)data)[i]; }
};

struct PlainF16 {
    enum { BYTES = 2 };
    __device__ static float value(const unsigned char* data, long long i) {
        return f16_to_f32(((const unsigned short*)data)[i]);
    }
};

struct PlainBF16 {
    enum { BYTES = 2 };
    __device__ static float value(const unsigned char* data, long long i) {
        return bf16_to_f32(((const unsigned short*)data)[i]);
    }
};
