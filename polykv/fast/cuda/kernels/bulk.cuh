// Copies to shared memory that a multiprocessor makes by itself, of any multiple of 16 bytes, and barriers there that say
// when they have come (PTX ISA 8, "cp.async.bulk", "mbarrier"): compute capability 9.0 and later.

// A barrier of 8 bytes for one copy after the other; the first of them ends phase 0.
__device__ __forceinline__ void bulk_barrier(u32 at) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory"); }

// Copies see the barriers that this thread has made.
__device__ __forceinline__ void bulk_sees() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_copy(u32 to, const void* from, int bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

// Until the phase has ended, whose number is odd or even.
__device__ __forceinline__ void bulk_wait(u32 barrier, int odd) {
    u32 over;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(over) : "r"(barrier), "r"(odd) : "memory");
    while (!over);
}
