// Join partial results of prefill.cu: a warp for each query (row, head) of rows that have several, or none.
//
//   JOIN_DIMS     of a head, as they are stored

constexpr int DIMS = JOIN_DIMS, FOURS = (DIMS + 127) / 128, WARPS = 4;
constexpr float NOTHING = -1e30f, LN2 = 0.6931471805599453f;
#define BELOW_ALL (-__int_as_float(0x7F800000))

// rows [n]: which rows; ptr [n + 1], slots: their places, `place` of them in a part. A part has `queries` vectors for each K/V
// head: part [parts, heads / group, queries, DIMS]; ml the same, reference and sum of weights. out [R, heads, DIMS], lse [R, heads].
extern "C" __global__ void __launch_bounds__(32 * WARPS)
prefill_join(const float* part, const float2* ml, const int* rows, const int* ptr, const int* slots, int n, int place,
             int queries, int heads, int group, float* out, float* lse) {
    const int lane = threadIdx.x % 32, number = blockIdx.x * WARPS + threadIdx.x / 32, i = number / heads, head = number % heads;
    if (i >= n) return;
    const int first = ptr[i], last = ptr[i + 1];
    auto vector = [&](int slot) {
        return ((long long)(slot / place) * (heads / group) + head / group) * queries + slot % place * group + head % group;
    };
    float top = NOTHING, total = 0;
    float4 sum[FOURS];
    for (int f = 0; f < FOURS; ++f) sum[f] = {0, 0, 0, 0};
    for (int s = first; s < last; ++s) top = fmaxf(top, ml[vector(slots[s])].x);
#pragma unroll 1
    for (int s = first; s < last; ++s) {
        const long long at = vector(slots[s]);
        const float by = exp2f(ml[at].x - top);
        total = fmaf(by, ml[at].y, total);
#pragma unroll
        for (int f = 0; f < FOURS; ++f) {
            if (32 * f + lane >= DIMS / 4) continue;
            const float4 x = ((const float4*)(part + at * DIMS))[32 * f + lane];
            sum[f].x = fmaf(by, x.x, sum[f].x), sum[f].y = fmaf(by, x.y, sum[f].y);
            sum[f].z = fmaf(by, x.z, sum[f].z), sum[f].w = fmaf(by, x.w, sum[f].w);
        }
    }
    const long long at = (long long)rows[i] * heads + head;
    const float by = total == 0 ? 0.0f : 1.0f / total;
#pragma unroll
    for (int f = 0; f < FOURS; ++f)
        if (32 * f + lane < DIMS / 4)
            ((float4*)(out + at * DIMS))[32 * f + lane] = {sum[f].x * by, sum[f].y * by, sum[f].z * by, sum[f].w * by};
    if (lane == 0) lse[at] = total == 0 ? BELOW_ALL : (top + log2f(total)) * LN2;
}
