// Loads of data that nobody writes while a kernel runs.
//
// Weights are read once: they pass by the L1 cache, which is left to what is read again (activations, tables). They are
// volatile for the compiler, so that several are started before the first is used, as the source has it.

__device__ __forceinline__ uint4 stream16(const void* at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}

__device__ __forceinline__ uint2 stream8(const void* at) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}

__device__ __forceinline__ unsigned stream4(const void* at) {
    unsigned v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}

__device__ __forceinline__ unsigned short stream2(const void* at) {
    unsigned short v;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return v;
}

// The same for what other warps read too.
__device__ __forceinline__ uint4 cached16(const void* at) {
    return __ldg((const uint4*)at);
}

__device__ __forceinline__ uint2 cached8(const void* at) {
    return __ldg((const uint2*)at);
}

// A line of 128 bytes on its way to the L1 cache, for reads that come later: nobody waits for what is loaded here.
__device__ __forceinline__ void touch(const void* at) {
    unsigned unused;
    asm volatile("ld.global.ca.u32 %0, [%1];" : "=r"(unused) : "l"(at));
}
