// The GPU targets' differences, behind functions of the same name: gfx942 (AMD) and sm_90 (NVIDIA).
//
// Kernels are freestanding: no HIP, CUDA or torch header is included, and `#if` on the architecture
// appears in include/mi300 alone. Words are AMD's: a wave is a warp, LDS is shared memory.
#pragma once

#define MI300_GLOBAL __attribute__((global))
#define MI300_DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define MI300_LDS __attribute__((shared))

// Kernel entry with C linkage. `max_threads` bounds the workgroup, so registers are allotted for it;
// on gfx942 they also leave room for `waves` waves a SIMD (64 VGPRs for 8, 128 for 4), on sm_90 for
// `groups` workgroups a multiprocessor if that is given: without, ptxas may spill for more of them.
#if defined(__AMDGCN__)
#define MI300_KERNEL_GROUPS(max_threads, waves, groups) MI300_KERNEL(max_threads, waves)
#define MI300_KERNEL(max_threads, waves)                                           \
  extern "C" MI300_GLOBAL __attribute__((amdgpu_flat_work_group_size(1, max_threads))) \
  __attribute__((amdgpu_waves_per_eu(waves))) void
#else
#define MI300_KERNEL_GROUPS(max_threads, waves, groups) \
  extern "C" MI300_GLOBAL __attribute__((launch_bounds(max_threads, groups))) void
#define MI300_KERNEL(max_threads, waves) \
  extern "C" MI300_GLOBAL __attribute__((launch_bounds(max_threads))) void
#endif

namespace mi300 {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using i32 = int;
using i64 = long;
using U32x2 = u32 __attribute__((ext_vector_type(2)));
using U32x4 = u32 __attribute__((ext_vector_type(4)));
using Float2 = float __attribute__((ext_vector_type(2)));
using Float4 = float __attribute__((ext_vector_type(4)));

#if defined(__AMDGCN__)
constexpr u32 kWaveSize = 64;
constexpr bool kHasClusters = false;
constexpr bool kHasAsyncCopy = false;
constexpr bool kHasPackedMath = false;
#else
constexpr u32 kWaveSize = 32;
constexpr bool kHasClusters = true;   // several workgroups that see each other's LDS
constexpr bool kHasAsyncCopy = true;  // global memory to LDS without registers
constexpr bool kHasPackedMath = true;  // bf16 and fp16 pairs in one instruction
#endif

template <class To, class From>
MI300_DEVICE To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

// The same value, of which the compiler forgets what it knew: it stays packed in its registers
// instead of being kept unpacked (twice the registers) from an earlier use or across loop turns.
MI300_DEVICE U32x4 packed(U32x4 value) {
#if defined(__AMDGCN__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w));
#endif
  return value;
}

// The same pointer, equal in all lanes, of which the compiler forgets how it was made: it stays in
// scalar registers instead of being added to each lane's offset ahead of a loop.
template <class T>
MI300_DEVICE T* uniform(T* pointer) {
#if defined(__AMDGCN__)
  asm volatile("" : "+s"(pointer));
#endif
  return pointer;
}

// The kernel's argument struct (its only parameter), to be read anew: what depends on it is worked
// out where it is needed instead of being kept in scalar registers across a loop.
template <class Args>
MI300_DEVICE const Args* read_again(const Args* args) {
#if defined(__AMDGCN__)
  (void)args;
  auto* kernel_args =
      (const __attribute__((address_space(4))) Args*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(kernel_args));
  return (const Args*)__builtin_assume_aligned((const void*)kernel_args, 16);
#else
  return args;
#endif
}

// The same value, of which the compiler knows nothing: keeps what follows from it where it is used
// instead of in registers all the time.
MI300_DEVICE u32 opaque(u32 value) {
#if defined(__AMDGCN__)
  asm volatile("" : "+s"(value));
#else
  asm volatile("" : "+r"(value));
#endif
  return value;
}

// The same number, made anew: the compiler sees here, not ahead of a loop, that it has 32 bits, and
// so adds it to a scalar base in the load itself.
MI300_DEVICE u32 offset_here(u32 bytes) {
#if defined(__AMDGCN__)
  asm volatile("" : "+v"(bytes));
#endif
  return bytes;
}

// The same number, made by now: the compiler may not put off the work for it past a wait, and keeps
// nothing that it worked out from the number before.
MI300_DEVICE float made_here(float value) {
#if !defined(__AMDGCN__)
  asm volatile("mov.f32 %0, %0;" : "+f"(value));
#endif
  return value;
}

MI300_DEVICE u32 made_here(u32 value) {
#if !defined(__AMDGCN__)
  asm volatile("mov.u32 %0, %0;" : "+r"(value));
#endif
  return value;
}

// Keeps the compiler from mixing the instructions before and after, which would need the registers
// of both at once.
MI300_DEVICE void schedule_fence() {
#if defined(__AMDGCN__)
  __builtin_amdgcn_sched_barrier(0);
#endif
}

// ---- where this thread is ----

MI300_DEVICE u32 thread_index() {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_workitem_id_x();
#else
  return __nvvm_read_ptx_sreg_tid_x();
#endif
}

MI300_DEVICE u32 group_index() {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_workgroup_id_x();
#else
  return __nvvm_read_ptx_sreg_ctaid_x();
#endif
}

MI300_DEVICE u32 lane_index() { return thread_index() % kWaveSize; }

// A value that is the same in all lanes of a wave, moved to a scalar register where there are any.
MI300_DEVICE u32 wave_uniform(u32 value) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_readfirstlane(value);
#else
  return value;
#endif
}

MI300_DEVICE float wave_uniform(float value) {
  return bit_cast<float>(wave_uniform(bit_cast<u32>(value)));
}

MI300_DEVICE u32 wave_index() { return wave_uniform(thread_index() / kWaveSize); }

// ---- barriers ----

// All threads of the workgroup; LDS written before is visible after. Global loads stay in flight.
MI300_DEVICE void barrier() {
#if defined(__AMDGCN__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// The lanes of one wave; orders their LDS accesses.
MI300_DEVICE void wave_barrier() {
#if defined(__AMDGCN__)
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront", "local");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront", "local");
#else
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
#endif
}

// ---- lanes of one wave ----

// The value of lane `lane ^ mask`.
template <u32 kMask>
MI300_DEVICE u32 shuffle_xor(u32 value) {
  static_assert(kMask < kWaveSize);
#if defined(__AMDGCN__)
  if constexpr (kMask == 1) {
    return __builtin_amdgcn_mov_dpp(value, 0xB1, 0xf, 0xf, true);  // quad_perm [1,0,3,2]
  } else if constexpr (kMask == 2) {
    return __builtin_amdgcn_mov_dpp(value, 0x4E, 0xf, 0xf, true);  // quad_perm [2,3,0,1]
  } else if constexpr (kMask == 8) {
    return __builtin_amdgcn_mov_dpp(value, 0x128, 0xf, 0xf, true);  // row_ror:8
  } else if constexpr (kMask < 32) {
    return __builtin_amdgcn_ds_swizzle(value, (kMask << 10) | 0x1f);
  } else {
    return __builtin_amdgcn_ds_bpermute((lane_index() ^ kMask) * 4, value);
  }
#else
  return __nvvm_shfl_sync_bfly_i32(0xffffffff, value, kMask, 0x1f);
#endif
}

template <u32 kMask>
MI300_DEVICE float shuffle_xor(float value) {
  return bit_cast<float>(shuffle_xor<kMask>(bit_cast<u32>(value)));
}

// The value of any lane, chosen per lane.
MI300_DEVICE u32 shuffle(u32 value, u32 lane) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_ds_bpermute(lane * 4, value);
#else
  return __nvvm_shfl_sync_idx_i32(0xffffffff, value, lane, 0x1f);
#endif
}

#if defined(__AMDGCN__)
// One step of a reduction over the wave: `value` of the lane that the DPP control names, 0 where
// there is none.
template <int kControl, int kRowMask = 0xf>
MI300_DEVICE u32 dpp_or_zero(u32 value) {
  return __builtin_amdgcn_update_dpp(0, value, kControl, kRowMask, 0xf, false);
}

// Lane 63 of `combine` over all lanes, by row shifts and row broadcasts; 0 must be neutral.
template <class Combine>
MI300_DEVICE u32 wave_reduce_dpp(u32 value, Combine combine) {
  value = combine(value, dpp_or_zero<0x111>(value));       // row_shr:1
  value = combine(value, dpp_or_zero<0x112>(value));       // row_shr:2
  value = combine(value, dpp_or_zero<0x114>(value));       // row_shr:4
  value = combine(value, dpp_or_zero<0x118>(value));       // row_shr:8
  value = combine(value, dpp_or_zero<0x142, 0xa>(value));  // row_bcast:15
  value = combine(value, dpp_or_zero<0x143, 0xc>(value));  // row_bcast:31
  return __builtin_amdgcn_readlane(value, 63);
}
#endif

MI300_DEVICE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }

// Sum over the wave, the same bits in every lane and on every run.
MI300_DEVICE float wave_sum(float value) {
#if defined(__AMDGCN__)
  return bit_cast<float>(wave_reduce_dpp(bit_cast<u32>(value), [](u32 a, u32 b) {
    return bit_cast<u32>(bit_cast<float>(a) + bit_cast<float>(b));
  }));
#else
  value += shuffle_xor<16>(value);
  value += shuffle_xor<8>(value);
  value += shuffle_xor<4>(value);
  value += shuffle_xor<2>(value);
  return value + shuffle_xor<1>(value);
#endif
}

// Largest value over the wave. The bits of |x| order as unsigned numbers with NaN on top, so this
// is also the NaN-keeping maximum of absolute values.
MI300_DEVICE u32 wave_max(u32 value) {
#if defined(__AMDGCN__)
  return wave_reduce_dpp(value, max_u32);
#else
  u32 result;
  asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
#endif
}

template <u32 kMask, u32 kCount>
MI300_DEVICE void shuffle_max(u32 (&values)[kCount]) {
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) values[i] = max_u32(values[i], shuffle_xor<kMask>(values[i]));
}

// Largest values over each run of `lanes` neighbouring lanes; a power of two up to the wave size.
template <u32 kCount>
MI300_DEVICE void lanes_max(u32 (&values)[kCount], u32 lanes) {
  if (lanes > 1) shuffle_max<1>(values);
  if (lanes > 2) shuffle_max<2>(values);
  if (lanes > 4) shuffle_max<4>(values);
  if (lanes > 8) shuffle_max<8>(values);
  if (lanes > 16) shuffle_max<16>(values);
  if constexpr (kWaveSize == 64) {
    if (lanes > 32) shuffle_max<32>(values);
  }
}

MI300_DEVICE u32 lanes_max(u32 value, u32 lanes) {
  u32 values[1] = {value};
  lanes_max<1>(values, lanes);
  return values[0];
}

}  // namespace mi300
