// The partial results of a query (attend_item.cuh) as one, by a warp: four dims a lane, heads of up to 128 dims. Many queries
// of few parts are joined so, on their way out of the space of the values; few queries of many parts by attend_merge.cu.

struct Parts {
    // Of the whole step: sums [parts, dims], (reference, weight) of each; where those of a query are in the list.
    const float4* sums;
    const float2* weights;
    const int *ptr, *list;
};

// Parts that are under way at once.
#define PARTS_AHEAD 18
#define PARTS_NOTHING (-1e30f)

// Lists are there before partial results are: `first` are the numbers of the first parts, one a lane.
template <int DIMS> __device__ __forceinline__ float4 parts_joined(const Parts& p, int begin, int end, int first, int lane) {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float reference = PARTS_NOTHING, weight = 0.0f;
#pragma unroll 1
    for (int at = begin; at < end; at += PARTS_AHEAD) {
        const bool there = lane < min(PARTS_AHEAD, end - at);
        const int number = !there ? 0 : at == begin ? first : p.list[at + lane];
        float4 x[PARTS_AHEAD];
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; ++i) {
            const int from = __shfl_sync(~0u, number, i);
            x[i] = at + i < end && lane < DIMS / 4 ? p.sums[(long long)from * (DIMS / 4) + lane] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        }
        const float2 of = there ? p.weights[number] : float2{PARTS_NOTHING, 0.0f};
        float top = fmaxf(reference, of.x);
        for (int distance = 16; distance; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
        const float old = exp2f(reference - top), by = there ? exp2f(of.x - top) : 0.0f;
        sum.x *= old, sum.y *= old, sum.z *= old, sum.w *= old;
        weight = fmaf(by, of.y, weight * old), reference = top;
#pragma unroll
        for (int i = 0; i < PARTS_AHEAD; ++i) {
            const float f = __shfl_sync(~0u, by, i);
            sum.x = fmaf(f, x[i].x, sum.x), sum.y = fmaf(f, x[i].y, sum.y), sum.z = fmaf(f, x[i].z, sum.z), sum.w = fmaf(f, x[i].w, sum.w);
        }
    }
    for (int distance = 16; distance; distance /= 2) weight += __shfl_xor_sync(~0u, weight, distance);
    const float by = weight == 0.0f ? 0.0f : 1.0f / weight;
    return {sum.x * by, sum.y * by, sum.z * by, sum.w * by};
}
