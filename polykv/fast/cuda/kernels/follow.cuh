// Kernels of a step start while the one before them ends (polykv/fast/cuda/follow.py).
//
// What comes before `follows` may read what no kernel of a step writes: weights, tables. Behind it everything that the
// kernel before wrote is there, and the next kernel may start. The next one may not start any sooner: a multiprocessor's
// L1 cache is emptied when a kernel starts, and lines of the kernel before the last must not come in again after that.

// A kernel may also wait later than at its beginning. What it does until then may read what kernels before the last wrote:
// when it starts the last one has passed its own wait. But all of its blocks have to wait some time before they end, or
// the next kernel, which waits for this one alone, could not rely on those before.

// Until the kernel before has ended.
__device__ __forceinline__ void kernel_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// from: pointers to what the kernel before wrote. They become unknown to the compiler here, so that it cannot read through
// them any earlier.
template <typename... T> __device__ __forceinline__ void follows(T*&... from) {
    kernel_before();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    int order[] = {([&] { asm volatile("" : "+l"(from)::"memory"); }(), 0)...};
    (void)order;
#endif
}
