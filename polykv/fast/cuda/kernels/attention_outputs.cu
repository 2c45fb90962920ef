// Results of attention out of the space of the values, for the product with Wo: a warp a vector.
//
//     y = factors * (back-rotated x)      as float32, or at once as int8 (quantize.cuh) where vectors are whole 32 values
//
// Where cells are exact first (OUTPUT_EXACT), x is over codes and `exact` over exact cells, in the true space; both become one
// by their lse.
//
// Where many queries have few partial results each (OUTPUT_PARTS), x and lse are those of `attend`, which become one here.
//
// Defines: OUTPUT_INT8, OUTPUT_EXACT, OUTPUT_PARTS (0, 1), QUANTIZE_TILES; V_DIM to V_SPARE, the sizes of V (struct Form of kv_form.cuh).

#define KV_FIXED
#include "follow.cuh"
#include "kv_types.cuh"
#include "kv_soon.cuh"
#include "quantize.cuh"
#if OUTPUT_PARTS
#include "parts.cuh"
#endif

#define OUTPUT_WARPS 4

extern __shared__ float room[];

constexpr Form FORM = {V_DIM, V_STORED, V_RESIDENT, V_GROUP, V_TURN, V_CORE, V_WIDTH, V_SLICES, V_VALUES,
                       V_SLICE_BYTES, V_GROUP_BYTES, V_CODES_AT, V_VECTOR_BYTES, V_ROOM, V_SPARE};

// What a part is worth in the whole: 0 where it saw nothing. NaN is NaN in the whole.
__device__ __forceinline__ float worth(float own, float other) {
    const float top = own > other || own != own ? own : other;
    if (top == -INFINITE) return 0.0f;
    const float mine = expf(own - top);
    return mine / (mine + expf(other - top));
}

// x, exact [n, heads, dims], the first in the space of V; lse, exact_lse [n, heads]; factors [heads, dim] or null; y
// [n, heads, dim], or codes and scales of `rows` rows, those from n on zeros. ptr, list: of partial results.
extern "C" __global__ void __launch_bounds__(32 * OUTPUT_WARPS)
attention_outputs(float* y, unsigned* codes, uint2* scales, const float* x, const float* lse, const float* exact,
                  const float* exact_lse, const float* signs, const signed char* core, const float* numbers, const float* factors,
                  int n, int rows, int heads, int dims, const int* ptr, const int* list) {
    const int number = blockIdx.x * OUTPUT_WARPS + threadIdx.x / 32, row = number / heads, head = number % heads;
    const int lane = threadIdx.x % 32;
    constexpr Form f = FORM;
    const Tables t = {signs, core, numbers};
    tables_soon(t, f, lane);
    soon(factors ? factors + head * f.dim : factors, 4 * f.dim, lane);
#if OUTPUT_PARTS
    const int begin = row < n ? ptr[number] : 0, end = row < n ? ptr[number + 1] : 0, first = begin + lane < end ? list[begin + lane] : 0;
#endif
    follows(x, lse, exact, exact_lse);
    if (row >= rows) return;
    Vector v((u8*)room + threadIdx.x / 32 * Vector::bytes(f.room), f.room);
#if OUTPUT_PARTS
    const float4 joined = parts_joined<V_WIDTH>({(const float4*)x, (const float2*)lse, ptr, list}, begin, end, first, lane);
    if (lane < V_ROOM / 4) ((float4*)v.x)[lane] = joined;
    __syncwarp();
#else
KV_LOOP
    for (int i = lane; i < f.room; i += 32) v.x[i] = i < dims && row < n ? x[(long long)number * dims + i] : 0.0f;
#endif
    leave(v, f, t, lane, 32);
#if OUTPUT_EXACT
    if (row < n) {
        const float a = lse[number], b = exact_lse[number], of_codes = worth(a, b), of_exact = worth(b, a);
        __syncwarp();
KV_LOOP
        for (int i = lane; i < f.dim; i += 32) v.x[i] = of_codes * v.x[i] + of_exact * exact[(long long)number * dims + i];
    }
#endif
    if (factors)
KV_LOOP
        for (int i = lane; i < f.dim; i += 32) v.x[i] *= factors[head * f.dim + i];
    __syncwarp();
#if OUTPUT_INT8
    for (int start = 0; start < f.dim / 4; start += 32) {
        const int four = start + lane;
        const float4 w = four < f.dim / 4 ? ((const float4*)v.x)[four] : float4{0.0f, 0.0f, 0.0f, 0.0f};
        const int at = head * (f.dim / 4) + four;
        put_four<QUANTIZE_TILES>(codes, scales, w, row, at, heads * f.dim, rows / 8, four < f.dim / 4);
    }
#else
KV_LOOP
    for (int i = lane; i < f.dim; i += 32) y[(long long)number * f.dim + i] = v.x[i];
#endif
}
