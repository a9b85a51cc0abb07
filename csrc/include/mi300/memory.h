// Global memory, asynchronous copies, clusters and dependent launches on both GPU targets.
#pragma once

#include <mi300/portable.h>

namespace mi300 {

// ---- memory ----

// Global memory as such: a plain pointer inside a kernel-argument struct may be any address space.
template <class T>
using Global = __attribute__((address_space(1))) T;

template <class T>
MI300_DEVICE T load(const void* base, i64 index) {
  return ((const Global<T>*)base)[index];
}

template <class T>
MI300_DEVICE void store(void* base, i64 index, T value) {
  ((Global<T>*)base)[index] = value;
}

// The same by a byte offset of 32 bits, which needs one register where the base is uniform.
template <class T>
MI300_DEVICE T load_at(const void* base, u32 bytes) {
  return *(const Global<T>*)((const Global<char>*)base + offset_here(bytes));
}

template <class T>
MI300_DEVICE void store_at(void* base, u32 bytes, T value) {
  *(Global<T>*)((Global<char>*)base + offset_here(bytes)) = value;
}

// For data that is read once and not written by this kernel: spares the caches for other data.
template <class T>
MI300_DEVICE T load_once(const void* base, u32 bytes) {
  auto* address = (const Global<T>*)((const Global<char>*)base + offset_here(bytes));
#if !defined(__AMDGCN__)
  if constexpr (sizeof(T) == 16) {  // this back end ignores the builtin's hint
    U32x4 value;
    asm("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
        : "l"((const char*)base + bytes));
    return bit_cast<T>(value);
  }
#endif
  return __builtin_nontemporal_load(address);
}

// ---- several workgroups on one row (sm_90 clusters; a cluster of one everywhere else) ----

MI300_DEVICE u32 cluster_rank() {
#if defined(__AMDGCN__)
  return 0;
#else
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// First half of a cluster barrier: this thread has arrived; its earlier LDS writes are released.
MI300_DEVICE void cluster_arrive() {
#if !defined(__AMDGCN__)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Second half: all threads of all workgroups of the cluster have arrived.
MI300_DEVICE void cluster_wait() {
#if !defined(__AMDGCN__)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

template <class T>
MI300_DEVICE u32 lds_address(T* slot) {
  return (u32)(u64)(__attribute__((address_space(3))) T*)slot;
}

// Writes into the LDS of workgroup `rank` of this cluster, at the place that `slot` has in ours.
MI300_DEVICE void store_peer(u32* slot, u32 rank, u32 value) {
#if defined(__AMDGCN__)
  (void)rank;
  *slot = value;
#else
  asm volatile(
      "{ .reg .b32 peer;\n mapa.shared::cluster.u32 peer, %0, %1;\n"
      "st.shared::cluster.b32 [peer], %2; }" ::"r"(lds_address(slot)),
      "r"(rank), "r"(value)
      : "memory");
#endif
}

// ---- copies from global memory to LDS that need no registers (kHasAsyncCopy) ----

// 16 bytes to this thread's own slot. Complete once wait_copies says so, for this thread only.
MI300_DEVICE void copy_async(U32x4* slot, const void* base, u32 bytes) {
#if defined(__AMDGCN__)
  *slot = load_at<U32x4>(base, bytes);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(lds_address(slot)),
               "l"((const char*)base + bytes)
               : "memory");
#endif
}

// Closes the batch of copies issued since the last call.
MI300_DEVICE void commit_copies() {
#if !defined(__AMDGCN__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `kBatches` of the newest batches are still under way.
template <u32 kBatches>
MI300_DEVICE void wait_copies() {
#if !defined(__AMDGCN__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kBatches) : "memory");
#endif
}

// ---- dependent launches (sm_90): start before the kernel ahead has ended ----

// Waits until the writes of the kernel ahead are visible; nothing to do without such a launch.
MI300_DEVICE void wait_for_previous_kernel() {
#if !defined(__AMDGCN__)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernel behind start its own preamble.
MI300_DEVICE void allow_next_kernel() {
#if !defined(__AMDGCN__)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mi300
