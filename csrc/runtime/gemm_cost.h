// How skinny GEMMs may be cut, what LDS that takes and how long it is expected to take.
#pragma once

#include <mi300/row_args.h>
#include <mi300/skinny_gemm_args.h>

#include <algorithm>

#include "launcher.h"

namespace mi300 {

enum class GemmForm : int32_t { kAny, kDense, kSparse, kRing, kGroup, kUnaligned, kVendor };

// Of `args` everything that the caller knows is set, also of the products in `more` (n is 0 where
// there is none); the launch geometry is still to do.
struct GemmProblem {
  SkinnyGemmArgs args;
  int32_t operand;  // Dtype of both operands
  GemmForm form;    // kAny lets the plan choose
};

// How the work is cut; see skinny_gemm_args.h.
struct GemmShape {
  GemmForm form;
  uint32_t columns;    // limit of m of the entry
  uint32_t tiles;      // row tiles of a wave, or of four with the group form
  uint32_t tile_rows;  // weight rows of a tile
  uint32_t waves;
  uint32_t k_waves;
  uint32_t splits;
  uint32_t depth;  // stages of a ring; 0 without
};

struct GemmLaunch {
  char module[32];
  char entry[48];
  uint32_t grid;
  uint32_t block;
  uint32_t cluster;
  uint32_t lds_bytes;
  uint32_t is_dependent;
  SkinnyGemmArgs args;
};

struct GemmPlan {
  GemmShape shape;
  uint64_t workspace_bytes;  // for `partial` of all products and launches
  uint32_t launch_count;
  GemmLaunch launches[2];
};

constexpr uint32_t kGemmMaxSets = 3;
constexpr uint32_t kGemmMaxRows = 64;
constexpr uint32_t kGemmTileRows = 16;
constexpr uint32_t kGemmGroupRows = 64;  // weight rows that four waves multiply together
constexpr uint32_t kGemmStageBytes = 128;
constexpr uint32_t kGemmStreamDepth = 4;  // kStreamDepth of weight_stream.h
constexpr uint32_t kGemmRingSlots = 4;    // kRingSlots of weight_ring.h
constexpr uint32_t kGemmMinDepth = 3, kGemmMaxDepth = 8;  // of a ring of asynchronous copies

constexpr double kGemmStagePace = 0.33;  // microseconds
constexpr uint32_t kGemmLdsAlwaysRaised = 48 * 1024 + 16;

inline uint32_t gemm_divide_up(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

// The product of index `i`.
inline const GemmSet& gemm_set(const SkinnyGemmArgs& args, uint32_t i) {
  return i == 0 ? static_cast<const GemmSet&>(args) : args.more[i - 1];
}
inline GemmSet& gemm_set(SkinnyGemmArgs& args, uint32_t i) {
  return i == 0 ? static_cast<GemmSet&>(args) : args.more[i - 1];
}

inline bool is_gemm_aligned(const SkinnyGemmArgs& args) {
  const auto is_multiple = [](uint64_t value) { return value % 16 == 0; };
  bool is_aligned = is_multiple(args.row_bytes) && is_multiple(args.activation_stride);
  for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
    const GemmSet& set = gemm_set(args, i);
    is_aligned = is_aligned && is_multiple(reinterpret_cast<uintptr_t>(set.weight)) &&
                 is_multiple(reinterpret_cast<uintptr_t>(set.activation)) &&
                 is_multiple(set.weight_stride);
  }
  return is_aligned;
}

// Quads of results that each part of k finishes; at least 2, so that its inverse fits.
inline uint32_t gemm_share(uint32_t rows, uint32_t m, uint32_t splits) {
  return std::max(2u, gemm_divide_up(uint64_t{rows} / 4 * m, splits));
}

// What a shape makes of a problem.
struct GemmWork {
  uint32_t rows;  // weight rows of a workgroup
  uint32_t set_groups[kGemmMaxSets];
  uint32_t groups;  // row groups of all products
  uint32_t split_stages;
  uint32_t iterations;
  uint32_t padded_stages;  // with those that some waves have too many

  GemmWork(const GemmShape& shape, const SkinnyGemmArgs& args) {
    const uint32_t together = shape.form == GemmForm::kGroup ? 4 : 1;
    rows = shape.waves / shape.k_waves / together * shape.tiles * shape.tile_rows;
    groups = 0;
    for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
      set_groups[i] = gemm_divide_up(gemm_set(args, i).n, rows);
      groups += set_groups[i];
    }
    const uint32_t stages = gemm_divide_up(args.row_bytes, kGemmStageBytes);
    split_stages = gemm_divide_up(stages, shape.splits);
    iterations = gemm_divide_up(split_stages, shape.k_waves);
    padded_stages = iterations * shape.k_waves;
  }

  // Teams of a launch in which none has more than `rounds` groups: a team serves one product.
  uint32_t teams(uint32_t rounds) const {
    uint32_t count = 0;
    for (uint32_t of_set : set_groups) count += gemm_divide_up(of_set, rounds);
    return count;
  }

  // Groups of the busiest of at most `limit` teams.
  uint32_t rounds(uint32_t limit) const {
    uint32_t count = std::max(1u, groups / std::max(limit, 1u));
    while (teams(count) > std::max(limit, kGemmMaxSets)) ++count;
    return count;
  }

  double group_bytes() const { return double{1} * rows * padded_stages * kGemmStageBytes; }
};

// Clusters of so many workgroups that an H200 runs at a time (measured; a cluster stays within one
// group of processors), scaled to another count of multiprocessors.
inline uint32_t gemm_clusters(uint32_t splits, const DeviceInfo& device) {
  constexpr uint32_t kMeasured[] = {0, 132, 66, 39, 30, 24, 17, 16, 15};
  return std::max(1u, kMeasured[std::min(splits, 8u)] * device.cu_count / 132);
}

// Bytes of LDS of a workgroup with the activations of `chunk` iterations: ring of weights,
// activations, the waves' sums, the parts received.
inline uint32_t gemm_lds_bytes(const GemmShape& shape, const SkinnyGemmArgs& args, uint32_t chunk,
                               const DeviceInfo& device) {
  const GemmWork work(shape, args);
  uint32_t bytes = 0;
  if (shape.form == GemmForm::kGroup) {
    bytes += shape.k_waves * shape.depth * (work.rows + shape.columns) * kGemmStageBytes;
    // The instruction reads past a tile with fewer rows.
    bytes += (kGemmGroupRows - shape.tile_rows) * kGemmStageBytes;
  } else {
    const uint32_t stage = shape.tiles * kGemmTileRows * kGemmStageBytes;
    const uint32_t counters = shape.form == GemmForm::kRing ? 16 : 0;
    bytes += shape.waves * (shape.depth * stage + counters);
    bytes += std::min(chunk, work.iterations) * shape.k_waves * kGemmStageBytes * args.m;
  }
  bytes += shape.k_waves * args.m * (work.rows + 4) * 4;
  if (shape.splits > 1 && device.max_cluster > 1) {
    const uint32_t buffers = work.rounds(gemm_clusters(shape.splits, device)) > 1 ? 2 : 1;
    bytes += buffers * shape.splits * gemm_share(work.rows, args.m, shape.splits) * 16;
  }
  return bytes;
}

// Iterations whose activations fit in LDS at a time; 0 if not even one fits. The group form brings
// them along with the weights.
inline uint32_t gemm_chunk(const GemmShape& shape, const SkinnyGemmArgs& args, uint32_t lds_limit,
                           const DeviceInfo& device) {
  const uint32_t iterations = GemmWork(shape, args).iterations;
  const uint32_t fixed = gemm_lds_bytes(shape, args, 0, device);
  const uint32_t one = gemm_lds_bytes(shape, args, 1, device) - fixed;
  if (fixed + one > lds_limit) return 0;
  if (one == 0) return iterations;
  const uint32_t most = (lds_limit - fixed) / one;
  if (most >= iterations) return iterations;
  return most > kGemmStreamDepth ? most / kGemmStreamDepth * kGemmStreamDepth : most;
}

// Two workgroups share a compute unit that has neither a ring nor resident activations.
inline uint32_t gemm_lds_limit(const GemmShape& shape, const DeviceInfo& device) {
  if (device.max_cluster > 1) return device.lds_per_group - kStaticLds;
  return shape.form == GemmForm::kRing ? device.lds_per_group : device.lds_per_group / 2;
}

// Microseconds of the group form, whose workgroups are persistent and have a multiprocessor each. The
// terms are fitted to 951 launches of 37 problems of FP8 and bf16 with 1 to 32 rows on an H200
// (2026-11-29), 6 % off in the mean.
inline double gemm_cluster_cost(const GemmShape& shape, const SkinnyGemmArgs& args,
                                const DeviceInfo& device) {
  const GemmWork work(shape, args);
  const uint32_t limit = gemm_clusters(shape.splits, device);
  const double rounds = work.rounds(limit);
  const double busy =
      double{1} * work.teams(work.rounds(limit)) * shape.splits / device.cu_count;
  const double weights = rounds * work.group_bytes();
  const double activations = rounds * args.m * work.padded_stages * kGemmStageBytes;
  // Bytes per microsecond: memory's, shared out (idle multiprocessors leave a part of theirs to the
  // others), and what a multiprocessor takes in. A stage of a team takes its time, however small.
  const double share = 37200.0 * 132 / device.cu_count * std::min(1.1, 1 / busy);
  const double pace = rounds * work.iterations * kGemmStagePace;
  const double stream =
      std::max({weights / share, (weights + activations) / 61500, pace});
  const double results = double{1} * work.rows * args.m / 4096;
  const double reduce = 0.42 + 0.26 * results * shape.k_waves;
  const double hand_over =
      shape.splits == 1 ? 0 : 1.0 + 0.04 * shape.splits + 0.59 * results;
  const double ring = 1.0 * shape.depth * shape.k_waves * work.rows * kGemmStageBytes / 65536;
  return stream + 1.8 + rounds * (reduce + hand_over) + 0.48 / ring;
}

// Microseconds on a device without clusters, not measured: two workgroups share a compute unit, the
// loads run dry wherever the activations in LDS change, and a second kernel sums the parts.
inline double gemm_workspace_cost(const GemmShape& shape, const SkinnyGemmArgs& args,
                                  const DeviceInfo& device) {
  const GemmWork work(shape, args);
  const uint32_t places = 2 * device.cu_count;
  const uint32_t teams = std::max(1u, std::min(work.groups, places / shape.splits));
  const double rounds = gemm_divide_up(work.groups, teams);
  const double busy = static_cast<double>(teams) * shape.splits / places;
  const double share = 4.3e6 / places;
  const double stream = rounds * work.group_bytes() / (share * std::min(1.3, 1 / busy));
  const double fill = 0.3 + 1.0 * args.m * work.split_stages * kGemmStageBytes / 65536;
  const double reduce =
      0.25 + 0.5e-3 * work.rows * args.m * (1 + 0.15 * shape.k_waves) / shape.waves;
  uint64_t n = 0;
  for (uint32_t i = 0; i < kGemmMaxSets; ++i) n += gemm_set(args, i).n;
  const double split = shape.splits > 1 ? 2.5 + 8e-6 * args.m * n * shape.splits : 0;
  const uint32_t chunk = gemm_chunk(shape, args, gemm_lds_limit(shape, device), device);
  const double drain = 0.3 * rounds * (gemm_divide_up(work.iterations, std::max(chunk, 1u)) - 1) *
                       (chunk < kGemmStreamDepth ? 2 : 1);
  return stream + fill + reduce * rounds + split + drain;
}

}  // namespace mi300
