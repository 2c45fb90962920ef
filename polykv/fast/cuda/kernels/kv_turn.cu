// Queries from their own space, in which exact keys lie, to that of rotated codes: a warp a vector.

#include "kv_types.cuh"
#include "follow.cuh"

#define TURN_WARPS 4

extern __shared__ float room[];

// from, to [n, dims], zeros behind what a vector has.
extern "C" __global__ void __launch_bounds__(32 * TURN_WARPS)
turned(float* to, const float* from, const Form* form, const float* signs, const signed char* core, const float* numbers, int n,
       int dims) {
    const int lane = threadIdx.x % 32, number = blockIdx.x * TURN_WARPS + threadIdx.x / 32;
    const Form f = *form;
    const Tables t = {signs, core, numbers};
    follows(from);
    if (number >= n) return;
    Vector v((u8*)room + threadIdx.x / 32 * Vector::bytes(f.room), f.room);
    for (int i = lane; i < f.stored; i += 32) v.x[i] = i < f.dim ? from[(long long)number * dims + i] : 0.0f;
    __syncwarp();
    rotate(v.x, v.y, f.stored, f, t, false, t.numbers[Tables::DECODE_SCALE], lane, 32);
    for (int i = lane; i < dims; i += 32) to[(long long)number * dims + i] = i < f.stored ? v.x[i] : 0.0f;
}
