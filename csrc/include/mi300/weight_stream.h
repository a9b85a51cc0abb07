// How weights travel from memory to the matrix instructions: each byte once, many loads in flight.
//
// A wave takes kTiles row tiles of 16 rows; one iteration is a stage, 128 bytes of k of these rows.
// The waves that share the rows deal the stages of their part of k out in turn. A lane reads only
// what it copied itself, so there is no synchronisation between lanes and nothing to race on.
#pragma once

#include <mi300/matrix.h>
#include <mi300/skinny_gemm_args.h>

namespace mi300 {


// Which weights this wave reads.
struct StreamPlace {
  u32 first_row;      // of the wave's rows within a row group
  u32 group_rows;     // weight rows of a row group
  u32 part_stage;     // first stage of the part of k
  u32 k_wave;         // this wave among those that share the rows
  u32 k_waves;
  u32 limit;          // bytes of k at which this part ends
  u32 first_group;    // row group
  u32 group_step;
};

template <u32 kTiles>
MI300_DEVICE void row_pointers(const SkinnyGemmArgs& args, const StreamPlace& place, u32 group,
                               const char* (&rows)[kTiles][kRowLoads]) {
  for (u32 tile = 0; tile < kTiles; ++tile) {
    for (u32 i = 0; i < kRowLoads; ++i) {
      u32 row = group * place.group_rows + place.first_row + tile * kTileRows + i * 8 + lane_row();
      // Rows past the end read the last one; their results are dropped.
      row = row < args.n ? row : args.n - 1;
      rows[tile][i] = (const char*)args.weight + (i64)row * args.weight_stride + lane_quarter() * 16;
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
  static constexpr u32 kLdsWords = 0;

  MI300_DEVICE GatherStream(const SkinnyGemmArgs& args, const StreamPlace& place, U32x4*)
      : args_(args), place_(place) {}
  MI300_DEVICE bool is_consumer() const { return true; }
  MI300_DEVICE void prefetch() {}
  MI300_DEVICE void open() {}

  MI300_DEVICE void begin(u32 group, u32 first, u32) {
    row_pointers<kTiles>(args_, place_, group, rows_);
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
  const SkinnyGemmArgs& args_;
  const StreamPlace place_;
  const char* rows_[kTiles][kRowLoads];
  u32 first_ = 0;
};

#if defined(__AMDGCN__)

// Loads straight into registers, kDepth stages ahead; other waves of the CU cover the ends of a run.
template <u32 kTiles, u32 kDepth>
class WeightStream {
 public:
  static constexpr u32 kRoles = 1;  // kinds of waves
  static constexpr u32 kLdsWords = 0;

  MI300_DEVICE WeightStream(const SkinnyGemmArgs& args, const StreamPlace& place, U32x4*)
      : args_(args), place_(place) {}
  MI300_DEVICE bool is_consumer() const { return true; }
  MI300_DEVICE void prefetch() {}
  MI300_DEVICE void open() {}

  // Starts the loads of iterations `first` on; `count` of them belong to this run.
  MI300_DEVICE void begin(u32 group, u32 first, u32 count) {
    row_pointers<kTiles>(args_, place_, group, rows_);
    first_ = first;
    if (count < kDepth) return;
#pragma unroll
    for (u32 slot = 0; slot < kDepth; ++slot) issue(slot, slot);
  }

  // NOTE: in the first loop no load depends on a branch: after a load that may not have been issued
  // the compiler waits for all loads.
  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
    if (count < kDepth) return run_short(count, body);
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

  const SkinnyGemmArgs& args_;
  const StreamPlace place_;
  const char* rows_[kTiles][kRowLoads];
  StageWords<kTiles> ring_[kDepth];
  u32 first_ = 0;
};

#else

// Asynchronous copies into a ring of LDS that belongs to the lane; it stays full across row groups.
template <u32 kTiles, u32 kDepth>
class WeightStream {
 public:
  static constexpr u32 kStageWords = kTiles * kStageSteps * kRowLoads * kWaveSize;
  static constexpr u32 kRoles = 1;  // kinds of waves
  static constexpr u32 kLdsWords = kDepth * kStageWords;  // 16-byte words of a wave

  MI300_DEVICE WeightStream(const SkinnyGemmArgs& args, const StreamPlace& place, U32x4* ring)
      : args_(args), place_(place), ring_(ring + lane_index()), group_(place.first_group) {
    iterations_ = (args.split_stages + args.k_waves - 1) / args.k_waves;
    row_pointers<kTiles>(args_, place_, min_group(), rows_);
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }

  // Brings the lane's first stages into the L2 cache; a lane of each quarter takes one.
  MI300_DEVICE bool is_consumer() const { return true; }
  MI300_DEVICE void prefetch() {
    u32 stage = place_.part_stage + place_.k_wave + lane_quarter() * place_.k_waves;
    if (lane_quarter() >= iterations_ || stage * kStageBytes >= place_.limit) return;
    for (u32 tile = 0; tile < kTiles; ++tile) {
      for (u32 row = 0; row < kRowLoads; ++row) {
        const char* line = rows_[tile][row] + stage * kStageBytes - lane_quarter() * 16;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
      }
    }
  }

  MI300_DEVICE void open() {
    for (u32 i = 0; i < kDepth - 1; ++i) issue();
  }

  MI300_DEVICE void begin(u32, u32, u32) {}

  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
      wait_copies<kDepth - 2>();
      StageWords<kTiles> stage;
      const U32x4* slot = ring_ + read_ * kStageWords;
      for (u32 tile = 0; tile < kTiles; ++tile) {
        for (u32 step = 0; step < kStageSteps; ++step) {
          for (u32 row = 0; row < kRowLoads; ++row) {
            stage.words[tile][step][row] = slot[index(tile, step, row)];
          }
        }
      }
      read_ = read_ + 1 == kDepth ? 0 : read_ + 1;
      issue();  // into the slot that the iteration before has used up
      body(stage, i);
    }
  }

 private:
  static MI300_DEVICE constexpr u32 index(u32 tile, u32 step, u32 row) {
    return ((tile * kStageSteps + step) * kRowLoads + row) * kWaveSize;
  }
  MI300_DEVICE u32 min_group() const { return group_ < args_.row_groups ? group_ : 0; }

  MI300_DEVICE void copy(U32x4* slot, const char* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                     lds_address(slot)),
                 "l"(from), "r"(bytes), "l"(policy_)
                 : "memory");
  }

  // Starts the copies of the next stage; past the last one it only closes an empty batch.
  MI300_DEVICE void issue() {
    if (group_ < args_.row_groups) {
      U32x4* slot = ring_ + write_ * kStageWords;
      u32 offset = (place_.part_stage + place_.k_wave + iteration_ * place_.k_waves) * kStageBytes;
      for (u32 step = 0; step < kStageSteps; ++step) {
        u32 at = offset + step * kStepBytes;
        bool is_valid = at + lane_quarter() * 16 < place_.limit;
        for (u32 tile = 0; tile < kTiles; ++tile) {
          for (u32 row = 0; row < kRowLoads; ++row) {
            copy(slot + index(tile, step, row), rows_[tile][row] + (is_valid ? at : 0),
                 is_valid ? 16 : 0);
          }
        }
      }
      if (++iteration_ == iterations_) {
        iteration_ = 0;
        group_ += place_.group_step;
        if (group_ < args_.row_groups) row_pointers<kTiles>(args_, place_, group_, rows_);
      }
    }
    write_ = write_ + 1 == kDepth ? 0 : write_ + 1;
    commit_copies();
  }

  const SkinnyGemmArgs& args_;
  const StreamPlace place_;
  U32x4* ring_;
  const char* rows_[kTiles][kRowLoads];
  u64 policy_;
  u32 group_, iteration_ = 0, iterations_, read_ = 0, write_ = 0;
};

#endif

}  // namespace mi300
