// Several workgroups sum their parts; the last one to arrive adds the partial sums in order.
#include "common.h"

KERNEL(64) parts(const float* __restrict__ x, float* partial, u32* counter, float* __restrict__ y) {
  SHARED static u32 arrived;
  const u32 lane = thread(), groups = 8;
  partial[group() * 64 + lane] = x[group() * 64 + lane] * 2.0f;
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  if (lane == 0) arrived = __scoped_atomic_fetch_add(counter, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  barrier();
  if (arrived != groups - 1) return;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  float sum = 0;
  for (u32 part = 0; part < groups; ++part) sum += partial[part * 64 + lane];
  y[lane] = sum;
}
