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

// Rows: read once, and perhaps written by the kernel ahead, so a load must stay behind
// wait_for_previous_kernel() and may not take the read-only path.
template <class T>
MI300_DEVICE T load_row(const void* base, u32 bytes) {
#if defined(__AMDGCN__)
  return load_once<T>(base, bytes);
#else
  const char* address = (const char*)base + bytes;
  if constexpr (sizeof(T) == 16) {
    U32x4 value;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address)
                 : "memory");
    return bit_cast<T>(value);
  } else {
    static_assert(sizeof(T) == 8);
    U32x2 value;
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "l"(address)
                 : "memory");
    return bit_cast<T>(value);
  }
#endif
}

// A number whose load is issued here and not where it is first needed.
MI300_DEVICE float load_here(const float* address) {
#if defined(__AMDGCN__)
  return load<float>(address, 0);
#else
  float value;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
#endif
}

// Rows written and not read again by this kernel. The hint is worth 4 to 8 % of the time of many rows
// on an H200 (4096 x 8192: 57.8 us instead of 62.7; 2026-11-29).
template <class T>
MI300_DEVICE void store_row_at(void* base, u32 bytes, T value) {
#if defined(__AMDGCN__)
  store_at(base, bytes, value);
#else
  void* address = (char*)base + bytes;
  if constexpr (sizeof(T) == 16) {
    const U32x4 words = bit_cast<U32x4>(value);
    asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const U32x2 words = bit_cast<U32x2>(value);
    asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words.x),
                 "r"(words.y)
                 : "memory");
  } else {
    static_assert(sizeof(T) == 4);
    asm volatile("st.global.L1::no_allocate.b32 [%0], %1;" ::"l"(address),
                 "r"(bit_cast<u32>(value))
                 : "memory");
  }
#endif
}

// Has the L2 fetch a line. Allowed ahead of wait_for_previous_kernel(): the L2 sees later writes.
MI300_DEVICE void prefetch(const void* address) {
#if defined(__AMDGCN__)
  (void)address;
#else
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#endif
}

// Keeps the larger of a word of LDS and `value`, whatever other lanes do.
MI300_DEVICE void raise(u32* place, u32 value) {
#if defined(__AMDGCN__)
  __hip_atomic_fetch_max(place, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  asm volatile("red.shared.max.u32 [%0], %1;" ::"r"((u32)(u64)(__attribute__((address_space(3))) u32*)place),
               "r"(value)
               : "memory");
#endif
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

// Which cluster this workgroup is in, of clusters of `size` workgroups.
MI300_DEVICE u32 cluster_index([[maybe_unused]] u32 size) {
#if defined(__AMDGCN__)
  return group_index() / size;
#else
  u32 index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
#endif
}

// First half of a cluster barrier: this thread has arrived; its earlier LDS writes are released.
MI300_DEVICE void cluster_arrive() {
#if !defined(__AMDGCN__)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// The same without the release, which waits for global stores: for peers that only need to know that
// this workgroup runs and has opened its mailboxes.
MI300_DEVICE void cluster_arrive_relaxed() {
#if !defined(__AMDGCN__)
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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

// The address, for send_peer(), that `place` of our LDS has in workgroup `rank` of this cluster.
template <class T>
MI300_DEVICE u32 peer_address([[maybe_unused]] T* place, [[maybe_unused]] u32 rank) {
#if defined(__AMDGCN__)
  return 0;
#else
  u32 address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(lds_address(place)), "r"(rank));
  return address;
#endif
}

// A mailbox is full when the bytes that it was opened for have arrived in this workgroup's LDS. One
// thread opens it, before the cluster barrier that tells the peers; it serves once.
MI300_DEVICE void open_mailbox([[maybe_unused]] u64* box, [[maybe_unused]] u32 bytes) {
#if !defined(__AMDGCN__)
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(lds_address(box)),
      "r"(bytes)
      : "memory");
#endif
}

// Sends a word to a peer's LDS and counts it in the peer's mailbox. One way: unlike a store and a
// cluster barrier, which compiles to a fence that waits for all global stores too.
MI300_DEVICE void send_peer([[maybe_unused]] u32 place, [[maybe_unused]] u32 box,
                            [[maybe_unused]] u32 value) {
#if !defined(__AMDGCN__)
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(place),
               "r"(value), "r"(box)
               : "memory");
#endif
}

// The same, but the peer keeps the largest of what it is sent.
MI300_DEVICE void raise_peer([[maybe_unused]] u32 place, [[maybe_unused]] u32 box,
                             [[maybe_unused]] u32 value) {
#if !defined(__AMDGCN__)
  asm volatile(
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.u32 [%0], %1, [%2];" ::
          "r"(place), "r"(value), "r"(box)
      : "memory");
#endif
}

// Waits until the mailbox is full; what was sent can be read then.
MI300_DEVICE void wait_mailbox([[maybe_unused]] u64* box) {
#if !defined(__AMDGCN__)
  u32 is_full = 0;
  while (is_full == 0) {
    asm volatile(
        "{ .reg .pred full;\n mbarrier.try_wait.parity.shared::cta.b64 full, [%1], 0;\n"
        "selp.u32 %0, 1, 0, full; }"
        : "=r"(is_full)
        : "r"(lds_address(box))
        : "memory");
  }
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

// The same for a number that is known at run time only, up to 6.
MI300_DEVICE void wait_for_batches(u32 batches) {
  switch (batches) {
    case 1: return wait_copies<1>();
    case 2: return wait_copies<2>();
    case 3: return wait_copies<3>();
    case 4: return wait_copies<4>();
    case 5: return wait_copies<5>();
    case 6: return wait_copies<6>();
    default: return wait_copies<0>();
  }
}

// ---- dependent launches (sm_90): start before the kernel ahead has ended ----

// Waits until the writes of the kernel ahead are visible; nothing to do without such a launch.
MI300_DEVICE void wait_for_previous_kernel() {
#if !defined(__AMDGCN__)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the kernel behind start its own preamble.
//
// NOTE: called after wait_for_previous_kernel(), it tells the kernel behind that all kernels have
// ended but the one right ahead of it: what that one does not write can be read before the wait
// (runtime/gemm_early.h).
MI300_DEVICE void allow_next_kernel() {
#if !defined(__AMDGCN__)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mi300
