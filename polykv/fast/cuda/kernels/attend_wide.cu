// Attention of few rows over codes, as in attend.cu, for heads of two or four slices: half of a block's warps find weights,
// the others sum values, each of them of its own slice.
//
// Where every warp does both, each of a head's warps has the same softmax to do, and needs registers for queries, scores and
// sums at once, so that few warps fit a multiprocessor. Here warps of keys exchange their parts of the scores, do the softmax of two queries
// each, and put the weights 2^(score - reference) into one of four places, from where warps of values take them; with
// them goes the reference of each query. The defines are those of attend.cu, with two queries for each slice and turns of
// two tiles.

#include "attend_item.cuh"
#include "turns.cuh"

constexpr int SIDE = 32 * ATT_SLICES, THREADS = 2 * SIDE, PLACES = 4, PIECES = ATT_TILES * ATT_SETS;
static_assert(ATT_STAGES == 2, "a turn is multiplied while the next one is on its way");
static_assert(WARPS == 2 * ATT_SLICES && QUERIES == 2 * ATT_SLICES && ATT_TILES == 2, "a lane has four scores of one query");
constexpr int K_STAGE = ATT_TILES * K_PART + MEAN, V_STAGE = ATT_TILES * V_PART;
// A barrier of warps of keys: parts of scores are there.
constexpr int SCORED = 1;
// The unit of a query with one for all dims meets the sum of its scores, unless means have been added to parts of it.
constexpr bool UNITS = !KCodes::PER_CELL || ATT_MEANS;
// A reference moves when a weight would exceed this. Sums of weights and of values have floats for more.
constexpr float MOST_WEIGHT = 65536.0f;

using Sums = Values<ATT_V, ATT_WIDTH, InShared>;

// Shared memory: turns on their way, parts of scores, weights, references, float sums; barriers of the warps of a side:
// weights are there, and have been read, in each place; scores have been read.
constexpr int SCORES_AT = ATT_SLICES * ATT_STAGES * (K_STAGE + V_STAGE), WEIGHTS_AT = SCORES_AT + ATT_SLICES * PIECES * 512;
constexpr int REFERENCES_AT = WEIGHTS_AT + PLACES * PIECES * 512, SUMS_AT = REFERENCES_AT + PLACES * QUERIES * 4;
constexpr int FULL_AT = SUMS_AT + ATT_SLICES * ATT_SETS * InShared<VCodes::PAIRS>::BYTES;

// The turns of an item. The block of the one after those on their way is read a turn before it is needed.
struct Turns {
    const int* blocks;
    int table, first, n, shift, ahead, block;

    __device__ __forceinline__ Turns(const int* all, const Item& item, int turns_of_block)
        : blocks(all), table(item.table), first(item.first / TURN), n((item.count + TURN - 1) / TURN), shift(turns_of_block), ahead(0) {
        if (n > 0) find();
    }
    __device__ __forceinline__ void find() { block = blocks[u32(table + (first + ahead >> shift))]; }
    // send: of a turn whose block is known.
    template <typename SEND> __device__ __forceinline__ void next(SEND send) {
        if (ahead < n) send(u32(block), first + ahead);
        copies_sent();
        if (++ahead < n) find();
    }
};

__device__ __forceinline__ float4* quads(void* memory, int at) { return reinterpret_cast<float4*>(static_cast<u8*>(memory) + at); }

// The largest of the lanes that have scores of the same query, and their sum.
__device__ __forceinline__ float largest_of_query(float x) {
    for (int o = 2; o < 32; o *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
__device__ __forceinline__ float sum_of_query(float x) {
    for (int o = 2; o < 32; o *= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// Weights of one query, of which a lane has four cells.
struct Weights {
    float reference = NOTHING, total = 0;

    __device__ __forceinline__ float4 of(const float (&x)[4]) {
        float p[4];
        if (__any_sync(~0u, !(powers(x, p) <= MOST_WEIGHT))) {
            const float high = largest_of_query(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]))), now = fmaxf(reference, high);
            total *= power2(reference - now), reference = now;
            powers(x, p);
        }
        total += p[0] + p[1] + (p[2] + p[3]);
        return make_float4(p[0], p[1], p[2], p[3]);
    }
    __device__ __forceinline__ float powers(const float (&x)[4], float (&p)[4]) const {
#pragma unroll
        for (int j = 0; j < 4; j++) p[j] = power2(x[j] - reference);
        return fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3]));
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, ATT_CTAS)
attend_wide(const float* q, const Item* __restrict__ items, const int* __restrict__ rows,
            const int* __restrict__ positions, const int* __restrict__ blocks, const u8* __restrict__ k, const u8* __restrict__ v,
            u32 k_block, u32 v_block, long long k_head, long long v_head, int shift, int n_heads, int group,
            const u32* __restrict__ k_levels, const u32* __restrict__ v_levels, float k_unit, float v_unit, float softcap,
            int window, int seen_from, const u8* __restrict__ means, u32 mean_block, long long mean_head, float whole_unit,
            float* __restrict__ part, float2* __restrict__ part_ml) {
    extern __shared__ uint4 memory[];
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = threadIdx.x / 32 % ATT_SLICES, kv = blockIdx.y;
    const Item item = items[blockIdx.x];
    const Source source{k + kv * k_head + slice * K_PART + 16 * lane, v + kv * v_head + slice * V_PART + 16 * lane, k_block, v_block, shift};
    const long long mine = (long long)(blockIdx.x * gridDim.y + kv) * QUERIES;
    Turns turns(blocks, item, shift);
    const int n = turns.n;
    const u32 full = shared_address(memory) + FULL_AT, empty = full + 8 * PLACES, read = empty + 8 * PLACES;
    if (threadIdx.x <= 2 * PLACES) turn_init(full + 8 * threadIdx.x, ATT_SLICES * WARP_ARRIVALS);
    __syncthreads();

    if (threadIdx.x < SIDE) {
        u32 at = shared_address(memory) + slice * 2 * K_STAGE, other = at + K_STAGE;
        const u8* mean_of = ATT_MEANS ? means + kv * mean_head + slice * MEAN + 16 * lane : means;
        auto send = [&](u32 to) {
            turns.next([&](u32 block, u32 turn) {
                source.keys(to + 16 * lane, block, turn, lane);
                // A block is a unit.
                if (ATT_MEANS) fetch<MEAN>(to + ATT_TILES * K_PART + 16 * lane, mean_of + (unsigned long long)block * mean_block, lane);
            });
        };
        ItemQueries<1> queries;
        queries.find(q, rows, positions, item, n_heads, kv * group, slice, g);
        // Until here tables are read. Loads of queries come before copies of tiles, which would keep them waiting.
        follows(q);
        queries.load(item, 0, g, t);
        send(at);
        // Where weights will be, later.
        queries.prepare<SIDE>(item, quads(memory, WEIGHTS_AT), SCORED, 0, slice, k_unit, whole_unit, g, t);
        KCodes key;
        key.levels_from(k_levels, gridDim.z);
        const int closed = queries.closed(item), open = queries.open(item, window, seen_from);

        // Behind the exchange a lane has query `query`, cells 8 j + row of tile h. Where lane (g, t) puts its scores of query t of
        // a set depends on the tile, so that eight lanes in a row find theirs in all banks.
        const int query = 2 * slice + lane % 2, h = lane / 2 % 2, row = lane / 4;
        const int own = (h * ATT_SETS + query / 4) * 32 + (4 * row + query % 4 ^ 2 * h);
        const int where = __shfl_sync(~0u, query < 4 ? queries.position[0] : queries.position[ATT_SETS - 1], query % 4);
        const float unit = UNITS ? 1.0f : __shfl_sync(~0u, query < 4 ? queries.scores.unit[0][0] : queries.scores.unit[ATT_SETS - 1][0], query % 4);
        float4* const scores = quads(memory, SCORES_AT);
        Weights weights;
        for (int i = 0; i < n; i++) {
            copies_but<0>();
            __syncwarp();
            send(other);
            float y[ATT_TILES][ATT_SETS][4];
#pragma unroll
            for (int tile = 0; tile < ATT_TILES; tile++) {
                key.read(at + tile * K_PART, lane);
                queries.scores.run<UNITS>(key, at + tile * K_PART + KCodes::CODES, g, y[tile]);
            }
            if (ATT_MEANS) queries.means.add(at + ATT_TILES * K_PART, t, y);
            if (i > 0) turn_wait(read, i - 1 & 1);
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                const float(&of)[4] = y[c / ATT_SETS][c % ATT_SETS];
                scores[(slice * PIECES + c) * 32 + (lane ^ 2 * (c / ATT_SETS))] = make_float4(of[0], of[1], of[2], of[3]);
            }
            const u32 multiplied = at;
            at = other, other = multiplied;
            meet(SCORED, SIDE);
            const float4 first = scores[own];
            float x[4] = {first.x, first.y, first.z, first.w};
#pragma unroll
            for (int o = 1; o < ATT_SLICES; o++) {
                const float4 a = scores[o * PIECES * 32 + own];
                x[0] += a.x, x[1] += a.y, x[2] += a.z, x[3] += a.w;
            }
            turn_arrive_warp(read, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] *= unit;
#ifdef ATT_SOFTCAP
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = capped(x[j], softcap);
#endif
            if (i >= closed || i < open)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (!sees(item, TURN * i + TILE * h + 8 * j + row, where, window, seen_from)) x[j] = BELOW_ALL;
            const float4 p = weights.of(x);
            const u32 place = i % PLACES;
            turn_wait(empty + 8 * place, i / PLACES & 1);
            quads(memory, WEIGHTS_AT)[place * PIECES * 32 + own] = p;
            if (lane < 2) reinterpret_cast<float*>(quads(memory, REFERENCES_AT))[place * QUERIES + query] = weights.reference;
            turn_arrive_warp(full + 8 * place, lane);
        }
        const float total = sum_of_query(weights.total);
        if (lane < 2 && query < item.rows * item.heads) part_ml[mine + query] = make_float2(weights.reference, total);
    } else {
        u32 at = shared_address(memory) + ATT_SLICES * 2 * K_STAGE + slice * 2 * V_STAGE, other = at + V_STAGE;
        auto send = [&](u32 to) {
            turns.next([&](u32 block, u32 turn) { source.values(to + 16 * lane, block, turn, lane); });
        };
        follows(q);
        send(at);
        VCodes value;
        value.levels_from(v_levels, gridDim.z);
        Sums sums[ATT_SETS];
        float reference[ATT_SETS];
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
            sums[m].sum.lanes = reinterpret_cast<float*>(quads(memory, SUMS_AT)) + (slice * ATT_SETS + m) * (InShared<VCodes::PAIRS>::BYTES / 4) + lane;
            sums[m].clear(), reference[m] = NOTHING;
        }
        const u32 of_weights = shared_address(memory) + WEIGHTS_AT + 16 * lane, of_references = shared_address(memory) + REFERENCES_AT + 4 * t;
        // All places are empty. (Not unrolled: sm_100 would run out of registers behind it.)
#pragma unroll 1
        for (int b = 0; b < PLACES; b++) turn_arrive_warp(empty + 8 * b, lane);
        for (int i = 0; i < n; i++) {
            copies_but<0>();
            __syncwarp();
            send(other);
            const u32 worth = at + VCodes::CODES;

            const u32 place = i % PLACES;
            turn_wait(full + 8 * place, i / PLACES & 1);
            float p[ATT_TILES][ATT_SETS][4], w[ATT_TILES][ATT_SETS][4], now[ATT_SETS], most[ATT_SETS];
            const u32 from = of_weights + place * (PIECES * 512);
#pragma unroll
            for (int c = 0; c < PIECES; c++) {
                const uint4 a = shared16((from ^ c / ATT_SETS * 32) + c * 512);
                float(&to)[4] = p[c / ATT_SETS][c % ATT_SETS];
                to[0] = __uint_as_float(a.x), to[1] = __uint_as_float(a.y), to[2] = __uint_as_float(a.z), to[3] = __uint_as_float(a.w);
            }
#pragma unroll
            for (int m = 0; m < ATT_SETS; m++) now[m] = __uint_as_float(shared4(of_references + place * (4 * QUERIES) + 16 * m));
            turn_arrive_warp(empty + 8 * place, lane);
            bool moved = false;
#pragma unroll
            for (int m = 0; m < ATT_SETS; m++) {
                moved |= now[m] != reference[m], most[m] = 0;
#pragma unroll
                for (int tile = 0; tile < ATT_TILES; tile++) most[m] = fmaxf(most[m], sums[m].top(p[tile][m], worth + tile * V_PART, g, w[tile][m]));
            }
            if (!fit(sums, most) || __any_sync(~0u, moved))
#pragma unroll
                for (int m = 0; m < ATT_SETS; m++) {
                    sums[m].rescale(power2(reference[m] - now[m]));
                    reference[m] = now[m];
                    sums[m].refit(query_max(most[m]));
                }
#pragma unroll
            for (int tile = 0; tile < ATT_TILES; tile++) {
                value.read(at + tile * V_PART, lane);
                Sums::add(sums, value, worth + tile * V_PART, g, p[tile], w[tile]);
            }
            const u32 multiplied = at;
            at = other, other = multiplied;
        }
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
            float y[VCodes::PAIRS][2];
            sums[m].finish(y);
            if (4 * m + t >= item.rows * item.heads) continue;
            float* to = part + (mine + 4 * m + t) * DIMS + slice * ATT_WIDTH;
#pragma unroll
            for (int e = 0; e < 2 * VCodes::PAIRS; e++) to[VCodes::dim(e / 2, e % 2, g, t)] = y[e / 2][e % 2] * v_unit;
        }
    }
    copies_but<0>();
}
