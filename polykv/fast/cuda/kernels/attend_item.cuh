// What kernels that attend to codes are made of: sizes by the defines of a file, an item, and its queries.

#include "follow.cuh"
#include "mma.cuh"
#include "attend_types.cuh"
#ifdef ATT_COPIES
#include "attend_trellis.cuh"
#endif
#include "attend_scores.cuh"
#include "attend_means.cuh"
#include "attend_values.cuh"

constexpr int WARPS = ATT_WARPS, TILE = 32, QUERIES = 4 * ATT_SETS, DIMS = ATT_WIDTH * ATT_SLICES, TURN = TILE * ATT_TILES;
constexpr float NOTHING = -1e30f;

using KCodes = Codes<ATT_K, ATT_WIDTH>;
using VCodes = ValueCodes<ATT_V, ATT_WIDTH>;
constexpr int K_PART = KCodes::BYTES, V_PART = VCodes::BYTES, K_TILE = ATT_SLICES * K_PART, V_TILE = ATT_SLICES * V_PART;
constexpr int MEAN = ATT_MEANS ? Means<ATT_WIDTH, ATT_SETS>::BYTES : 0;

struct Item {
    // old: cells that were there before this step.
    int table, first, count, start, old, row, rows, head, heads;
};

#include "attend_source.cuh"

// The slice of an item's queries that a warp multiplies.
struct ItemQueries {
    Scores<ATT_K, ATT_WIDTH, ATT_SETS> scores;
    Means<ATT_WIDTH, ATT_SETS> means;
    // Where query t of every set stands, and all of them.
    int position[ATT_SETS], lowest, highest;
    // Of query g / 2 of every set, until it is prepared.
    const float* from[ATT_SETS];
    float x[ATT_SETS][ATT_WIDTH / 32][8];

    __device__ __forceinline__ bool used(const Item& item, int m, int g) const { return 4 * m + g / 2 < item.rows * item.heads; }

    // Query i of the item is head i % heads of row i / heads, `head` the first one of its K/V head. A lane loads dims of query
    // g / 2 of a set, and has scores of query t.
    __device__ __forceinline__ void find(const float* q, const int* rows, const int* positions, const Item& item, int n_heads,
                                         int first_head, int slice, int g) {
        lowest = 0x7FFFFFFF, highest = -1;
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
            const int query = 4 * m + g / 2;
            const int row = used(item, m, g) ? rows[item.row + query / item.heads] : 0, head = first_head + item.head + query % item.heads;
            from[m] = q + ((long long)row * n_heads + head) * DIMS + slice * ATT_WIDTH;
            position[m] = used(item, m, g) ? positions[row] : -1;
        }
    }
    __device__ __forceinline__ void load(const Item& item, int g, int t) {
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++)
#pragma unroll
            for (int s = 0; s < ATT_WIDTH / 32; s++) octet(from[m] + KCodes::first_dim(s, t), used(item, m, g), x[m][s]);
    }

    // tops: room for a float of each query and slice, where there are several; barrier: of the warps of a head's slices.
    __device__ __forceinline__ void prepare(const Item& item, float* tops, int barrier, int slice, float k_unit, float whole_unit, int g, int t) {
        float top[ATT_SETS];
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
            top[m] = 0;
#pragma unroll
            for (int s = 0; s < ATT_WIDTH / 32; s++) top[m] = largest(x[m][s], top[m]);
            top[m] = quad_max(top[m]);
            if (ATT_SLICES > 1 && t == 0) tops[slice * QUERIES + 4 * m + g / 2] = top[m];
        }
        if (ATT_SLICES > 1) meet(barrier, 32 * ATT_SLICES);
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
#pragma unroll
            for (int o = 0; o < (ATT_SLICES > 1 ? ATT_SLICES : 0); o++) top[m] = max_nan(top[m], tops[o * QUERIES + 4 * m + g / 2]);
            scores.prepare(m, x[m], top[m], k_unit, whole_unit, g, t);
            if (ATT_MEANS) means.prepare(m, from[m], used(item, m, g), whole_unit, g, t);
            lowest = min(lowest, __reduce_min_sync(~0u, used(item, m, g) ? position[m] : 0x7FFFFFFF));
            highest = max(highest, __reduce_max_sync(~0u, position[m]));
            position[m] = __shfl_sync(~0u, position[m], 8 * t);
        }
    }

    // Turns from the first to the second but one are seen whole by every query.
    __device__ __forceinline__ int open(const Item& item, int window, int seen_from) const {
        return max(0, max(window > 0 ? highest - window + TURN : 0, seen_from + TURN - 1) - item.start) / TURN;
    }
    __device__ __forceinline__ int closed(const Item& item) const { return min(item.count, max(0, lowest + 1 - item.start)) / TURN; }
};

// Whether a query that stands at `where` sees cell c of an item.
__device__ __forceinline__ bool sees(const Item& item, int c, int where, int window, int seen_from) {
    const int at = item.start + c;
    return c < item.count && at <= where && at >= seen_from && (window == 0 || at > where - window);
}

__device__ __forceinline__ float capped(float x, float softcap) {
    const float most = softcap * 1.4426950408889634f;
    return most * tanhf(x / most);
}
