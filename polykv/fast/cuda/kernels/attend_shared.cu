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
// Barriers: a stage is full, for each team; it is empty.
constexpr int FULL = 1, EMPTY = FULL + TEAMS * STAGES;

using Scores = float[1][OCTETS][4];
using Weights = u32[CELLS / 16][4];

struct Item {
    int table, first, count, start, old, row, rows, head, heads;
};

// Of K or V: where tiles of the item lie, and what a warp lifts of a turn, slice `unit` % SLICES of tile `unit` / SLICES.
// Turns are asked for one after the other, those of a crew; the block of the next one is read before it is needed. Behind the
// last turn with cells that one comes again.
struct Source {
    const u8* data;
    const int* table;
    long long block;
    int shift, first, turns, last, tile_bytes, unit, turn, next;

    __device__ __forceinline__ int cell() const { return first + min(turn, last) * CELLS; }
    __device__ __forceinline__ void start(int crew) { turn = crew, next = turn < turns ? __ldg(table + (cell() >> shift)) : 0; }
    __device__ __forceinline__ bool more() const { return turn < turns; }
    __device__ __forceinline__ const u8* take(int part) {
        const int cell = this->cell(), tile = (cell & (1 << shift) - 1) / TILE + unit / SLICES;
        const u8* from = data + next * block + tile * tile_bytes + unit % SLICES * part;
        turn += CREWS;
        if (turn < turns) next = __ldg(table + (this->cell() >> shift));
        return from;
    }
};

// Where group n of a lane goes in a stage, of this unit.
template <bool VALUES> __device__ __forceinline__ int place(int unit, int n, int lane) {
    const int g = lane / 4, t = lane % 4, tile = unit / SLICES, octet = unit % SLICES * (WIDTH / 8);
    if (VALUES) return K_STAGE + tile * V_PART + in_patches(8 * (octet + n) + g, t);
    return (octet + n) / 4 * K_PART + in_patches(8 * (4 * tile + g / 2) + n % 4 * 2 + g % 2, t);
}

// The stage of a turn that is so many, at most STAGES, after that of `stage`.
__device__ __forceinline__ int stage_after(int stage, int more) { return stage + more >= STAGES ? stage + more - STAGES : stage + more; }

__device__ __forceinline__ void stage_is_full(int stage, int teams) {
    wgmma_sees();
    for (int team = 0; team < teams; ++team) arrive(FULL + TEAMS * stage + team, 128 + LIFTERS);
}

template <typename Codes, bool VALUES>
__device__ __forceinline__ void lift_turns(Source source, int warp, int crew, int teams, int raw, int lane, Codes& codes) {
    const u32 base = shared_address(memory);
    Coming<Codes::BYTES, RAW> coming = {base + raw + (2 * crew + source.unit) * RAW * Codes::BYTES, base + COMING_AT + 8 * RAW * (warp - 4 * TEAMS)};
    coming.start(lane);
    source.start(crew);
#pragma unroll
    for (int i = 0; i < RAW; ++i) coming.send(source.more() ? source.take(Codes::BYTES) : nullptr, lane);
    int stage = crew;
#pragma unroll 1
    for (int i = crew; i < source.turns; i += CREWS) {
        const u32 at = coming.wait();
        if (i >= STAGES) meet(EMPTY + stage, LIFTERS + 128 * teams);
        char* to = (char*)memory + STAGES_AT + stage * STAGE;
        codes.each(at, lane, [&](int n, int at, uint4 x) { *(uint4*)(to + place<VALUES>(source.unit, n, at)) = x; });
        stage_is_full(stage, teams);
        stage = stage_after(stage, CREWS);
        coming.send(source.more() ? source.take(Codes::BYTES) : nullptr, lane);
    }
}

// Queries of a lane's two rows as operands, scaled such that the largest value of a row becomes 1024: none overflows, and what
// is lost below is 2^-34 of it. worth: what a unit of their scores is.
struct Queries {
    u32 of[DIMS / 16][4];
    float worth[2];

    __device__ __forceinline__ void read(const float* q, const Item& item, const int* rows, const int* positions, int first, int n_heads, int group, float unit, int lane, int (&position)[2]) {
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
            const float by = top > 0 ? 1024.0f / top : 1.0f;
            worth[r] = (top > 0 ? top / 1024.0f : 1.0f) * unit;
            position[r] = used ? positions[row] : -1;
#pragma unroll
            for (int d = 0; d < DIMS / 8; ++d) of[d / 2][d % 2 * 2 + r] = f32_to_f16x2(x[d].x * by, x[d].y * by);
        }
    }
};

// Cells that a row does not see get no weight; first: that of the turn.
__device__ __forceinline__ void mask(Scores& x, const int (&begin)[2], const int (&end)[2], int first, int t) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int e = 0; e < 2 * OCTETS; ++e) {
            const int cell = first + e / 8 * TILE + 8 * t + e % 8;
            if (cell < begin[r] || cell >= end[r]) x[0][e / 2][2 * r + e % 2] = BELOW_ALL;
        }
    }
}

// What a warp that multiplies has to know of its item.
struct Work {
    const Queries& q;
    int team, teams, turns, lane;
    float softcap;
    // Cells of the item that a lane's rows see; turns from `open` to `closed` - 1 are seen whole by all rows of the warp.
    int begin[2], end[2], open, closed;
    // Of the first stage, in units of 16 bytes, as all places of operands are.
    u32 base;

    __device__ __forceinline__ void start(const Item& item, const int (&position)[2], int window, int seen_from) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            end[r] = min(item.count, position[r] + 1 - item.start);
            begin[r] = max(seen_from, window > 0 ? position[r] - window + 1 : 0) - item.start;
        }
        closed = max(0, __reduce_min_sync(~0u, min(end[0], end[1]))) / CELLS;
        open = (max(0, __reduce_max_sync(~0u, max(begin[0], begin[1]))) + CELLS - 1) / CELLS;
        base = (shared_address(memory) + STAGES_AT) / 16;
    }
    __device__ __forceinline__ void wait_for(int stage) const { meet(FULL + TEAMS * stage + team, 128 + LIFTERS); }
    // A turn that has been multiplied, and its stage.
    __device__ __forceinline__ void is_done(int turn, int stage) const {
        if (turn + STAGES < turns) arrive(EMPTY + stage, LIFTERS + 128 * teams);
    }
    // Where octets of 16 dims of keys, or of 16 cells of values, are.
    __device__ __forceinline__ u32 keys_at(int stage, int d) const { return base + stage * (STAGE / 16) + d / 2 * (K_PART / 16); }
    __device__ __forceinline__ u32 values_at(int stage, int u) const { return base + stage * (STAGE / 16) + (K_STAGE + u / 2 * V_PART) / 16; }
    // Scores as the softmax takes them, and their units.
    __device__ __forceinline__ void finish(int i, Scores& x, float (&units)[2]) const {
        units[0] = q.worth[0], units[1] = q.worth[1];
#if SHARED_CAP
        cap(x, units, softcap * LOG2E);
#endif
        if (i < open || i >= closed) mask(x, begin, end, i * CELLS, lane % 4);
    }
    // Scores to weights. When one of more than 2^most would come sums are multiplied with `by`: then it is true.
    __device__ __forceinline__ bool weigh(int i, Scores& x, Softmax<1>& softmax, float most, float (&by)[2]) const {
        float units[2], top[2];
        finish(i, x, units);
        largest_of_warp(x, top);
        const bool moved = softmax.refit(top, units, by, most);
        softmax.weigh(x, units);
        return moved;
    }
};

__device__ __forceinline__ void rescale(float (&o)[DIMS / 8][4], const float (&by)[2]) {
#pragma unroll
    for (int e = 0; e < DIMS / 2; ++e) o[e / 4][e % 4] *= by[e % 4 / 2];
}

__device__ __forceinline__ void weights_to(Weights& p, const Scores& x) {
#pragma unroll
    for (int u = 0; u < CELLS / 16; ++u) {
        const uint4 w = operands(x[0][2 * u], x[0][2 * u + 1]);
        p[u][0] = w.x, p[u][1] = w.y, p[u][2] = w.z, p[u][3] = w.w;
    }
}

__device__ __forceinline__ void keys(const Work& work, int stage, Scores& x) {
#pragma unroll
    for (int d = 0; d < DIMS / 16; ++d) product(x[0], work.q.of[d], work.keys_at(stage, d), d % 2 * 2, d > 0);
    products_sent();
}

__device__ __forceinline__ void values(const Work& work, int stage, const Weights& p, float (&o)[DIMS / 8][4]) {
    products_begin();
#pragma unroll
    for (int u = 0; u < CELLS / 16; ++u) product(o, p[u], work.values_at(stage, u), u % 2 * 2, true);
    products_sent();
}

#if SHARED_WGMMA
// While a warp weighs the scores of turn i the tensor cores have the keys of the next and the values of the one before. It
// weighs them as if the reference stayed. Whether it does, the weights' sum tells; if not, the warp multiplies the keys of the
// turn again, by itself, and looks for the largest score.
__device__ __forceinline__ void turn_of(const Work& work, int i, int& stage, Scores& x, Scores& next, Weights& p, Softmax<1>& softmax, float (&o)[DIMS / 8][4]) {
    float by[2], sum[2], units[2];
    // Behind the last turn nobody needs what comes of whatever is there.
    const int coming = stage_after(stage, 1);
    if (i + 1 < work.turns) work.wait_for(coming);
    keys(work, coming, next);
    work.finish(i, x, units);
    // In both branches: the assembler would wait before there are weights, but it moves nothing over a branch.
    if (!__any_sync(~0u, !softmax.weigh_as_before(x, units, sum))) {
        softmax.total[0] += sum[0], softmax.total[1] += sum[1];
        products_over(o);
    } else {
        products_but<0>(o);
#pragma unroll
        for (int d = 0; d < DIMS / 16; ++d) product_of_warp(x[0], work.q.of[d], work.keys_at(stage, d), d % 2 * 2, d > 0);
        if (work.weigh(i, x, softmax, MOST - 4, by)) rescale(o, by);
    }
    products_ready(next[0]);
    if (i > 0) work.is_done(i - 1, stage_after(stage, STAGES - 1));
    weights_to(p, x);
    values(work, stage, p, o);
    stage = coming;
}

__device__ __forceinline__ void multiply_turns(const Work& work, Softmax<1>& softmax, float (&o)[DIMS / 8][4]) {
    Scores x[2];
    Weights p;
    float by[2];
    work.wait_for(0);
    products_begin();
    keys(work, 0, x[0]);
    products_but<0>(x[0][0]);
    // Only for a reference.
    work.weigh(0, x[0], softmax, MOST - 4, by);
    softmax.total[0] = softmax.total[1] = 0;
    products_begin();
    keys(work, 0, x[0]);
    products_but<0>(x[0][0]);
    int stage = 0;
#pragma unroll 1
    for (int i = 0; i < work.turns; i += 2) {
        turn_of(work, i, stage, x[0], x[1], p, softmax, o);
        turn_of(work, i + 1, stage, x[1], x[0], p, softmax, o);
    }
    products_but<0>(o);
}
#else
__device__ __forceinline__ void multiply_turns(const Work& work, Softmax<1>& softmax, float (&o)[DIMS / 8][4]) {
#pragma unroll 1
    for (int i = 0, stage = 0; i < work.turns; ++i, stage = stage_after(stage, 1)) {
        Scores x;
        Weights p;
        float by[2];
        work.wait_for(stage);
        keys(work, stage, x);
        if (work.weigh(i, x, softmax, MOST, by)) rescale(o, by);
        weights_to(p, x);
        values(work, stage, p, o);
        work.is_done(i, stage);
    }
}
#endif

// Sums of the rows, and what they are worth.
__device__ __forceinline__ void results_out(const Item& item, Softmax<1>& softmax, const float (&o)[DIMS / 8][4], int first, int lane, float* part, float2* part_ml) {
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
            const Source source = {k + blockIdx.y * k_head, table, k_block, shift, item.first, turns, last, SLICES * Keys::BYTES, unit};
            Keys keys;
            keys.levels_from(Keys::TABLE ? tables : k_levels, gridDim.z);
            lift_turns<Keys, false>(source, warp, crew, teams, K_RAW_AT, lane, keys);
        } else {
            const Source source = {v + blockIdx.y * v_head, table, v_block, shift, item.first, turns, last, SLICES * Values::BYTES, unit};
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
        const int first = 16 * warp;
        int position[2];
        queries.read(q, item, rows, positions, first, n_heads, group, unit, lane, position);
        Work work = {queries, warp / 4, teams, turns, lane, softcap};
        work.start(item, position, window, seen_from);
        softmax.clear();
#pragma unroll
        for (int e = 0; e < DIMS / 2; ++e) o[e / 4][e % 4] = 0;
        multiply_turns(work, softmax, o);
        results_out(item, softmax, o, first, lane, part, part_ml);
    }
}
