// Attention of many rows over tiles of halves: out = softmax(q k) v, for up to 32 GROUPS queries of one K/V head at a time.
//
// K and V are f16 tiles of the cache, or what lift.cu made of other types. An item of the grid is a tile of rows (times the
// query heads that share a K/V head), with all cells that they see, or a part of them; then its result is a partial one,
// (reference, sum of weights, sums of values), and prefill_join.cu joins those of a row. Specialised by defines:
//
//   PRE_WIDTH    dims of a slice (attend.cu)     PRE_SLICES   of a head: 1, 2 or 4
//   PRE_GROUPS   teams of warps, 32 queries each PRE_CELLS    cells of a turn: 32 or 64
//   PRE_CTAS     blocks for a multiprocessor     PRE_SOFTCAP  whether scores are capped
//
// A team has a warp for each slice. A warp computes scores of its share of a turn's cells, all dims of them; the team
// exchanges maxima and weights; then each warp sums its slice of the values. With one slice nothing is exchanged.
// K of the next turn is on its way while this one's values are summed, and V while scores are computed.

#include "mma.cuh"
#include "prefill.cuh"
#include "softmax.cuh"

// Cells that a row does not see get no weight. first: the lane's first cell; seen_from: the lowest position that is seen.
__device__ __forceinline__ void mask(float (&x)[2][OCTETS][4], const Range& range, int first, int team, int lane, int window,
                                     int seen_from) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int position = shared<int>(POSITION_AT + (32 * team + 8 * r + lane / 4) * 4) - range.start;
        const int end = min(range.last, position + 1), begin = max(window > 0 ? position - window + 1 : 0, seen_from - range.start);
#pragma unroll
        for (int e = 0; e < 2 * OCTETS; ++e) {
            const int cell = first + 8 * (e / 2) + e % 2;
            if (cell < begin || cell >= end) x[r / 2][e / 2][r % 2 * 2 + e % 2] = BELOW_ALL;
        }
    }
}

// The largest score of every row, in units: of the warp's cells, then of the team's.
__device__ __forceinline__ void largest(const float (&x)[2][OCTETS][4], float (&top)[4], int team, int slice, int lane) {
    largest_of_warp(x, top);
#pragma unroll
    for (int r = 0; r < 4; ++r)
        if (SLICES > 1 && lane % 4 == 0) shared<float>(TOP_AT + ((slice * PRE_GROUPS + team) * 32 + 8 * r + lane / 4) * 4) = top[r];
    if (SLICES == 1) return;
    meet(1 + team, 32 * SLICES);
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int s = 0; s < SLICES; ++s)
            top[r] = fmaxf(top[r], shared<float>(TOP_AT + ((s * PRE_GROUPS + team) * 32 + 8 * r + lane / 4) * 4));
}

__device__ __forceinline__ void units_of(float (&units)[4], int team, int lane) {
#pragma unroll
    for (int r = 0; r < 4; ++r) units[r] = shared<float>(UNIT_AT + (32 * team + 8 * r + lane / 4) * 4);
}

// Weights to shared memory, where the warps of a team find them.
__device__ __forceinline__ void weights_out(const float (&x)[2][OCTETS][4], int to, int slice) {
#pragma unroll
    for (int e = 0; e < 2 * OCTETS; ++e) {
        const int i = e / OCTETS, octet = slice * OCTETS + e % OCTETS;
        const float(&y)[4] = x[i][e % OCTETS];
        shared<uint2>(to + (i * CELLS / 16 + octet / 2) * 512 + octet % 2 * 8) = {f32_to_f16x2(y[0], y[1]), f32_to_f16x2(y[2], y[3])};
    }
}

// The rows' results: whole ones, or sums with what they are worth.
__device__ __forceinline__ void results_out(const float (&o)[2][WIDTH / 8][4], const Softmax<2>& softmax, const Item& item,
    int thread, const int* rows, int heads, int group, float* out, float* lse, float* part, float2* part_ml) {
    const int lane = thread % 32, team = thread / 32 / SLICES, slice = thread / 32 % SLICES;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int query = 32 * team + 8 * r + lane / 4;
        if (query >= item.rows * group) continue;
        const float total = softmax.total[r];
        long long at = ((long long)item.part * gridDim.x + blockIdx.x) * QUERIES + query;
        if (item.part < 0) at = (long long)rows[item.first + query / group] * heads + blockIdx.x * group + query % group;
        float* to = (item.part < 0 ? out : part) + at * DIMS + slice * WIDTH + 2 * (lane % 4);
        // A row that sees nothing is zero. NaN is not 0.
        const float by = item.part >= 0 ? 1.0f : total == 0 ? 0.0f : 1.0f / total;
#pragma unroll
        for (int m = 0; m < WIDTH / 8; ++m)
            *(float2*)(to + 8 * m) = {o[r / 2][m][r % 2 * 2] * by, o[r / 2][m][r % 2 * 2 + 1] * by};
        if (slice > 0 || lane % 4 > 0) continue;
        if (item.part >= 0) part_ml[at] = {softmax.reference[r], total};
        else lse[at] = total == 0 ? BELOW_ALL : (softmax.reference[r] + log2f(total)) * LN2;
    }
}

// Sums of a row's lanes; where there are slices, of its warps, which have different cells.
__device__ __forceinline__ void whole_totals(Softmax<2>& softmax, int thread) {
    const int lane = thread % 32, team = thread / 32 / SLICES, slice = thread / 32 % SLICES;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        float& total = softmax.total[r];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (SLICES > 1 && lane % 4 == 0) shared<float>(TOP_AT + ((slice * PRE_GROUPS + team) * 32 + 8 * r + lane / 4) * 4) = total;
    }
    if (SLICES == 1) return;
    meet(1 + team, 32 * SLICES);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        softmax.total[r] = 0;
#pragma unroll
        for (int s = 0; s < SLICES; ++s)
            softmax.total[r] += shared<float>(TOP_AT + ((s * PRE_GROUPS + team) * 32 + 8 * r + lane / 4) * 4);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, PRE_CTAS)
prefill(const float* q, const Item* items, const Range* ranges, const int* rows, const int* positions, const u8* k, const u8* v,
        const int* k_table, const int* v_table, long long k_block, long long v_block, long long k_head, long long v_head,
        int shift, int heads, int group, float unit, float softcap, int window, int seen_from, float* out, float* lse, float* part,
        float2* part_ml) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / SLICES, slice = warp % SLICES;
    const Item& item = items[blockIdx.y];
    const Side keys = {k, k_table, k_block, k_head}, values = {v, v_table, v_block, v_head};
    Walk walk = {item.range, item.ranges, item.ranges ? ranges[item.range].first : 0};
    Turn turn;
    bool more = walk.next(turn, ranges, keys, values, shift);
    if (more) keys.fetch(K_AT, turn.k, turn.cell, shift);
    queries_in(q, rows + item.first, positions, item.rows * group, heads, group, unit);
    __syncthreads();
    Softmax<2> softmax;
    softmax.clear();
    float o[2][WIDTH / 8][4];
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) o[e / 4 / (WIDTH / 8)][e / 4 % (WIDTH / 8)][e % 4] = 0;

    while (more) {
        copies_but<0>();
        __syncthreads();
        values.fetch(V_AT, turn.v, turn.cell, shift);
        const Range& range = ranges[turn.range];
        const int cell = turn.cell;
        more = walk.next(turn, ranges, keys, values, shift);

        float x[2][OCTETS][4], top[4], by[4], units[4];
        multiply_keys(x, team, slice, lane);
        copies_but<0>();
        __syncthreads();
        if (more) keys.fetch(K_AT, turn.k, turn.cell, shift);
        units_of(units, team, lane);
#ifdef PRE_SOFTCAP
        cap(x, units, softcap * LOG2E);
#endif
        if (cell < range.open || cell + CELLS > range.closed)
            mask(x, range, cell + 8 * OCTETS * slice + 2 * (lane % 4), team, lane, window, seen_from);
        largest(x, top, team, slice, lane);
        if (softmax.refit(top, units, by))
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) o[e / 4 / (WIDTH / 8)][e / 4 % (WIDTH / 8)][e % 4] *= by[e / 4 / (WIDTH / 8) * 2 + e % 4 / 2];
        softmax.weigh(x, units);
        if constexpr (SLICES == 1) {
            multiply_values(o, [&](int u, int i) { return operands(x[i][2 * u], x[i][2 * u + 1]); }, slice, lane);
        } else {
            const int weights = P_AT + team * 32 * CELLS * 2 + 16 * lane;
            weights_out(x, weights, slice);
            meet(1 + team, 32 * SLICES);
            multiply_values(o, [&](int u, int i) { return shared<uint4>(weights + (i * CELLS / 16 + u) * 512); }, slice, lane);
        }
    }
    const int thread = thread_again();
    whole_totals(softmax, thread);
    results_out(o, softmax, items[blockIdx.y], thread, rows, heads, group, out, lse, part, part_ml);
}
