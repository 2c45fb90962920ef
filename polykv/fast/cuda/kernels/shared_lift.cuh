// What the warps of attend_shared.cu do that lift: codes on their way, and from there to the stages.

// Of K or V: where tiles of the item lie, and what a warp lifts of a turn, slice `unit` % SLICES of tile `unit` / SLICES.
struct Source {
    const u8* data;
    const int* table;
    long long block;
    int shift, first, turns, last, bytes, unit;

    // Codes of a turn; behind the last one with cells that one comes again.
    __device__ __forceinline__ const u8* codes(int turn) const {
        const int cell = first + min(turn, last) * CELLS, tile = (cell & (1 << shift) - 1) / TILE + unit / SLICES;
        return data + __ldg(table + (cell >> shift)) * block + (tile * SLICES + unit % SLICES) * bytes;
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
    // Lane l knows where the codes of turn l of the crew's next 32 lie.
    const u8* from = source.codes(crew + CREWS * lane);
    int sent = 0;
    auto send = [&] {
        coming.send(from, sent % 32, crew + CREWS * sent < source.turns, lane);
        if (++sent % 32 == 0) from = source.codes(crew + CREWS * (sent + lane));
    };
#pragma unroll
    for (int i = 0; i < RAW; ++i) send();
    int stage = crew;
#pragma unroll 1
    for (int i = crew; i < source.turns; i += CREWS) {
        const u32 at = coming.wait();
        if (i >= STAGES) meet(EMPTY + stage, LIFTERS + 128 * teams);
        char* to = (char*)memory + STAGES_AT + stage * STAGE;
        codes.each(at, lane, [&](int n, int at, uint4 x) { *(uint4*)(to + place<VALUES>(source.unit, n, at)) = x; });
        stage_is_full(stage, teams);
        stage = stage_after(stage, CREWS);
        send();
    }
}
