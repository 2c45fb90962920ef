// Pieces of prefill.cu: where its tiles of halves lie, how queries come to shared memory, products, and the softmax.
//
// Tiles are those of f16 (attend_types.cuh): 32 cells of a K/V head in the order of fragments, 16 bytes a lane:
//
//   K, step s, octet j    dims 32 s + 8 t + i of cell 8 j + g        two products of 16 dims, cells as columns
//   V, column m           dim 8 m + g of cells 2 t, 2 t + 1 (+ 0, 8, 16, 24)         two products of 16 cells
//
// The scores of cells 8 j + 2 t, + 1 that a lane gets as results are what it needs as operands for V.

constexpr int WIDTH = PRE_WIDTH, SLICES = PRE_SLICES, DIMS = WIDTH * SLICES, CELLS = PRE_CELLS, STEPS = DIMS / 32;
constexpr int QUERIES = 32 * PRE_GROUPS, WARPS = PRE_GROUPS * SLICES, THREADS = 32 * WARPS;
// Of 32 cells of all dims, of a slice of them, and of a turn.
constexpr int TILE_BYTES = DIMS * 64, SLICE_BYTES = WIDTH * 64, TURN_BYTES = CELLS * DIMS * 2;
// Groups of eight cells whose scores a warp computes.
constexpr int OCTETS = CELLS / 8 / SLICES;
// Shared memory: queries, a turn of K, one of V; weights and maxima on their way between the warps of a team; units.
constexpr int K_AT = QUERIES * DIMS * 2, V_AT = K_AT + TURN_BYTES, P_AT = V_AT + TURN_BYTES;
constexpr int TOP_AT = P_AT + (SLICES > 1 ? QUERIES * CELLS * 2 : 0), UNIT_AT = TOP_AT + (SLICES > 1 ? SLICES * QUERIES * 4 : 0);
constexpr int POSITION_AT = UNIT_AT + QUERIES * 4;

extern __shared__ uint4 memory[];

template <typename T> __device__ __forceinline__ T& shared(int at) { return *(T*)((char*)memory + at); }

// first: of `rows`; range: the first of `ranges`; part: where the partial result goes, or -1: it is the whole one.
struct Item {
    int first, rows, range, ranges, part, pad[3];
};

// Cells `first` to `last` - 1 of a segment: `table` is its place in the tables of blocks, `start` the position of its cell 0.
// Cells from `open` to `closed` - 1 are seen by all rows.
struct Range {
    int table, first, last, start, open, closed, pad[2];
};

// K or V: tiles of a block in a row, blocks and heads so many bytes apart; table: the block of every entry of the tables.
struct Side {
    const u8* data;
    const int* table;
    long long block, head;

    // A turn of cells of the grid's head to shared memory: `cell` is the first, in block `which` of 1 << shift cells.
    __device__ __forceinline__ void fetch(int to, int which, int cell, int shift) const {
        const int inside = (cell & (1 << shift) - 1) / CELLS;
        const u8* from = data + blockIdx.x * head + which * block + (long long)inside * TURN_BYTES + 16 * threadIdx.x;
        const u32 address = shared_address(&shared<u8>(to + 16 * threadIdx.x));
#pragma unroll
        for (int at = 0; at < TURN_BYTES; at += 16 * THREADS) copy16(address + at, from + at);
        copies_sent();
    }
};

// Its first cell, of a range, and the blocks of K and V where that is.
struct Turn {
    int range, cell, k, v;
};

// The turns of an item, one after the other: the next one's range and first cell, and how many ranges are left.
struct Walk {
    int range, left, cell;

    __device__ __forceinline__ bool next(Turn& turn, const Range* ranges, const Side& k, const Side& v, int shift) {
        if (left == 0) return false;
        const Range& r = ranges[range];
        const int entry = __ldg(&r.table) + (cell >> shift);
        turn = {range, cell, __ldg(k.table + entry), __ldg(v.table + entry)};
        cell += CELLS;
        if (cell >= __ldg(&r.last) && (++range, --left)) cell = __ldg(&ranges[range].first);
        return true;
    }
};

// Query i of an item is head i % group of its row i / group. As halves in the order of operands: [16 rows][16 dims][lane],
// of each lane rows g and g + 8, dims 4 u + 2 j, + 1 of its eight of a step for product u: [j][row]. A row is scaled such that its largest value becomes 1024, so none
// overflows and what is lost below is 2^-34 of it; unit [QUERIES]: what a unit of its scores is worth.
__device__ __forceinline__ void queries_in(const float* q, const int* rows, const int* positions, int used, int heads, int group, float unit) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int BATCH = 4, FOURS = (DIMS + 127) / 128;
#pragma unroll 1
    for (int first = warp * BATCH; first < QUERIES; first += WARPS * BATCH) {
        float4 x[BATCH][FOURS];
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const int i = first + b;
            const float4* from = (const float4*)(q + ((long long)rows[i < used ? i / group : 0] * heads + blockIdx.x * group + i % group) * DIMS);
#pragma unroll
            for (int f = 0; f < FOURS; ++f)
                x[b][f] = i < used && 32 * f + lane < DIMS / 4 ? __ldg(from + 32 * f + lane) : float4{0, 0, 0, 0};
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            float top = 0;
#pragma unroll
            for (int f = 0; f < FOURS; ++f)
                top = fmaxf(top, fmaxf(fmaxf(fabsf(x[b][f].x), fabsf(x[b][f].y)), fmaxf(fabsf(x[b][f].z), fabsf(x[b][f].w))));
            for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
            const float inverse = top > FAINT ? 1024.0f / top : 1.0f;
            const int i = first + b, place = i / 16 * STEPS * 1024 + i % 8 * 64 + i % 16 / 8 * 4;
            if (lane == 0) {
                shared<float>(UNIT_AT + 4 * i) = (top > FAINT ? top / 1024.0f : 1.0f) * unit;
                shared<int>(POSITION_AT + 4 * i) = i < used ? positions[rows[i / group]] : -1;
            }
#pragma unroll
            for (int f = 0; f < FOURS; ++f) {
                const int d = 128 * f + 4 * lane;
                if (d >= DIMS) continue;
                const float4 y = x[b][f];
                const int to = place + d / 32 * 1024 + d % 8 / 4 * 512 + d % 32 / 8 * 16;
                shared<u32>(to) = f32_to_f16x2(y.x * inverse, y.y * inverse);
                shared<u32>(to + 8) = f32_to_f16x2(y.z * inverse, y.w * inverse);
            }
        }
    }
}

// Scores of the warp's 32 queries with its octets of cells. x[i][k]: as an operation gives them, rows 16 i + g (+ 8).
__device__ __forceinline__ void multiply_keys(float (&x)[2][OCTETS][4], int team, int slice, int lane) {
    const u32 base = shared_address(memory);
#pragma unroll
    for (int e = 0; e < 8 * OCTETS; ++e) x[e / 4 / OCTETS][e / 4 % OCTETS][e % 4] = 0;
    const int keys = K_AT + slice * OCTETS / 4 * TILE_BYTES + slice * OCTETS % 4 * 512 + 16 * lane;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        uint4 a[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = shared16(base + ((2 * team + i / 2) * STEPS + s) * 1024 + i % 2 * 512 + 16 * lane);
#pragma unroll
        for (int k = 0; k < OCTETS; ++k) {
            const int tile = k / 4 * TILE_BYTES, octet = 4 * (s % (WIDTH / 32)) + k % 4;
            const uint4 b = shared16(base + keys + tile + s / (WIDTH / 32) * SLICE_BYTES + 512 * octet);
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_f16(x[i][k], a[i][0].x, a[i][0].y, a[i][0].z, a[i][0].w, b.x, b.y);
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_f16(x[i][k], a[i][1].x, a[i][1].y, a[i][1].z, a[i][1].w, b.z, b.w);
        }
    }
}

// Sums of the warp's slice of the values: o[i][m] of rows 16 i + g (+ 8) and dims 8 m + 2 t, + 1. weights(u, i): operands of
// cells 16 u to 16 u + 15.
template <typename W>
__device__ __forceinline__ void multiply_values(float (&o)[2][WIDTH / 8][4], const W& weights, int slice, int lane) {
    const u32 base = shared_address(memory);
#pragma unroll
    for (int tile = 0; tile < CELLS / 32; ++tile) {
        uint4 a[2][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i / 2][i % 2] = weights(2 * tile + i % 2, i / 2);
#pragma unroll
        for (int m = 0; m < WIDTH / 8; ++m) {
            const uint4 b = shared16(base + V_AT + tile * TILE_BYTES + slice * SLICE_BYTES + 512 * m + 16 * lane);
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_f16(o[i][m], a[i][0].x, a[i][0].y, a[i][0].z, a[i][0].w, b.x, b.y);
#pragma unroll
            for (int i = 0; i < 2; ++i) mma_f16(o[i][m], a[i][1].x, a[i][1].y, a[i][1].z, a[i][1].w, b.z, b.w);
        }
    }
}
