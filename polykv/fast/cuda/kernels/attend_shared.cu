// Attention of some rows over cells that many of them share: out = softmax(q k) v of up to 128 queries of a K/V head, over a
// range of cells. An item is such a range, as in attend.cu, and so is its result, which attend_merge joins with others.
//
// Crews of four warps read codes and lift them to halves in shared memory, 64 cells in their turn; eight warps, in two teams
// of 64 queries each, multiply. Codes are read once for all queries, and nobody waits as long as there are turns
// between them.
//
//   SHARED_K, _V       types (attend_types.cuh)         SHARED_WIDTH, _SLICES   of a head, up to 128 dims a slice; 1 or 2
//   SHARED_STAGES      turns that are lifted            SHARED_RAW              turns of codes on their way
//   SHARED_CAP         whether scores are capped        SHARED_WGMMA            products of warpgroups (compute 9.0)
//   SHARED_CREWS       of warps that lift               SHARED_ONE_TABLE   whether K and V are paths with the same levels
//
// K lies as [cells][dims] and V as [dims][cells], both in patches (group_product.cuh). Where a lane has codes of eight cells of a dim (V),
// these are eight in a row along k: cells 2 t, 2 t + 1 (+ 0, 8, 16, 24) of a tile are its octet t. So that a lane's scores
// are what it needs as operands, cell 8 j + g of K is row 2 j + g % 2 of octet g / 2.

#include "follow.cuh"
#include "mma.cuh"
#include "attend_types.cuh"
#include "softmax.cuh"

extern __shared__ __align__(1024) uint4 memory[];

#include "coming.cuh"
#include "group_product.cuh"
#include "halves.cuh"

constexpr int WIDTH = SHARED_WIDTH, SLICES = SHARED_SLICES, DIMS = WIDTH * SLICES, TILE = 32, TILES = 2 / SLICES, CELLS = TILE * TILES;
constexpr int TEAMS = 2, CREWS = SHARED_CREWS, QUERIES = 64 * TEAMS, LIFTERS = 128, THREADS = 128 * TEAMS + LIFTERS * CREWS, OCTETS = CELLS / 8;
using Keys = Halves<SHARED_K, WIDTH, false>;
using Values = Halves<SHARED_V, WIDTH, true>;
// Of K patches of 32 dims of all cells of a turn, then of the next dims; of V of a tile of all dims, then of the next tile.
constexpr int K_PART = OCTETS * PATCH, K_STAGE = DIMS / 32 * K_PART, V_PART = DIMS / 8 * PATCH, V_STAGE = TILES * V_PART;
constexpr int STAGE = K_STAGE + V_STAGE;
constexpr int STAGES = SHARED_STAGES, RAW = SHARED_RAW;
// Shared memory: levels, turns that are lifted, codes on their way: of a slice of a tile for each warp; their barriers.
constexpr int V_TABLE = SHARED_ONE_TABLE ? 0 : Keys::TABLE, STAGES_AT = V_TABLE + Values::TABLE;
constexpr int K_RAW_AT = STAGES_AT + STAGES * STAGE, V_RAW_AT = K_RAW_AT + 2 * CREWS * RAW * Keys::BYTES;
constexpr int COMING_AT = V_RAW_AT + 2 * CREWS * RAW * Values::BYTES;
// Barriers: a stage is full, for each team; it is empty. A stage is always filled by the same crew, or warps of two might meet at
// the barrier of one.
constexpr int FULL = 1, EMPTY = FULL + TEAMS * STAGES;
static_assert(STAGES % CREWS == 0 && EMPTY + STAGES <= 16, "barriers");

using Scores = float[1][OCTETS][4];
using Weights = u32[CELLS / 16][4];

struct Item {
    int table, first, count, start, old, row, rows, head, heads;
};

#include "shared_lift.cuh"

// Queries of a lane's two rows as operands, scaled such that the largest value of a row becomes 1024: none overflows, and what
// is lost below is 2^-34 of it. worth: what a unit of their scores is.
struct Queries {
    u32 of[DIMS / 16][4];
    float worth[2];

    __device__ __forceinline__ void read(const float* q, const Item& item, const int* rows, int first, int n_heads, int group, float unit, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int query = first + g + 8 * r;
            const bool used = query < item.rows * item.heads;
            const int row = used ? rows[item.row + query / item.heads] : 0;
            const float* from = q + ((long long)row * n_heads + blockIdx.y * group + item.head + query % item.heads) * DIMS + 2 * t;
            float2 x[DIMS / 8];
            float top = 0;
#pragma unroll
            for (int d = 0; d < DIMS / 8; ++d) {
                x[d] = used ? *(const float2*)(from + 8 * d) : make_float2(0, 0);
                top = fmaxf(top, fmaxf(fabsf(x[d].x), fabsf(x[d].y)));
            }
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float by = top > FAINT ? 1024.0f / top : 1.0f;
            worth[r] = (top > FAINT ? top / 1024.0f : 1.0f) * unit;
#pragma unroll
            for (int d = 0; d < DIMS / 8; ++d) of[d / 2][d % 2 * 2 + r] = f32_to_f16x2(x[d].x * by, x[d].y * by);
        }
    }
};

#include "shared_turns.cuh"

// Sums of the rows, and what they are worth.
__device__ __forceinline__ void results_out(const Item& item, Softmax<1>& softmax, const float (&o)[DIMS / 8][4], float* part, float2* part_ml) {
    const int thread = thread_again(), lane = thread % 32, first = thread / 32 * 16;
    const long long mine = (long long)(blockIdx.x * gridDim.y + blockIdx.y) * QUERIES;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float total = softmax.total[r];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const int query = first + lane / 4 + 8 * r;
        if (query >= item.rows * item.heads) continue;
        float* to = part + (mine + query) * DIMS + 2 * (lane % 4);
#pragma unroll
        for (int d = 0; d < DIMS / 8; ++d) *(float2*)(to + 8 * d) = make_float2(o[d][2 * r], o[d][2 * r + 1]);
        if (lane % 4 == 0) part_ml[mine + query] = make_float2(softmax.reference[r], total);
    }
}

// k, v: those of the first head; levels: as lift.cu has them; part [items, K/V heads, 128 queries, dims]; part_ml likewise.
// seen_from: the first cell that any row sees.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attend_shared(const float* q, const Item* items, const int* rows, const int* positions, const int* blocks, const u8* k, const u8* v,
              long long k_block, long long v_block, long long k_head, long long v_head, int shift, int n_heads, int group,
              const float* k_levels, const float* v_levels, float unit, float softcap, int window, int seen_from,
              float* part, float2* part_ml) {
    follows(q);
    const Item item = items[blockIdx.x];
    if (item.count == 0) return;
    // All lanes have the same number of a warp, and now the compiler knows.
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), last = (item.count - 1) / CELLS;
    // Products of warpgroups go through two turns at a time.
    const int turns = SHARED_WGMMA ? (last + 2) / 2 * 2 : last + 1;
    const int teams = item.rows * item.heads > 64 ? 2 : 1;
    float* tables = (float*)memory;
    for (int i = threadIdx.x; i < Keys::TABLE / 4; i += THREADS) tables[i] = k_levels[i];
    if (!SHARED_ONE_TABLE)
        for (int i = threadIdx.x; i < Values::TABLE / 4; i += THREADS) tables[V_TABLE / 4 + i] = v_levels[i];
    __syncthreads();
    if (warp >= 4 * TEAMS) {
        fewer_registers<48>();
        const int unit = warp % 2, crew = warp / 4 - TEAMS, *table = blocks + item.table;
        // K and V take turns on the schedulers, or one of them would have all of the longer work.
        if (warp % 4 / 2 == crew) {
            const Source source = {k + blockIdx.y * k_head, table, k_block, shift, item.first, turns, last, Keys::BYTES, unit};
            Keys keys;
            keys.levels_from(Keys::TABLE ? tables : k_levels, gridDim.z);
            lift_turns<Keys, false>(source, warp, crew, teams, K_RAW_AT, lane, keys);
        } else {
            const Source source = {v + blockIdx.y * v_head, table, v_block, shift, item.first, turns, last, Values::BYTES, unit};
            Values values;
            values.levels_from(Values::TABLE ? tables + V_TABLE / 4 : v_levels, gridDim.z);
            lift_turns<Values, true>(source, warp, crew, teams, V_RAW_AT, lane, values);
        }
    } else {
        more_registers<208>();
        if (warp / 4 >= teams) return;
        Queries queries;
        Softmax<1> softmax;
        float o[DIMS / 8][4];
        queries.read(q, item, rows, 16 * warp, n_heads, group, unit, lane);
        Work work = {queries, items, rows, positions, warp / 4, teams, turns, window, seen_from, softcap};
        work.start();
        softmax.clear();
#pragma unroll
        for (int e = 0; e < DIMS / 2; ++e) o[e / 4][e % 4] = 0;
        multiply_turns(work, softmax, o);
        results_out(items[blockIdx.x], softmax, o, part, part_ml);
    }
}
