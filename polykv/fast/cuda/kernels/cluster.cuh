// Blocks of a cluster, which run at the same time and read each other's shared memory (compute capability 9.0 and later).

// Until all threads of all blocks of the cluster have come; what they wrote to shared memory is seen.
__device__ __forceinline__ void cluster_meets() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// 16 bytes at place `at` of the shared memory of block `rank`.
__device__ __forceinline__ float4 of_block(u32 at, int rank) {
    float4 v;
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(there) : "memory");
    return v;
}
