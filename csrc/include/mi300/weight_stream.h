// How weights travel from memory to the matrix instructions: each byte once, many loads in flight.
//
// A wave takes kTiles row tiles of 16 rows; one iteration is a stage, 128 bytes of k of these rows.
// The waves that share the rows deal the stages of their part of k out in turn. A lane reads only
// what it loaded itself, so there is no synchronisation between lanes and nothing to race on.
#pragma once

#include <mi300/matrix.h>
#include <mi300/skinny_gemm_args.h>

namespace mi300 {

// Stages of a wave under way at a time where they are kept in registers (gfx942).
constexpr u32 kStreamDepth = 4;

// Which weights this wave reads.
struct StreamPlace {
  const char* weight;
  const char* activation;
  i64 weight_stride;
  u32 n;
  u32 row_groups;
  u32 first_row;      // of the wave's rows within a row group
  u32 group_rows;     // weight rows of a row group
  u32 part_stage;     // first stage of the part of k
  u32 k_wave;         // this wave among those that share the rows
  u32 k_waves;
  u32 limit;          // bytes of k at which this part ends
  u32 first_group;    // row group
  u32 group_step;
  u32 wave;           // of the workgroup, or of the waves of its kind
  u32 row_wave;       // this wave among those that have the same k
};

template <u32 kTiles>
MI300_DEVICE void row_pointers(const StreamPlace& place, u32 group,
                               const char* (&rows)[kTiles][kRowLoads]) {
  for (u32 tile = 0; tile < kTiles; ++tile) {
    for (u32 i = 0; i < kRowLoads; ++i) {
      u32 row = group * place.group_rows + place.first_row + tile * kTileRows + i * 8 + lane_row();
      // Rows past the end read the last one; their results are dropped.
      row = row < place.n ? row : place.n - 1;
      rows[tile][i] = place.weight + (i64)row * place.weight_stride + lane_quarter() * 16;
    }
  }
}

// Sixteen bytes at any address, zero from `valid` bytes on.
template <class Unit>
MI300_DEVICE U32x4 gather_bytes(const char* base, i32 valid) {
  u32 words[4] = {0, 0, 0, 0};
  for (u32 i = 0; i < 16 / sizeof(Unit); ++i) {
    u32 offset = i * sizeof(Unit);
    if ((i32)offset < valid) words[offset / 4] |= (u32)load<Unit>(base, i) << (offset % 4 * 8);
  }
  return {words[0], words[1], words[2], words[3]};
}

// For rows that do not start at a multiple of 16 bytes: element by element, no load ahead of its use.
template <class Unit, u32 kTiles>
class GatherStream {
 public:
  static constexpr u32 kRoles = 1;  // kinds of waves
  static constexpr bool kBringsActivations = false;
  static MI300_DEVICE u32 lds_words(const SkinnyGemmArgs&) { return 0; }

  MI300_DEVICE GatherStream(const SkinnyGemmArgs&, const StreamPlace& place, U32x4*) : place_(place) {}
  MI300_DEVICE bool is_consumer() const { return true; }
  MI300_DEVICE void open() {}

  MI300_DEVICE void begin(u32 group, u32 first, u32) {
    row_pointers<kTiles>(place_, group, rows_);
    first_ = first;
  }

  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
      u32 offset = (place_.part_stage + place_.k_wave + (first_ + i) * place_.k_waves) * kStageBytes;
      StageWords<kTiles> stage;
      for (u32 tile = 0; tile < kTiles; ++tile) {
        for (u32 step = 0; step < kStageSteps; ++step) {
          for (u32 row = 0; row < kRowLoads; ++row) {
            u32 at = offset + step * kStepBytes;
            i32 valid = (i32)place_.limit - (i32)(at + lane_quarter() * 16);
            stage.words[tile][step][row] = gather_bytes<Unit>(rows_[tile][row] + at, valid);
          }
        }
      }
      body(stage, i);
    }
  }

 private:
  const StreamPlace place_;
  const char* rows_[kTiles][kRowLoads];
  u32 first_ = 0;
};

#if defined(__AMDGCN__)

// Loads straight into registers, kDepth stages ahead; other waves of the CU cover the ends of a run.
template <u32 kTiles>
class WeightStream {
 public:
  static constexpr u32 kDepth = kStreamDepth;
  static constexpr u32 kRoles = 1;  // kinds of waves
  static constexpr bool kBringsActivations = false;
  static MI300_DEVICE u32 lds_words(const SkinnyGemmArgs&) { return 0; }

  MI300_DEVICE WeightStream(const SkinnyGemmArgs&, const StreamPlace& place, U32x4*) : place_(place) {}
  MI300_DEVICE bool is_consumer() const { return true; }
  MI300_DEVICE void open() {}

  // Starts the loads of iterations `first` on; `count` of them belong to this run.
  //
  // NOTE: both are made opaque: what the compiler works out of them ahead is more than there are
  // scalar registers for.
  MI300_DEVICE void begin(u32 group, u32 first, u32 count) {
    row_pointers<kTiles>(place_, group, rows_);
    first_ = opaque(first);
    if (count < kDepth) return;
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) issue(slot, slot);
  }

  // NOTE: in the first loop no load depends on a branch: after a load that may not have been issued
  // the compiler waits for all loads.
  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
    if (opaque(count) < kDepth) return run_short(count, body);
    u32 base = 0;
#pragma unroll 1
    for (; base + 2 * kDepth <= count; base += kDepth) {
#pragma unroll
      for (u32 slot = 0; slot < kDepth; ++slot) {
        use(slot, base + slot, body);
        issue(slot, base + slot + kDepth);
      }
    }
    const u32 rest = count - base - kDepth;
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) {
      use(slot, base + slot, body);
      if (slot < rest) issue_here(slot, base + slot + kDepth);
    }
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) {
      if (slot < rest) use(slot, base + slot + kDepth, body);
    }
  }

 private:
  template <class Body>
  MI300_DEVICE void run_short(u32 count, const Body& body) {
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) {
      if (slot < count) issue_here(slot, slot);
    }
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) {
      if (slot < count) use(slot, slot, body);
    }
  }

  MI300_DEVICE u32 stage_offset(u32 i) const {
    return (place_.part_stage + place_.k_wave + (first_ + i) * place_.k_waves) * kStageBytes;
  }

  MI300_DEVICE void issue(u32 slot, u32 i) {
    for (u32 step = 0; step < kStageSteps; ++step) {
      u32 offset = stage_offset(i) + step * kStepBytes;
      // Lanes past the end of k read the row's first bytes instead; use() makes them zero.
      i64 at = offset + lane_quarter() * 16 < place_.limit ? offset : -(i64)(lane_quarter() * 16);
      for (u32 tile = 0; tile < kTiles; ++tile) {
        ring_[slot].words[tile][step][0] = load_once<U32x4>(rows_[tile][0] + at, 0);
      }
    }
  }

  // Not to be moved in front of the branch that it depends on.
  MI300_DEVICE void issue_here(u32 slot, u32 i) {
    asm volatile("" ::: "memory");
    issue(slot, i);
  }

  template <class Body>
  MI300_DEVICE void use(u32 slot, u32 i, const Body& body) {
    if (stage_offset(i) + kStageBytes > place_.limit) {
      for (u32 step = 0; step < kStageSteps; ++step) {
        bool is_past = stage_offset(i) + step * kStepBytes + lane_quarter() * 16 >= place_.limit;
        for (u32 tile = 0; tile < kTiles; ++tile) {
          U32x4& words = ring_[slot].words[tile][step][0];
          words = is_past ? U32x4{0, 0, 0, 0} : words;
        }
      }
    }
    body(ring_[slot], i);
  }

  const StreamPlace place_;
  const char* rows_[kTiles][kRowLoads];
  StageWords<kTiles> ring_[kDepth];
  u32 first_ = 0;
};

#endif

}  // namespace mi300
