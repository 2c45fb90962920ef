// Barriers in shared memory for memory that is filled and read in turns (PTX ISA 8, section "mbarrier"): 8 bytes each.
// Nobody waits who is ahead of the others by less than the turns there are.

__device__ __forceinline__ void turn_init(u32 at, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void turn_arrive(u32 at) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(at) : "memory");
}

// A warp arrives, with all that its lanes have read and written: one lane does, for all of them. compute-sanitizer's racecheck takes
// that for what one lane has done, so it is shown kernels where each arrives (benchmarks/gpu_sanitize.py).
#ifdef EVERY_LANE_ARRIVES
constexpr int WARP_ARRIVALS = 32;
#else
constexpr int WARP_ARRIVALS = 1;
#endif
__device__ __forceinline__ void turn_arrive_warp(u32 at, int lane) {
    __syncwarp();
    if (lane < WARP_ARRIVALS) turn_arrive(at);
}

// Arrive when all copies that this thread has begun are there.
__device__ __forceinline__ void turn_arrive_copied(u32 at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}

// Until all have arrived for the turn of this parity: 0 for the first one, 1 for the second.
__device__ __forceinline__ void turn_wait(u32 at, int parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again:\n"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
        "@!done bra again;}" ::"r"(at), "r"(parity) : "memory");
}
