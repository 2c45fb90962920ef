// Trellis types to halves (lift.cuh, lift_path.cuh).

#include "lift.cuh"
#include "lift_path.cuh"

using Codes = Path<LIFT_BITS, WIDTH, LIFT_VALUES>;

// levels: of every state.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
lift(u8* to, const u8* from, const int* blocks, int n, int tiles, long long to_head, long long from_block, long long from_head,
     const u8* means, long long mean_block, long long mean_head, const float* levels) {
    __shared__ float table[Codes::STATES];
    for (int i = threadIdx.x; i < Codes::STATES; i += 32 * WARPS) table[i] = levels[i];
    __syncthreads();
    const Lift job = {to, from, blocks, n, tiles, to_head, from_block, from_head, means, mean_block, mean_head};
    if (job.beyond()) return;
    uint4* result = job.result();
    const u8* slice = job.slice(Codes::BYTES);
    const u8* mean = LIFT_MEANS ? job.mean() : slice;
    Codes::decode(
        slice, table, threadIdx.x % 32, [&](int d) { return LIFT_MEANS ? mean_of(mean, d) : 0.0f; },
        [&](int n, int lane, uint4 x) { result[32 * n + lane] = x; });
}
