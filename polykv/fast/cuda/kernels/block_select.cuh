// What a block of BLOCK_THREADS threads does together when it looks for one element among many (sample.cuh).
//
// All threads call these at the same time and get the same result. Sums are of integers, so their order does not matter.

#include "warp.cuh"

#define BLOCK_THREADS 1024
#define BLOCK_WARPS (BLOCK_THREADS / 32)
// Buckets of a histogram: one a thread.
#define BLOCK_BUCKETS BLOCK_THREADS

typedef unsigned long long u64;

__device__ __forceinline__ int block_thread() {
    return threadIdx.x;
}

__device__ __forceinline__ void block_wait() {
    __syncthreads();
}

__device__ __forceinline__ u64 block_smallest(u64 v) {
    __shared__ u64 parts[BLOCK_WARPS];
    for (int distance = 16; distance > 0; distance /= 2) v = min(v, __shfl_xor_sync(WARP_ALL, v, distance));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = parts[threadIdx.x % BLOCK_WARPS];
    for (int distance = 16; distance > 0; distance /= 2) v = min(v, __shfl_xor_sync(WARP_ALL, v, distance));
    __syncthreads();
    return v;
}

__device__ __forceinline__ u64 block_largest(u64 v) {
    return ~block_smallest(~v);
}

// Sum of v over the threads before this one; total receives that over all.
__device__ __forceinline__ u64 block_before(u64 v, u64& total) {
    __shared__ u64 parts[BLOCK_WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = v;
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(WARP_ALL, sum, distance);
        if (lane >= distance) sum += other;
    }
    if (lane == 31) parts[warp] = sum;
    __syncthreads();
    u64 earlier = 0;
    total = 0;
    for (int i = 0; i < BLOCK_WARPS; ++i) {
        if (i < warp) earlier += parts[i];
        total += parts[i];
    }
    __syncthreads();
    return earlier + sum - v;
}

__device__ __forceinline__ void block_clear(u64* buckets) {
    buckets[threadIdx.x] = 0;
    __syncthreads();
}

__device__ __forceinline__ void block_add(u64* bucket, u64 v) {
    atomicAdd(bucket, v);
}

// The first bucket at which the sum from the first one on exceeds target = target_of(sum of all), and the sum before it.
// A target that is never exceeded becomes the largest one that is.
template <typename Target>
__device__ __forceinline__ int block_bucket(const u64* buckets, Target target_of, u64& target, u64& before) {
    __shared__ u64 found_before;
    __shared__ int found;
    __syncthreads();
    u64 total;
    const u64 mine = buckets[threadIdx.x], earlier = block_before(mine, total);
    target = min(target_of(total), total - 1);
    if (earlier <= target && target < earlier + mine) {
        found = threadIdx.x;
        found_before = earlier;
    }
    __syncthreads();
    before = found_before;
    const int bucket = found;
    __syncthreads();
    return bucket;
}
