// Codes of a warp on their way to shared memory: PLACES regions of BYTES, filled in their turn.
//
//     Coming<4352, 3> codes = {places, barriers};  codes.start(lane);  for (i..3) codes.send(from, i, true, lane);
//     at = codes.wait(); ...read...  codes.send(from, 3, true, lane);
//
// On compute capability 9.0 a region is one copy (SHARED_WGMMA): the fence after lifting waits for all copies of 16 bytes
// that are under way, and its turn with them. Elsewhere lanes copy 16 bytes each.

#if SHARED_WGMMA
#include "bulk.cuh"
#endif

template <int BYTES, int PLACES> struct Coming {
    // Of the first region, and of the first barrier of 8 bytes.
    u32 places, barriers;
    int to, now, odd;

    __device__ __forceinline__ void start(int lane) {
        to = now = odd = 0;
#if SHARED_WGMMA
        if (lane < PLACES) {
            bulk_barrier(barriers + 8 * lane);
            bulk_sees();
        }
        __syncwarp();
#endif
    }

    // Into the region that was read the longest ago, once all lanes have read it: what lane `who` says, if anything comes.
    __device__ __forceinline__ void send(const u8* from, int who, bool more, int lane) {
        __syncwarp();
        const u32 place = places + to * BYTES;
#if SHARED_WGMMA
        if (more && lane == who) bulk_copy(place, from, BYTES, barriers + 8 * to);
#else
        const u8* its = (const u8*)__shfl_sync(~0u, (unsigned long long)from, who);
        if (more)
#pragma unroll
            for (int at = 16 * lane; at < BYTES; at += 512) copy16(place + at, its + at);
        copies_sent();
#endif
        to = to + 1 == PLACES ? 0 : to + 1;
    }

    // For the next region; where it is.
    __device__ __forceinline__ u32 wait() {
        const u32 place = places + now * BYTES;
#if SHARED_WGMMA
        bulk_wait(barriers + 8 * now, odd);
#else
        copies_but<PLACES - 1>();
        __syncwarp();
#endif
        now = now + 1 == PLACES ? 0 : now + 1, odd ^= now == 0;
        return place;
    }
};
