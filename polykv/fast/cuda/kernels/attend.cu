// Attention of few rows over codes: out = softmax(q k) v of some queries that share a K/V head, over a range of cells.
//
// One item of the grid is such a range; its result is a partial one, (reference, sum of weights, sums of values), which
// `attend_merge` joins with those of the other ranges. Specialised by defines:
//
//   ATT_K, ATT_V     types (attend_types.cuh)       ATT_WIDTH     dims of a slice, a multiple of 32 up to 128
//   ATT_SLICES       slices of a head: 1, 2 or 4    ATT_STAGES    turns on their way for each warp
//   ATT_SETS         queries / 4: 1 or 2             ATT_CTAS      blocks for a multiprocessor
//   ATT_TILES        tiles at a time, 1 or 2: what is done once for all of them takes as long as a third of a tile
//   ATT_WARPS        warps of a block                ATT_MEANS     1 if keys are centered
//   ATT_COPIES       of tables of trellis types         ATT_SHARED_TABLE   1 if K and V have the same
//   ATT_EARLY        1: starts while new K and V are being written (follow.cuh). Queries are there, for the kernel before
//                    the last wrote them; turns with cells that may be new wait. Trellis types take long to write.
//   ATT_BESIDE       1: runs beside attend_shared, on multiprocessors that it leaves free. All that is read is there, for
//                    attend_shared begins when new K and V have been written.
//
// With one turn on its way the next keys take the place of those that have been read, and so do the values.
//
// A warp takes every n-th tile. Where a head has several slices, that many warps work on the same tile: each multiplies
// its own dims, they exchange their parts of the scores, and each sums its own dims of the values.

#include "attend_item.cuh"

constexpr int TEAMS = WARPS / ATT_SLICES;
constexpr int MEAN_AT = ATT_TILES * (K_PART + V_PART), STAGE = MEAN_AT + MEAN;
// Bytes of levels: those of the keys, then those of the values unless they are the same.
constexpr int V_TABLE = ATT_SHARED_TABLE ? 0 : KCodes::TABLE, TABLES = V_TABLE + (ATT_SHARED_TABLE ? KCodes::TABLE : VCodes::TABLE);
constexpr int EXCHANGE = ATT_SLICES > 1 ? 2 * WARPS * ATT_TILES * ATT_SETS * 32 * 16 : 0;
// Behind the turns on their way queries are prepared.
constexpr int PREPARED_AT = TABLES + EXCHANGE + WARPS * ATT_STAGES * STAGE;

extern "C" __global__ void __launch_bounds__(WARPS * 32, ATT_CTAS)
attend(const float* q, const Item* __restrict__ items, const int* __restrict__ rows,
       const int* __restrict__ positions, const int* __restrict__ blocks, const u8* __restrict__ k, const u8* __restrict__ v,
       u32 k_block, u32 v_block, long long k_head, long long v_head, int shift, int n_heads, int group,
       const u32* __restrict__ k_levels, const u32* __restrict__ v_levels, float k_unit, float v_unit, float softcap,
       int window, int seen_from, const u8* __restrict__ means, u32 mean_block, long long mean_head, float whole_unit,
       float* __restrict__ part, float2* __restrict__ part_ml) {
    extern __shared__ uint4 memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int slice = warp % ATT_SLICES, team = warp / ATT_SLICES, kv = blockIdx.y;
    const Item item = items[blockIdx.x];
    // They arrive while the item does.
    copy_table<KCodes::TABLE, KCodes::ENTRIES>(memory, k_levels);
    if (!ATT_SHARED_TABLE) copy_table<VCodes::TABLE, VCodes::ENTRIES>(memory + V_TABLE / 16, v_levels);
    const u32 base = shared_address(memory) + TABLES + EXCHANGE + warp * ATT_STAGES * STAGE;

    const Source source{k + kv * k_head + slice * K_PART + 16 * lane, v + kv * v_head + slice * V_PART + 16 * lane, k_block, v_block, shift};
    const u8* mean_of = ATT_MEANS ? means + kv * mean_head + slice * MEAN + 16 * lane : means;
    const int first = item.first / TURN, n = (item.count + TURN - 1) / TURN;
    // Block of the turn after those on their way, read a turn before it is needed.
    auto block_of = [&](int turn) { return blocks[u32(item.table + (first + turn >> shift))]; };
    int ahead = team, block = ahead < n ? block_of(ahead) : 0;
    const int fresh = item.old / TURN;
    auto send_keys = [&](int stage) {
        if (ATT_EARLY && fresh <= ahead && ahead < n) kernel_before();
        if (ahead >= n) return;
        source.keys(base + stage * STAGE + 16 * lane, block, first + ahead, lane);
        // A block is a unit.
        if (ATT_MEANS) fetch<MEAN>(base + stage * STAGE + MEAN_AT + 16 * lane, mean_of + (unsigned long long)u32(block) * mean_block, lane);
    };
    auto send_values = [&](int stage) {
        if (ahead < n) source.values(base + stage * STAGE + ATT_TILES * K_PART + 16 * lane, block, first + ahead, lane);
        copies_sent();
        ahead += TEAMS;
        if (ahead < n) block = block_of(ahead);
    };
    ItemQueries<TEAMS> queries;
    queries.find(q, rows, positions, item, n_heads, kv * group, slice, g);
    // All until here are tables, which are older than the kernel before. Loads of queries come before copies of tiles, which would
    // keep them waiting.
    if (!ATT_EARLY && !ATT_BESIDE) follows(q);
    queries.load(item, team, g, t);
#pragma unroll
    for (int i = 0; i < max(1, ATT_STAGES - 1); i++) {
        send_keys(i);
        if (ATT_STAGES == 1) copies_sent();
        send_values(i);
    }

    queries.prepare<WARPS * 32>(item, memory + PREPARED_AT / 16, 0, team, slice, k_unit, whole_unit, g, t);
    KCodes key;
    VCodes value;
    if (TABLES > 0) {
        key.table_at(shared_address(memory), lane);
        value.table_at(shared_address(memory) + V_TABLE, lane);
        __syncthreads();
    }
    key.levels_from(k_levels, gridDim.z);
    value.levels_from(v_levels, gridDim.z);

    Values<ATT_V, ATT_WIDTH> values[ATT_SETS];
    float reference[ATT_SETS], total[ATT_SETS];
#pragma unroll
    for (int m = 0; m < ATT_SETS; m++) values[m].clear(), reference[m] = NOTHING, total[m] = 0;
    int stage = 0, parity = 0;
    const int closed = queries.closed(item), open = queries.open(item, window, seen_from);

    for (int i = team; i < n; i += TEAMS) {
        copies_but<ATT_STAGES == 1 ? 1 : ATT_STAGES - 2>();
        __syncwarp();
        if (ATT_STAGES > 1) {
            const int last = stage == 0 ? ATT_STAGES - 1 : stage - 1;
            send_keys(last), send_values(last);
        }
        const u32 at = base + stage * STAGE;
        stage = stage + 1 == ATT_STAGES ? 0 : stage + 1;

        float x[ATT_TILES][ATT_SETS][4], p[ATT_TILES][ATT_SETS][4], w[ATT_TILES][ATT_SETS][4];
#pragma unroll
        for (int h = 0; h < ATT_TILES; h++) {
            const u32 tile = at + h * K_PART;
            key.read(tile, lane);
            queries.scores.run(key, tile + KCodes::CODES, g, x[h]);
        }
        if (ATT_MEANS) queries.means.add(at + MEAN_AT, t, x);
        if (ATT_STAGES == 1) {
            __syncwarp();
            send_keys(0);
            copies_sent();
        }
        if constexpr (ATT_SLICES > 1) {
            float4* mine = reinterpret_cast<float4*>(memory) + TABLES / 16 + parity * WARPS * ATT_TILES * ATT_SETS * 32 + lane;
            parity ^= 1;
#pragma unroll
            for (int c = 0; c < ATT_TILES * ATT_SETS; c++) {
                const float(&y)[4] = x[c / ATT_SETS][c % ATT_SETS];
                mine[(warp * ATT_TILES * ATT_SETS + c) * 32] = make_float4(y[0], y[1], y[2], y[3]);
            }
            meet(1 + team, 32 * ATT_SLICES);
#pragma unroll
            for (int c = 0; c < ATT_TILES * ATT_SETS; c++) {
                float(&y)[4] = x[c / ATT_SETS][c % ATT_SETS];
                y[0] = y[1] = y[2] = y[3] = 0;
#pragma unroll
                for (int o = 0; o < ATT_SLICES; o++) {
                    const float4 a = mine[((team * ATT_SLICES + o) * ATT_TILES * ATT_SETS + c) * 32];
                    y[0] += a.x, y[1] += a.y, y[2] += a.z, y[3] += a.w;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < ATT_TILES; h++) {
#ifdef ATT_SOFTCAP
#pragma unroll
            for (int j = 0; j < 4 * ATT_SETS; j++) x[h][j / 4][j % 4] = capped(x[h][j / 4][j % 4], softcap);
#endif
            if (i >= closed || i < open)
#pragma unroll
                for (int j = 0; j < 4 * ATT_SETS; j++) {
                    const int c = TURN * i + TILE * h + 8 * (j % 4) + g;
                    if (!sees(item, c, queries.position[j / 4], window, seen_from)) x[h][j / 4][j % 4] = BELOW_ALL;
                }
        }

        if (ATT_STAGES == 1) {
            copies_but<1>();
            __syncwarp();
        }
        const u32 of_values = at + ATT_TILES * K_PART, worth = of_values + VCodes::CODES;
        float most[ATT_SETS];
#pragma unroll
        for (int m = 0; m < ATT_SETS; m++) {
            most[m] = 0;
#pragma unroll
            for (int h = 0; h < ATT_TILES; h++) {
#pragma unroll
                for (int j = 0; j < 4; j++) p[h][m][j] = power2(x[h][m][j] - reference[m]);
                most[m] = fmaxf(most[m], values[m].top(p[h][m], worth + h * V_PART, g, w[h][m]));
            }
        }
        if (!fit(values, most))
#pragma unroll
            for (int m = 0; m < ATT_SETS; m++) {
                float high = BELOW_ALL, most = 0;
#pragma unroll
                for (int j = 0; j < 4 * ATT_TILES; j++) high = fmaxf(high, x[j / 4][m][j % 4]);
                const float now = fmaxf(reference[m], query_max(high)), by = power2(reference[m] - now);
                values[m].rescale(by);
                total[m] *= by, reference[m] = now;
#pragma unroll
                for (int h = 0; h < ATT_TILES; h++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) p[h][m][j] = power2(x[h][m][j] - now);
                    most = fmaxf(most, values[m].top(p[h][m], worth + h * V_PART, g, w[h][m]));
                }
                values[m].refit(query_max(most));
            }
#pragma unroll
        for (int h = 0; h < ATT_TILES; h++) {
#pragma unroll
            for (int j = 0; j < 4 * ATT_SETS; j++) total[j / 4] += p[h][j / 4][j % 4];
            value.read(of_values + h * V_PART, lane);
            Values<ATT_V, ATT_WIDTH>::add(values, value, worth + h * V_PART, g, p[h], w[h]);
        }
        if (ATT_STAGES == 1) {
            __syncwarp();
            send_values(0);
        }
    }

    // All teams meet equally often: compute-sanitizer's racecheck takes what follows for a race otherwise.
    if (ATT_SLICES > 1 && n % TEAMS != 0 && team >= n % TEAMS) meet(1 + team, 32 * ATT_SLICES);

    // The warps' results become one, in shared memory where the tiles were.
    copies_but<0>();
    if (ATT_EARLY) follows(q);
    __syncthreads();
    float* sums = reinterpret_cast<float*>(memory);
    // Rows of queries begin in different banks.
    constexpr int ROW = DIMS + 8;
    float2* ml = reinterpret_cast<float2*>(sums + TEAMS * QUERIES * ROW);
#pragma unroll
    for (int m = 0; m < ATT_SETS; m++) {
        float y[VCodes::PAIRS][2];
        values[m].finish(y);
#pragma unroll
        for (int e = 0; e < 2 * VCodes::PAIRS; e++)
            if (VCodes::is_dim(e / 2, g))
                sums[(team * QUERIES + 4 * m + VCodes::query(g, t)) * ROW + slice * ATT_WIDTH + VCodes::dim(e / 2, e % 2, g, t)] = y[e / 2][e % 2] * v_unit;
        // Warps of a team may have chosen other references, for their slices of the values have scales of their own.
        total[m] = query_sum(total[m]);
        if (g == 0) ml[warp * QUERIES + 4 * m + t] = make_float2(reference[m], total[m]);
    }
    __syncthreads();
    const long long mine = (long long)(blockIdx.x * gridDim.y + kv) * QUERIES;
    for (int e = 4 * threadIdx.x; e < item.rows * item.heads * DIMS; e += 4 * WARPS * 32) {
        const int r = e / DIMS, d = e % DIMS, part_of_d = d / ATT_WIDTH;
        float top = NOTHING, weight = 0;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, ml[w * QUERIES + r].x);
#pragma unroll
        for (int w = 0; w < TEAMS; w++) {
            const float2 of = ml[(w * ATT_SLICES + part_of_d) * QUERIES + r];
            const float f = power2(of.x - top);
            const float4 x = *reinterpret_cast<const float4*>(sums + (w * QUERIES + r) * ROW + d);
            sum.x = fmaf(f, x.x, sum.x), sum.y = fmaf(f, x.y, sum.y), sum.z = fmaf(f, x.z, sum.z), sum.w = fmaf(f, x.w, sum.w);
            weight = fmaf(f, of.y, weight);
        }
        *reinterpret_cast<float4*>(part + mine * DIMS + e) = sum;
        if (d == 0) part_ml[mine + r] = make_float2(top, weight);
    }
    // One block that waits is enough for the next kernel to rely on the one before; all of them would keep others away.
    if (ATT_BESIDE && blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1) follows(q);
}
