// Weights through a ring in LDS: a producer wave fills slots, its consumer wave empties them.
//
// Each pair of waves has a ring of its own with one writer and one reader. Two counters that only
// grow say how many stages were filled and emptied; each is written by one side with release order
// and read by the other with acquire order, so a slot's data are visible before its count.
#pragma once

#include <mi300/fp8.h>
#include <mi300/skinny_gemm.h>

namespace mi300 {

constexpr u32 kRingSlots = 4;
constexpr u32 kRingThreads = 512;  // four pairs of waves
constexpr i32 kLdsDone = 0xc07f;   // s_waitcnt lgkmcnt(0): the last counts are in LDS

MI300_DEVICE u32 read_count(u32* count) {
  return wave_uniform(__scoped_atomic_load_n(count, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP));
}

MI300_DEVICE void write_count(u32* count, u32 value) {
  __scoped_atomic_store_n(count, value, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP);
}

class RingStream {
 public:
  static constexpr u32 kRoles = 2;
  static constexpr u32 kSlotWords = kStageSteps * kRowLoads * kWaveSize;  // 16-byte words
  static constexpr u32 kLdsWords = kRingSlots * kSlotWords + 1;           // and the counters
  static constexpr bool kBringsActivations = false;
  static MI300_DEVICE u32 lds_words(const SkinnyGemmArgs& args) { return args.waves * kLdsWords; }

  MI300_DEVICE RingStream(const SkinnyGemmArgs& args, const StreamPlace& place, U32x4* lds)
      : source_(args, place, lds),
        slots_(lds + place.wave * kLdsWords + lane_index()),
        filled_((u32*)(lds + place.wave * kLdsWords + kRingSlots * kSlotWords)),
        emptied_(filled_ + 1),
        is_producer_(wave_index() >= args.waves) {}

  MI300_DEVICE bool is_consumer() const { return !is_producer_; }

  // NOTE: the barrier after the activations are filled in comes before the first use of the ring.
  MI300_DEVICE void open() {
    if (is_producer_ && lane_index() < 2) filled_[lane_index()] = 0;
  }

  MI300_DEVICE void begin(u32 group, u32 first, u32 count) {
    if (is_producer_) source_.begin(group, first, count);
  }

  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
    if (is_producer_) {
      source_.run(count, [&](const StageWords<1>& stage, u32 i) { fill(stage, done_ + i); });
    } else {
#pragma unroll 1
      for (u32 i = 0; i < count; ++i) body(take(done_ + i), i);
    }
    done_ += count;
    __builtin_amdgcn_s_waitcnt(kLdsDone);
  }

 private:
  MI300_DEVICE void fill(const StageWords<1>& stage, u32 i) {
    while (i - read_count(emptied_) >= kRingSlots) __builtin_amdgcn_s_sleep(1);
    U32x4* slot = slots_ + i % kRingSlots * kSlotWords;
    for (u32 step = 0; step < kStageSteps; ++step) slot[step * kWaveSize] = stage.words[0][step][0];
    write_count(filled_, i + 1);
    asm volatile("" ::: "memory");
  }

  MI300_DEVICE StageWords<1> take(u32 i) {
    while (read_count(filled_) <= i) __builtin_amdgcn_s_sleep(1);
    StageWords<1> stage;
    const U32x4* slot = slots_ + i % kRingSlots * kSlotWords;
    for (u32 step = 0; step < kStageSteps; ++step) stage.words[0][step][0] = slot[step * kWaveSize];
    write_count(emptied_, i + 1);
    return stage;
  }

  WeightStream<1> source_;
  U32x4* slots_;
  u32 *filled_, *emptied_;
  const bool is_producer_;
  u32 done_ = 0;
};

template <u32 kGroups>
MI300_DEVICE void run_ring(const SkinnyGemmArgs& args, U32x4* lds) {
  SkinnyGemm<DenseForm<kNativeFp8>, RingStream, u8, true, kGroups, 1>(args, lds).run();
}

}  // namespace mi300
