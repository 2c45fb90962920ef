// Join the partial results of `attend`: a block for 32 dims of each query (row, head).
//
//   MERGE_DIMS     head_dim            MERGE_THREADS     of a block, eight for a partial result

#include "follow.cuh"

constexpr int DIMS = MERGE_DIMS, FOURS = 8, THREADS = MERGE_THREADS, SIDES = THREADS / FOURS, WARPS = THREADS / 32, AHEAD = 4;
constexpr float NOTHING = -1e30f, LN2 = 0.6931471805599453f;
#define BELOW_ALL (-__int_as_float(0x7F800000))

__device__ __forceinline__ void scale(float4& x, float by) { x.x *= by, x.y *= by, x.z *= by, x.w *= by; }

// ptr [R H + 1], list: the partial results of a query, as rows of `part` and `ml`; out [R H, D], lse [R H].
extern "C" __global__ void __launch_bounds__(THREADS)
attend_merge(const float4* part, const float2* ml, const int* __restrict__ ptr,
             const int* __restrict__ list, float4* __restrict__ out, float* __restrict__ lse) {
    __shared__ float4 sums[WARPS][FOURS];
    __shared__ float each[WARPS], weights[WARPS];
    const int query = blockIdx.x, d = threadIdx.x % FOURS, side = threadIdx.x / FOURS, warp = threadIdx.x / 32;
    const int first = ptr[query] + side, last = ptr[query + 1], at = blockIdx.y * FOURS + d;
    // Lists are there before partial results are.
    int ahead[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; i++) ahead[i] = first + i * SIDES < last ? list[first + i * SIDES] : 0;
    follows(part, ml);
    // Every thread joins parts of its own, so that sums are on their way before it is known which part has the largest score.
    float own = NOTHING, weight = 0;
    float4 sum = make_float4(0, 0, 0, 0);
    auto join = [&](int r) {
        const float2 y = ml[r];
        const float4 x = part[(long long)r * (DIMS / 4) + at];
        const float now = fmaxf(own, y.x), old = exp2f(own - now), fresh = exp2f(y.x - now);
        scale(sum, old);
        sum.x = fmaf(fresh, x.x, sum.x), sum.y = fmaf(fresh, x.y, sum.y), sum.z = fmaf(fresh, x.z, sum.z), sum.w = fmaf(fresh, x.w, sum.w);
        weight = fmaf(fresh, y.y, weight * old), own = now;
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (first + i * SIDES < last) join(ahead[i]);
#pragma unroll 4
    for (int i = first + AHEAD * SIDES; i < last; i += SIDES) join(list[i]);
    float most = own;
    for (int o = 16; o; o /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
    if (threadIdx.x % 32 == 0) each[warp] = most;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, each[w]);
    const float f = exp2f(own - most);
    scale(sum, f), weight *= f;
    for (int o = 16; o >= FOURS; o /= 2) {
        weight += __shfl_xor_sync(~0u, weight, o);
        sum.x += __shfl_xor_sync(~0u, sum.x, o), sum.y += __shfl_xor_sync(~0u, sum.y, o);
        sum.z += __shfl_xor_sync(~0u, sum.z, o), sum.w += __shfl_xor_sync(~0u, sum.w, o);
    }
    if (threadIdx.x % 32 == 0) weights[warp] = weight;
    if (threadIdx.x % 32 < FOURS) sums[warp][d] = sum;
    __syncthreads();
    if (threadIdx.x >= FOURS) return;
    for (int w = 1; w < WARPS; w++) {
        const float4 x = sums[w][d];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    weight = 0;
    for (int w = 0; w < WARPS; w++) weight += weights[w];
    const float by = weight == 0 ? 0.0f : 1.0f / weight;
    out[(long long)query * (DIMS / 4) + at] = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
    if (at == 0) lse[query] = weight == 0 ? BELOW_ALL : LN2 * (most + log2f(weight));
}
