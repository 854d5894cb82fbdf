/* Rows of the caller on their way to shared memory, behind the back of the warp. */
#ifndef TQI_CUDA_ENCODE_COPY_ASYNC_CUH
#define TQI_CUDA_ENCODE_COPY_ASYNC_CUH

#include <stdint.h>

namespace tqi {

__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* 16 bytes; both sides aligned. */
__device__ __forceinline__ void copy16_async(uint32_t to, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

/* The calling thread's copies have arrived. */
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Asks for the line of an address, so that a later access finds it near. */
__device__ __forceinline__ void prefetch_line(const void *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* What kernels in front of this one in the stream have written is visible. */
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel behind may begin. It relies on all that came before this one: not before this one
 * has waited. */
__device__ __forceinline__ void allow_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} /* namespace tqi */

#endif
