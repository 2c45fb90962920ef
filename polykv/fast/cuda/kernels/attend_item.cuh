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

// The slice of an item's queries that a warp multiplies. TEAMS: warps that multiply the same; each prepares some steps of 32 dims,
// and they take the others from shared memory.
template <int TEAMS> struct ItemQueries {
    typedef Scores<ATT_K, ATT_WIDTH, ATT_SETS> Of;
    static constexpr int STEPS = ATT_WIDTH / 32, PIECES = ATT_SETS * STEPS, EACH = (PIECES + TEAMS - 1) / TEAMS;
    // Of every query and step the largest dim, and their sum; and words of the columns.
    static constexpr int TOPS = QUERIES * STEPS * ATT_SLICES, TOPS_BYTES = 8 * TOPS;
    static constexpr int BYTES = TOPS_BYTES + (TEAMS > 1 ? ATT_SLICES * PIECES * Of::WORDS * 128 : 0);
    Of scores;
    Means<ATT_WIDTH, ATT_SETS> means;
    // Where query t of every set stands, and all of them.
    int position[ATT_SETS], lowest, highest;
    // Of query g / 2 of every set, until it is prepared: all of its dims, and those of the warp's own steps.
    const float* from[ATT_SETS];
    float x[EACH][8];

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
    // Piece i of a team is step % STEPS of set / STEPS of this.
    static __device__ __forceinline__ int piece(int team, int i) { return team + i * TEAMS; }
    __device__ __forceinline__ void load(const Item& item, int team, int g, int t) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = piece(team, i), m = c / STEPS;
            const float* at = (m == 0 ? from[0] : from[ATT_SETS - 1]) + KCodes::first_dim(c % STEPS, t);
            if (c < PIECES) octet(at, used(item, m, g), x[i]);
        }
    }

    // room: BYTES of shared memory that nothing else uses until the warps meet again; barrier: of `THREADS` threads that prepare.
    template <int THREADS>
    __device__ __forceinline__ void prepare(const Item& item, void* room, int barrier, int team, int slice, float k_unit, float whole_unit, int g, int t) {
        // [query][slice][step]
        float *tops = static_cast<float*>(room), *sums = tops + TOPS;
        u32* words = reinterpret_cast<u32*>(sums + TOPS) + slice * PIECES * Of::WORDS * 32 + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = piece(team, i), at = ((c / STEPS * 4 + g / 2) * ATT_SLICES + slice) * STEPS + c % STEPS;
            if (c >= PIECES) break;
            const float top = quad_max(largest(x[i], 0));
            float all = 0;
            if (Of::MINIMA) {
#pragma unroll
                for (int j = 0; j < 8; j++) all += x[i][j];
                all = quad_sum(all);
            }
            // Two quads have the same query: one writes the largest dim, the other the sum, to `sums`.
            if (t == 0) tops[at + g % 2 * TOPS] = g % 2 ? all : top;
        }
        meet(barrier, THREADS);
        // The largest dim of all of a query, or of one step.
        auto top_of = [&](int query, int s) {
            const float* of = tops + query * ATT_SLICES * STEPS;
            float top = Of::WHOLE ? 0 : of[slice * STEPS + s];
#pragma unroll
            for (int i = 0; i < (Of::WHOLE ? ATT_SLICES * STEPS : 0); i++) top = max_nan(top, of[i]);
            return top;
        };
        auto take = [&](int m, int s, const u32(&w)[Of::WORDS]) {
            scores.take(m, s, w, top_of(4 * m + t, s), Of::MINIMA ? sums[((4 * m + t) * ATT_SLICES + slice) * STEPS + s] : 0, k_unit, whole_unit);
        };
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int c = piece(team, i);
            if (c >= PIECES) break;
            u32 w[Of::WORDS];
            Of::words(x[i], top_of(c / STEPS * 4 + g / 2, c % STEPS), g, w);
            if constexpr (TEAMS == 1) take(i / STEPS, i % STEPS, w);
            else
#pragma unroll
                for (int j = 0; j < Of::WORDS; j++) words[(c * Of::WORDS + j) * 32] = w[j];
        }
        if constexpr (TEAMS > 1) {
            meet(barrier, THREADS);
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                u32 w[Of::WORDS];
#pragma unroll
                for (int j = 0; j < Of::WORDS; j++) w[j] = words[(c * Of::WORDS + j) * 32];
                take(c / STEPS, c % STEPS, w);
            }
        }
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
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
