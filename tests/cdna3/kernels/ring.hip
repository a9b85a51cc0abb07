// Producer and consumer waves with a ring in LDS; flags with acquire and release.
#include "common.h"

constexpr u32 kSlots = 3;
#define WORKGROUP __MEMORY_SCOPE_WRKGRP

KERNEL(128) ring(const float* __restrict__ x, float* __restrict__ y, u32 steps) {
  SHARED static float slots[kSlots][64];
  SHARED static u32 filled, taken;
  const u32 lane = thread() % 64;
  if (thread() == 0) filled = 0, taken = 0;
  barrier();
  float sum = 0;
  if (thread() < 64) {
    for (u32 i = 0; i < steps; ++i) {
      while (i >= __scoped_atomic_load_n(&taken, __ATOMIC_ACQUIRE, WORKGROUP) + kSlots)
        __builtin_amdgcn_s_sleep(1);
      slots[i % kSlots][lane] = x[i * 64 + lane];
      if (lane == 0) __scoped_atomic_store_n(&filled, i + 1, __ATOMIC_RELEASE, WORKGROUP);
    }
  } else {
    for (u32 i = 0; i < steps; ++i) {
      while (__scoped_atomic_load_n(&filled, __ATOMIC_ACQUIRE, WORKGROUP) <= i)
        __builtin_amdgcn_s_sleep(1);
      sum += slots[i % kSlots][lane ^ 1];
      if (lane == 0) __scoped_atomic_store_n(&taken, i + 1, __ATOMIC_RELEASE, WORKGROUP);
    }
    y[lane] = sum;
  }
}
