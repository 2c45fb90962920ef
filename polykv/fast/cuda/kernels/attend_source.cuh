// Where a warp finds its tiles, and how they come to shared memory; tables of levels too.

// `to` and `from` are those of the lane.
template <int BYTES> __device__ __forceinline__ void fetch(u32 to, const u8* from, int lane) {
#pragma unroll
    for (int at = 0; at < BYTES; at += 512)
        if (BYTES - at >= 512 || 16 * lane < BYTES - at) copy16(to + at, from + at);
}

// Where a lane finds its part of the slices that its warp takes.
struct Source {
    const u8 *k, *v;
    u32 k_block, v_block;
    // Turns of a block: 1 << shift.
    int shift;

    // Of a turn's tiles, PART bytes each.
    template <int PART> __device__ __forceinline__ void turn_of(u32 to, const u8* head, u32 stride, u32 block, u32 turn, int lane) const {
        const u32 inside = turn & (1 << shift) - 1;
        const u8* from = head + ((unsigned long long)block * stride + inside * (ATT_TILES * ATT_SLICES * PART));
        if (ATT_SLICES == 1) fetch<ATT_TILES * PART>(to, from, lane);
        else
#pragma unroll
            for (int i = 0; i < ATT_TILES; i++) fetch<PART>(to + i * PART, from + i * ATT_SLICES * PART, lane);
    }
    __device__ __forceinline__ void keys(u32 to, u32 block, u32 turn, int lane) const { turn_of<K_PART>(to, k, k_block, block, turn, lane); }
    __device__ __forceinline__ void values(u32 to, u32 block, u32 turn, int lane) const { turn_of<V_PART>(to, v, v_block, block, turn, lane); }
};

// Entry after entry, as often as the table's bytes say.
template <int BYTES, int ENTRIES> __device__ __forceinline__ void copy_table(uint4* to, const u32* from) {
    constexpr int COPIES = BYTES / (ENTRIES * 4);
    if constexpr (COPIES == 1)
        for (int i = threadIdx.x; i < ENTRIES; i += WARPS * 32) reinterpret_cast<u32*>(to)[i] = from[i];
    else if constexpr (COPIES > 1)
#pragma unroll 8
        for (int i = threadIdx.x; i < BYTES / 16; i += WARPS * 32) {
            const u32 x = from[4 * i / COPIES];
            to[i] = make_uint4(x, x, x, x);
        }
}
