// Sums and maxima over a row that is spread over a workgroup, or over a cluster of workgroups.
//
// Each wave leaves its part in LDS (in every workgroup's LDS of the cluster) and every thread combines
// the parts in the same order, so that results do not depend on timing. One barrier a reduction; in a
// cluster a mailbox instead, used once: a cluster takes one row.
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
  U32x4 parts[kSlots / 4 + (kHasClusters ? 1 : 0)];  // a cluster's mailbox at the end

  MI300_DEVICE u64* mailbox() { return (u64*)(parts + kSlots / 4); }

  MI300_DEVICE u32* slot(u32 index) { return (u32*)parts + index; }

  // All parts combined four by four, in the same order whatever the launch; at most 32 read at once.
  template <u32 kCount, class Combine>
  MI300_DEVICE U32x4 fold(Combine combine) const {
    constexpr u32 kAtOnce = kCount < 32 ? kCount / 4 : 8;
    U32x4 total = {};  // 0 is neutral
#pragma unroll
    for (u32 start = 0; start < kCount / 4; start += kAtOnce) {
      U32x4 read[kAtOnce];
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) read[i] = parts[start + i];
#pragma unroll
      for (u32 i = 0; i < kAtOnce; ++i) {
        for (u32 j = 0; j < 4; ++j) total[j] = start + i == 0 ? read[i][j] : combine(total[j], read[i][j]);
      }
    }
    return total;
  }
};

// The largest part of a row, raised in place by all waves of the row: nothing is left to combine.
struct alignas(16) RowPeak {
  u32 top;
  u64 box;  // a cluster's mailbox

  MI300_DEVICE u64* mailbox() { return &box; }
};

MI300_DEVICE u32 add_bits(u32 a, u32 b) {
  return bit_cast<u32>(bit_cast<float>(a) + bit_cast<float>(b));
}

// Where a lane's part goes: its peer's slot and mailbox.
struct PeerRoute {
  u32 place, box;
};

// Where this workgroup stands in its row.
struct RowTeam {
  u32 threads, cluster, rank, waves;

  MI300_DEVICE static RowTeam of(const RowArgs& args) {
    u32 rank = kHasClusters ? group_index() & (args.cluster - 1) : 0;
    return {args.threads, kHasClusters ? args.cluster : 1, rank, args.threads / kWaveSize};
  }

  // A workgroup by itself, of at most 16 waves.
  MI300_DEVICE static RowTeam alone(const RowArgs& args) {
    __builtin_assume(args.threads <= 16 * kWaveSize);
    return {args.threads, 1, 0, args.threads / kWaveSize};
  }

  // One of a cluster's.
  MI300_DEVICE static RowTeam shared(const RowArgs& args) {
    __builtin_assume(args.cluster > 1);
    return of(args);
  }

  // The same, of which nothing worked out before is kept in registers.
  MI300_DEVICE RowTeam made_again() const {
    return {threads, made_here(cluster), made_here(rank), waves};
  }

  // The first row of this workgroup's cluster.
  MI300_DEVICE u32 row() const {
    return kHasClusters ? group_index() >> __builtin_ctz(cluster) : group_index();
  }

  MI300_DEVICE bool is_cluster() const { return kHasClusters && cluster > 1; }
  MI300_DEVICE bool is_few() const { return kSlots == 16 || (!is_cluster() && waves <= 16); }

  // Makes slots ready for exchanges: before announce().
  MI300_DEVICE void open(RowSlots& slots) const {
    const u32 used = is_few() ? 16 : kSlots;
    for (u32 i = cluster * waves + thread_index(); i < used; i += threads) *slots.slot(i) = 0;
    if (is_cluster() && thread_index() == 0) open_mailbox(slots.mailbox(), cluster * waves * 4);
  }

  // The same; without a cluster a barrier must follow before the first part is sent.
  MI300_DEVICE void open(RowPeak& peak) const {
    if (thread_index() != 0) return;
    peak.top = 0;
    if (is_cluster()) open_mailbox(peak.mailbox(), cluster * waves * 4);
  }

  // Tells the peers that the slots are open; all must have told before the first exchange.
  MI300_DEVICE void announce() const {
    if (!is_cluster()) return;
    barrier();  // the cleared slots are read by other waves, which only wait for the mailbox
    cluster_arrive_relaxed();
  }
  MI300_DEVICE void wait_for_peers() const {
    if (is_cluster()) cluster_wait();
  }

  MI300_DEVICE PeerRoute route(RowSlots& slots) const {
    if (!is_cluster()) return {};
    return {peer_address(slots.slot(rank * waves + wave_index()), lane_index()),
            peer_address(slots.mailbox(), lane_index())};
  }

  MI300_DEVICE PeerRoute route(RowPeak& peak) const {
    if (!is_cluster()) return {};
    return {peer_address(&peak.top, lane_index()), peer_address(peak.mailbox(), lane_index())};
  }

  // Leaves this wave's part with everybody.
  MI300_DEVICE void send(RowSlots& slots, const PeerRoute& route, u32 part) const {
    if (is_cluster()) {
      if (lane_index() < cluster) send_peer(route.place, route.box, part);
    } else if (lane_index() == 0) {
      *slots.slot(wave_index()) = part;
    }
  }

  MI300_DEVICE void send(RowPeak& peak, const PeerRoute& route, u32 part) const {
    if (is_cluster()) {
      if (lane_index() < cluster) raise_peer(route.place, route.box, part);
    } else if (lane_index() == 0) {
      raise(&peak.top, part);
    }
  }

  MI300_DEVICE u32 receive(RowPeak& peak) const {
    wait_for_parts(peak);
    return peak.top;
  }

  // All parts combined, once all have come.
  template <class Combine>
  MI300_DEVICE u32 receive(RowSlots& slots, Combine combine) const {
    wait_for_parts(slots);
    const U32x4 total = fold(slots, combine);
    return combine(combine(total.x, total.y), combine(total.z, total.w));
  }

  template <class Parts>
  MI300_DEVICE void wait_for_parts(Parts& parts) const {
    if (is_cluster()) {
      wait_mailbox(parts.mailbox());
    } else {
      barrier();
    }
  }

  template <class Combine>
  MI300_DEVICE U32x4 fold(const RowSlots& slots, Combine combine) const {
    if (is_few()) return slots.fold<16>(combine);
    return waves * cluster <= 32 ? slots.fold<kSlots / 2>(combine) : slots.fold<kSlots>(combine);
  }

  template <class Combine>
  MI300_DEVICE u32 exchange(RowSlots& slots, u32 part, Combine combine) const {
    send(slots, route(slots), part);
    return receive(slots, combine);
  }

  MI300_DEVICE float sum(RowSlots& slots, float value) const {
    return bit_cast<float>(exchange(slots, bit_cast<u32>(wave_sum(value)), add_bits));
  }

  MI300_DEVICE u32 max(RowSlots& slots, u32 value) const {
    return exchange(slots, wave_max(value), max_u32);
  }
};

}  // namespace mi300
