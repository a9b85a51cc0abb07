// What the executor's own test kernels share. They exercise instructions and protocols; they are
// not the product's kernels.
#pragma once
#define GLOBAL __attribute__((global))
#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
#define KERNEL(threads) \
  extern "C" GLOBAL __attribute__((amdgpu_flat_work_group_size(threads, threads))) void

typedef unsigned u32;
typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));
typedef int Int2 __attribute__((ext_vector_type(2)));
typedef int Int4 __attribute__((ext_vector_type(4)));

DEVICE u32 thread() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 group() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
