// Sums and maxima over a warp and over a block. The order of a sum is fixed by the lanes alone.

#define WARP_ALL 0xffffffffu

// Sums over the lanes of each of R values: partners at distance 16, 8, 4, 2, 1 add up, for any R. While there are
// several values, lanes of a pair share the work: each keeps half of the values. So 8 values take 9 exchanges, not 40.
// The sum of value r ends in the lanes whose upper bits are r (`owner`).
template <int R>
__device__ __forceinline__ float warp_sums(float (&v)[R]) {
    const int lane = threadIdx.x & 31;
    int distance = 16;
#pragma unroll
    for (int half = R / 2; half > 0; half /= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const float mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];
            v[i] = mine + __shfl_xor_sync(WARP_ALL, other, distance);
        }
        distance /= 2;
    }
#pragma unroll
    for (; distance > 0; distance /= 2) v[0] += __shfl_xor_sync(WARP_ALL, v[0], distance);
    return v[0];
}

// The value whose sum `warp_sums` leaves in this lane, -1 in all lanes of a value but one.
template <int R>
__device__ __forceinline__ int owner() {
    const int lane = threadIdx.x & 31;
    return lane % (32 / R) == 0 ? lane / (32 / R) : -1;
}
