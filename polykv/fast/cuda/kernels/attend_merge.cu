// Join the partial results of `attend`: a block for 32 dims of each query (row, head).
//
//   MERGE_DIMS     head_dim

#include "follow.cuh"

constexpr int DIMS = MERGE_DIMS, FOURS = 8, THREADS = 512, SIDES = THREADS / FOURS, MOST = 1024;
constexpr float NOTHING = -1e30f, LN2 = 0.6931471805599453f;
#define BELOW_ALL (-__int_as_float(0x7F800000))

// ptr [R H + 1], list: the partial results of a query, as rows of `part` and `ml`; out [R H, D], lse [R H].
extern "C" __global__ void __launch_bounds__(THREADS)
attend_merge(const float4* part, const float2* ml, const int* __restrict__ ptr,
             const int* __restrict__ list, float4* __restrict__ out, float* __restrict__ lse) {
    // What the parts of a round are worth, and where they are.
    __shared__ float worth[MOST];
    __shared__ int where[MOST];
    __shared__ float4 sums[THREADS / 32][FOURS];
    __shared__ float each[THREADS / 32], weights[THREADS / 32];
    follows(part, ml);
    const int query = blockIdx.x, d = threadIdx.x % FOURS, side = threadIdx.x / FOURS, warp = threadIdx.x / 32;
    const int first = ptr[query], last = ptr[query + 1], at = blockIdx.y * FOURS + d;
    float most = NOTHING, weight = 0;
    for (int i = first + threadIdx.x; i < last; i += THREADS) most = fmaxf(most, ml[list[i]].x);
    for (int o = 16; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (threadIdx.x % 32 == 0) each[warp] = most;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) most = fmaxf(most, each[w]);
    float4 sum = make_float4(0, 0, 0, 0);
    for (int begin = first; begin < last; begin += MOST) {
        const int n = min(MOST, last - begin);
        for (int i = threadIdx.x; i < n; i += THREADS) {
            const int r = list[begin + i];
            const float2 x = ml[r];
            const float f = exp2f(x.x - most);
            worth[i] = f, where[i] = r, weight += f * x.y;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = side; i < n; i += SIDES) {
            const float f = worth[i];
            const float4 x = part[(long long)where[i] * (DIMS / 4) + at];
            sum.x = fmaf(f, x.x, sum.x), sum.y = fmaf(f, x.y, sum.y), sum.z = fmaf(f, x.z, sum.z), sum.w = fmaf(f, x.w, sum.w);
        }
        __syncthreads();
    }
    for (int o = 16; o; o /= 2) {
        weight += __shfl_xor_sync(~0u, weight, o);
        if (o < FOURS) continue;
        sum.x += __shfl_xor_sync(~0u, sum.x, o), sum.y += __shfl_xor_sync(~0u, sum.y, o);
        sum.z += __shfl_xor_sync(~0u, sum.z, o), sum.w += __shfl_xor_sync(~0u, sum.w, o);
    }
    if (threadIdx.x % 32 == 0) weights[warp] = weight;
    if (threadIdx.x % 32 < FOURS) sums[warp][d] = sum;
    __syncthreads();
    if (threadIdx.x >= FOURS) return;
    for (int w = 1; w < THREADS / 32; w++) {
        const float4 x = sums[w][d];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    weight = 0;
    for (int w = 0; w < THREADS / 32; w++) weight += weights[w];
    const float by = weight == 0 ? 0.0f : 1.0f / weight;
    out[(long long)query * (DIMS / 4) + at] = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
    if (at == 0) lse[query] = weight == 0 ? BELOW_ALL : LN2 * (most + log2f(weight));
}
