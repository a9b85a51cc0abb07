// Sums and maxima over a row that is spread over a workgroup, or over a cluster of workgroups.
//
// Each wave leaves its part in LDS (in every workgroup's LDS of the cluster) and every thread combines
// the parts in the same order, so that results do not depend on timing. One barrier a reduction.
#pragma once

#include <mi300/quantize.h>

namespace mi300 {

// Most threads of a workgroup: with more vectors a lane needs more registers than a full
// workgroup of 32-lane waves leaves it.
template <u32 kVec>
constexpr u32 kMaxThreads = kVec <= 2 || kWaveSize == 64 ? 1024 : 512;

// Parts of one row: one a wave, of all workgroups of the cluster together. Unused ones stay 0.
constexpr u32 kSlots = kHasClusters ? 64 : 16;

struct alignas(16) RowSlots {
  U32x4 parts[kSlots / 4];

  MI300_DEVICE u32* slot(u32 index) { return (u32*)parts + index; }

  // All parts combined four by four, in the same order whatever the launch.
  template <u32 kCount, class Combine>
  MI300_DEVICE U32x4 fold(Combine combine) const {
    U32x4 read[kCount / 4];
#pragma unroll
    for (u32 i = 0; i < kCount / 4; ++i) read[i] = parts[i];
#pragma unroll
    for (u32 i = 1; i < kCount / 4; ++i) {
      for (u32 j = 0; j < 4; ++j) read[0][j] = combine(read[0][j], read[i][j]);
    }
    return read[0];
  }
};

// Where this workgroup stands in its row.
struct RowTeam {
  u32 threads, cluster, rank, waves;

  MI300_DEVICE static RowTeam of(const RowArgs& args) {
    u32 rank = kHasClusters ? group_index() & (args.cluster - 1) : 0;
    return {args.threads, kHasClusters ? args.cluster : 1, rank, args.threads / kWaveSize};
  }

  // The first row of this workgroup's cluster.
  MI300_DEVICE u32 row() const {
    return kHasClusters ? group_index() >> __builtin_ctz(cluster) : group_index();
  }

  MI300_DEVICE bool is_cluster() const { return kHasClusters && cluster > 1; }

  // Clears the parts that no wave writes; before the first exchange.
  MI300_DEVICE void clear(RowSlots& slots) const {
    for (u32 i = cluster * waves + thread_index(); i < kSlots; i += threads) *slots.slot(i) = 0;
  }

  // Leaves this wave's part with everybody, then combines all parts.
  template <class Combine>
  MI300_DEVICE u32 exchange(RowSlots& slots, u32 part, Combine combine) const {
    u32 index = rank * waves + wave_index();
    if (is_cluster()) {
      if (lane_index() < cluster) store_peer(slots.slot(index), lane_index(), part);
      cluster_arrive();
      cluster_wait();
    } else {
      if (lane_index() == 0) *slots.slot(index) = part;
      barrier();
    }
    U32x4 total = is_cluster()  ? slots.fold<kSlots>(combine)
                  : waves <= 8  ? slots.fold<8>(combine)
                  : waves <= 16 ? slots.fold<16>(combine)
                                : slots.fold<kSlots / 2>(combine);
    return combine(combine(total.x, total.y), combine(total.z, total.w));
  }

  MI300_DEVICE float sum(RowSlots& slots, float value) const {
    u32 part = bit_cast<u32>(wave_sum(value));
    return bit_cast<float>(exchange(slots, part, [](u32 a, u32 b) {
      return bit_cast<u32>(bit_cast<float>(a) + bit_cast<float>(b));
    }));
  }

  MI300_DEVICE u32 max(RowSlots& slots, u32 value) const {
    return exchange(slots, wave_max(value), max_u32);
  }
};

}  // namespace mi300
