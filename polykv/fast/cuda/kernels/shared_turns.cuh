// What the warps of attend_shared.cu do that multiply: scores, weights and sums, turn after turn.

// What a warp that multiplies has to know of its item. What is seldom needed is read again then, and takes no registers.
struct Work {
    const Queries& q;
    const Item* items;
    const int *rows, *positions;
    int team, teams, turns, window, seen_from;
    float softcap;
    // Turns from `open` to `closed` - 1 are seen whole by all rows of the warp.
    int open, closed;
    // Of the first stage, in units of 16 bytes, as all places of operands are.
    u32 base;

    __device__ __forceinline__ void start() {
        int begin[2], end[2];
        seen(begin, end);
        closed = max(0, __reduce_min_sync(~0u, min(end[0], end[1]))) / CELLS;
        open = (max(0, __reduce_max_sync(~0u, max(begin[0], begin[1]))) + CELLS - 1) / CELLS;
        base = (shared_address(memory) + STAGES_AT) / 16;
    }
    // Cells of the item that the rows of a lane see, from `begin` to `end` - 1.
    __device__ __forceinline__ void seen(int (&begin)[2], int (&end)[2]) const {
        const Item& item = items[blockIdx.x];
        const int thread = thread_again();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int query = thread / 32 * 16 + thread % 32 / 4 + 8 * r;
            const int position = query < item.rows * item.heads ? positions[rows[item.row + query / item.heads]] : -1;
            begin[r] = max(seen_from, window > 0 ? position - window + 1 : 0) - item.start;
            end[r] = min(item.count, position + 1 - item.start);
        }
    }
    // Cells that a row does not see get no weight; first: that of the turn.
    __device__ __forceinline__ void mask(Scores& x, int first) const {
        int begin[2], end[2];
        const int t = thread_again() % 4;
        seen(begin, end);
#pragma unroll
        for (int e = 0; e < 4 * OCTETS; ++e) {
            const int r = e % 4 / 2, cell = first + e / 16 * TILE + 8 * t + e / 4 % 4 * 2 + e % 2;
            if (cell < begin[r] || cell >= end[r]) x[0][e / 4][e % 4] = BELOW_ALL;
        }
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
        if (i < open || i >= closed) mask(x, i * CELLS);
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
