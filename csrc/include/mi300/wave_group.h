// sm_90's matrix instruction for four waves side by side (wgmma): 64 weight rows at a time.
//
// It multiplies FP8 in hardware, which mma.sync does not, and takes both operands straight from LDS.
// A team is the waves that share a part of k: it copies a stage of weights (its rows) and one of
// activations into a ring of LDS together and meets at a barrier of its own before it multiplies.
// PTX ISA 8.0, section 9.7.14: register fragments, matrix descriptors, the swizzle of 128 bytes.
#pragma once

#include <mi300/matrix.h>
#include <mi300/skinny_gemm_args.h>
#include <mi300/weight_stream.h>

namespace mi300 {

#if !defined(__AMDGCN__)

// One instruction: 32 bytes of k, `is_sum` adds to `sums`, else they are overwritten. The operand
// lists differ by width and the mnemonic by dtype, and neither can be a template argument.
#define MI300_WGMMA_8(NAME, TAIL)                                                       \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %6, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n8" NAME                                \
               " {%0,%1,%2,%3}, %4, %5, p, 1, 1" TAIL "; }"                  \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w)                 \
               : "l"(a), "l"(b), "r"(is_sum))
#define MI300_WGMMA_16(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %10, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n16" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1" TAIL "; }"   \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w)                 \
               : "l"(a), "l"(b), "r"(is_sum))
#define MI300_WGMMA_32(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %18, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n32" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"              \
               " %16, %17, p, 1, 1" TAIL "; }"                            \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w),                \
                 "+f"(d[2].x), "+f"(d[2].y), "+f"(d[2].z), "+f"(d[2].w),                \
                 "+f"(d[3].x), "+f"(d[3].y), "+f"(d[3].z), "+f"(d[3].w)                 \
               : "l"(a), "l"(b), "r"(is_sum))
#define MI300_WGMMA_64(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %34, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n64" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"               \
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"      \
               " %32, %33, p, 1, 1" TAIL "; }"                            \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w),                \
                 "+f"(d[2].x), "+f"(d[2].y), "+f"(d[2].z), "+f"(d[2].w),                \
                 "+f"(d[3].x), "+f"(d[3].y), "+f"(d[3].z), "+f"(d[3].w),                \
                 "+f"(d[4].x), "+f"(d[4].y), "+f"(d[4].z), "+f"(d[4].w),                \
                 "+f"(d[5].x), "+f"(d[5].y), "+f"(d[5].z), "+f"(d[5].w),                \
                 "+f"(d[6].x), "+f"(d[6].y), "+f"(d[6].z), "+f"(d[6].w),                \
                 "+f"(d[7].x), "+f"(d[7].y), "+f"(d[7].z), "+f"(d[7].w)                 \
               : "l"(a), "l"(b), "r"(is_sum))
#define MI300_WGMMA_TYPES(WIDTH)                                 \
  if constexpr (kType == Dtype::kE4m3fn) {                       \
    MI300_WGMMA_##WIDTH("k32.f32.e4m3.e4m3", "");                \
  } else if constexpr (kType == Dtype::kBf16) {                  \
    MI300_WGMMA_##WIDTH("k16.f32.bf16.bf16", ", 0, 0");             \
  } else {                                                       \
    MI300_WGMMA_##WIDTH("k16.f32.f16.f16", ", 0, 0");               \
  }

template <Dtype kType, u32 kGroups>
MI300_DEVICE void wgmma(Float4 (&d)[kGroups], u64 a, u64 b, u32 is_sum) {
  static_assert(kGroups == 1 || kGroups == 2 || kGroups == 4 || kGroups == 8);
  if constexpr (kGroups == 1) {
    MI300_WGMMA_TYPES(8)
  } else if constexpr (kGroups == 2) {
    MI300_WGMMA_TYPES(16)
  } else if constexpr (kGroups == 4) {
    MI300_WGMMA_TYPES(32)
  } else {
    MI300_WGMMA_TYPES(64)
  }
}

#undef MI300_WGMMA_TYPES
#undef MI300_WGMMA_64
#undef MI300_WGMMA_32
#undef MI300_WGMMA_16
#undef MI300_WGMMA_8

// A stage in LDS, 128 bytes a row: the team's weights and the activations.
struct GroupStage {
  u32 weights, activations;  // LDS addresses, the former of this wave group's first row
  u32 tile_bytes;            // from tile to tile of the wave group's rows
};

// The ring of a team. Rows of 128 bytes, their 16-byte chunks permuted as the instruction expects
// (chunk ^ row % 8): neither the copies nor the instruction's reads meet in a bank. A tile may have
// fewer rows than the 64 that the instruction reads: it then multiplies what follows in LDS as well,
// and those results are dropped.
template <u32 kWidth, u32 kTiles>
class GroupStream {
 public:
  static constexpr u32 kRoles = 1;
  static constexpr bool kBringsActivations = true;
  static constexpr u32 kChunks = kStageBytes / 16;

  // 16-byte words of a workgroup's rings.
  static MI300_DEVICE u32 lds_words(const SkinnyGemmArgs& args) {
    return args.k_waves * args.depth * stage_words(args.rows);
  }

  MI300_DEVICE GroupStream(const SkinnyGemmArgs& args, const StreamPlace& place, U32x4* lds)
      : args_(args), place_(place), group_(place.first_group) {
    const u32 team_waves = args.waves >> args.k_shift;
    const u32 thread = place.row_wave * kWaveSize + lane_index();
    team_threads_ = team_waves * kWaveSize;
    row_ = thread / kChunks;
    row_step_ = team_threads_ / kChunks;  // a multiple of 8, so that a thread keeps its permutation
    chunk_ = thread % kChunks;
    stage_words_ = stage_words(place.group_rows);
    U32x4* ring = lds + place.k_wave * args.depth * stage_words_;
    ring_ = lds_address(ring);
    slot_ = row_ * kChunks + (chunk_ ^ (row_ % 8));
    iterations_ = (args.split_stages + args.k_waves - 1) >> args.k_shift;
    take_group();
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
  }

  MI300_DEVICE bool is_consumer() const { return true; }

  // Starts the first copies of weights: one batch a stage.
  MI300_DEVICE void open() {
    for (u32 slot = 0; slot + 1 < args_.depth; ++slot) {
      if (group_ < place_.row_groups) copy_weights(slot);
      commit_copies();
    }
    write_ = args_.depth - 1;
  }

  // Starts those of the activations. As batches of their own they follow the weights' in order;
  // else they belong to the first batch of weights, which open() is to start next.
  MI300_DEVICE void open_activations(bool has_batches) {
    for (u32 slot = 0, iteration = 0; slot + 1 < args_.depth; ++slot) {
      copy_activations(slot, iteration);
      iteration = iteration + 1 == iterations_ ? 0 : iteration + 1;
      if (has_batches) commit_copies();
    }
  }

  MI300_DEVICE void begin(u32, u32, u32) {}

  template <class Body>
  MI300_DEVICE void run(u32 count, const Body& body) {
#pragma unroll 1
    for (u32 i = 0; i < count; ++i) {
      wait_for_batches(args_.depth - 2);
      // The matrix instruction reads LDS past the ordinary path, which must see the copies.
      wave_barrier();  // the copies may have parted the lanes
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      team_barrier();  // all have the stage, and all are done with the one before
      if (group_ < place_.row_groups) {
        copy_activations(write_, iteration_);
        copy_weights(write_);
      }
      commit_copies();
      write_ = write_ + 1 == args_.depth ? 0 : write_ + 1;
      const u32 stage = ring_ + read_ * stage_words_ * 16;
      const u32 first_tile = place_.row_wave / 4 * kTiles * args_.tile_rows * kStageBytes;
      body(GroupStage{stage + first_tile, stage + place_.group_rows * kStageBytes,
                      args_.tile_rows * kStageBytes},
           i);
      read_ = read_ + 1 == args_.depth ? 0 : read_ + 1;
    }
  }

 private:
  static MI300_DEVICE u32 stage_words(u32 rows) { return (rows + kWidth * 8) * kChunks; }

  MI300_DEVICE void team_barrier() {
    switch (place_.k_wave) {  // by constants: the hardware reserves what a register could name
      case 0: asm volatile("bar.sync 1, %0;" ::"r"(team_threads_) : "memory"); break;
      case 1: asm volatile("bar.sync 2, %0;" ::"r"(team_threads_) : "memory"); break;
      case 2: asm volatile("bar.sync 3, %0;" ::"r"(team_threads_) : "memory"); break;
      default: asm volatile("bar.sync 4, %0;" ::"r"(team_threads_) : "memory"); break;
    }
  }

  MI300_DEVICE u32 offset(u32 iteration) const {
    return (place_.part_stage + place_.k_wave + iteration * place_.k_waves) * kStageBytes +
           chunk_ * 16;
  }

  MI300_DEVICE void take_group() {
    const u32 row = group_ * place_.group_rows + row_;
    rows_left_ = row < place_.n ? place_.n - row : 0;
    base_ = place_.weight + (i64)(row < place_.n ? row : 0) * place_.weight_stride;
  }

  // Copies this thread's chunks of the next stage of weights; rows past the last become zeros.
  MI300_DEVICE void copy_weights(u32 slot) {
    const u32 at = offset(iteration_);
    const u32 to = ring_ + (slot * stage_words_ + slot_) * 16;
    const u32 valid_rows = at < place_.limit ? rows_left_ : 0;
    const i64 step = (i64)row_step_ * place_.weight_stride;
    const char* from = base_ + at;
#pragma unroll
    for (u32 pass = 0; pass < 4 * kTiles; ++pass) {
      if (row_ + pass * row_step_ >= place_.group_rows) break;
      const bool is_valid = pass * row_step_ < valid_rows;
      asm volatile(
          "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
              to + pass * row_step_ * kStageBytes),
          "l"(is_valid ? from : place_.weight), "r"(is_valid ? 16 : 0), "l"(policy_)
          : "memory");
      from += step;
    }
    if (++iteration_ < iterations_) return;
    iteration_ = 0;
    group_ += place_.group_step;
    take_group();
  }

  // Rows past m stay as they are: they change no other row's results.
  MI300_DEVICE void copy_activations(u32 slot, u32 iteration) {
    const u32 at = offset(iteration);
    const bool is_valid = at < place_.limit;
    const u32 to = ring_ + (slot * stage_words_ + place_.group_rows * kChunks + slot_) * 16;
    const char* from = place_.activation + (is_valid ? at : 0);
#pragma unroll
    for (u32 pass = 0; pass < (kWidth + 1) / 2; ++pass) {
      const u32 row = row_ + pass * row_step_;
      if (row >= args_.m) break;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                       to + pass * row_step_ * kStageBytes),
                   "l"(from + row * args_.activation_stride), "r"(is_valid ? 16 : 0)
                   : "memory");
    }
  }

  const SkinnyGemmArgs& args_;
  const StreamPlace place_;
  const char* base_;
  u64 policy_;
  u32 ring_, slot_, stage_words_, team_threads_, row_, row_step_, chunk_, rows_left_;
  u32 group_, iteration_ = 0, iterations_, read_ = 0, write_ = 0;
};

// Four waves multiply together. A stage's FP8 products are summed by the instruction and then added
// to the fp32 sums by ordinary additions: the instruction keeps fewer bits of an FP8 sum than fp32
// has. Sums of bf16 and fp16 stay in the instruction's registers.
template <Dtype kType, u32 kWidth>
struct WaveGroupForm {
  static constexpr u32 kColumns = 8;
  static constexpr u32 kValues = 4;
  static constexpr u32 kTogether = 4;

  static MI300_DEVICE u32 lds_rows(u32) { return kWidth * kColumns; }

  // Keeps the registers' values where they are, in the order of the program.
  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void pin(Float4 (&parts)[kTiles][kGroups]) {
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (u32 group = 0; group < kGroups; ++group) {
        Float4& part = parts[tile][group];
        asm volatile("" : "+f"(part.x), "+f"(part.y), "+f"(part.z), "+f"(part.w)::"memory");
      }
    }
  }

  // Rows of 128 bytes, 8 of them to a pattern of 1024, swizzled.
  static MI300_DEVICE u64 descriptor(u32 address) {
    return ((u64)(address & 0x3ffff) >> 4) | ((u64)1 << 16) | ((u64)(1024 >> 4) << 32) |
           ((u64)1 << 62);
  }

  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void issue(Float4 (&sums)[kTiles][kGroups], const GroupStage& stage,
                                 bool is_new) {
    static_assert(kGroups == kWidth);
    pin(sums);  // no move of a register may come between the instructions
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    const u64 b = descriptor(stage.activations);
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
      const u64 a = descriptor(stage.weights + tile * stage.tile_bytes);
#pragma unroll
      for (u32 step = 0; step < kStageBytes / 32; ++step) {
        wgmma<kType>(sums[tile], a + step * 2, b + step * 2, !is_new || step != 0);
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(sums);
  }

  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void multiply_stage(Float4 (&sums)[kTiles][kGroups],
                                          const GroupStage& stage) {
    if constexpr (kType != Dtype::kE4m3fn) {
      issue(sums, stage, false);
    } else {
      Float4 parts[kTiles][kGroups] = {};
      issue(parts, stage, true);
#pragma unroll
      for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (u32 group = 0; group < kGroups; ++group) sums[tile][group] += parts[tile][group];
      }
    }
  }

  static MI300_DEVICE u32 tile_row(const SkinnyGemmArgs& args, u32 row_wave, u32 tile, u32 tiles) {
    return (row_wave / 4 * tiles + tile) * args.tile_rows + row_wave % 4 * kTileRows;
  }
  // A tile has fewer rows than the instruction: the last waves' are those of the next tile.
  static MI300_DEVICE bool is_tile_row(const SkinnyGemmArgs& args, u32 row_wave, u32 row) {
    return row_wave % 4 * kTileRows + row < args.tile_rows;
  }
  static MI300_DEVICE Float4 fold(Float4 sum) { return sum; }
  static MI300_DEVICE u32 value_row(u32 i) { return lane_index() / 4 + 8 * (i / 2); }
  static MI300_DEVICE u32 value_column(u32 i) { return 2 * (lane_index() % 4) + i % 2; }
};

#endif

}  // namespace mi300
