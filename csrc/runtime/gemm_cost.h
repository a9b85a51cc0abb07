// How a skinny GEMM may be cut, what LDS that takes and how long it is expected to take.
#pragma once

#include <mi300/row_args.h>
#include <mi300/skinny_gemm_args.h>

#include <algorithm>

#include "launcher.h"

namespace mi300 {

enum class GemmForm : int32_t { kAny, kDense, kSparse, kRing, kGroup, kUnaligned, kVendor };

// Of `args` everything that the caller knows is set; the launch geometry is still to do.
struct GemmProblem {
  SkinnyGemmArgs args;
  int32_t operand;  // Dtype of both operands
  GemmForm form;    // kAny lets the plan choose
};

// How the work is cut; see skinny_gemm_args.h.
struct GemmShape {
  GemmForm form;
  uint32_t columns;  // limit of m of the entry
  uint32_t tiles;    // row tiles of a wave
  uint32_t waves;
  uint32_t k_waves;
  uint32_t splits;
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
  uint64_t workspace_bytes;  // for `partial` of all launches
  uint32_t launch_count;
  GemmLaunch launches[2];
};

constexpr uint32_t kGemmMaxRows = 64;
constexpr uint32_t kGemmTileRows = 16;
constexpr uint32_t kGemmStageBytes = 128;
constexpr uint32_t kGemmDepth = 4;  // kStreamDepth of skinny_gemm.h; kRingSlots of weight_ring.h
constexpr uint32_t kGemmDenseRingDepth = 3;  // kDenseRingDepth of skinny_gemm.h

constexpr uint32_t kGemmLdsAlwaysRaised = 48 * 1024 + 16;

inline uint32_t gemm_divide_up(uint64_t a, uint64_t b) {
  return static_cast<uint32_t>((a + b - 1) / b);
}

inline bool is_gemm_aligned(const SkinnyGemmArgs& args) {
  const auto is_multiple = [](uint64_t value) { return value % 16 == 0; };
  return is_multiple(reinterpret_cast<uintptr_t>(args.weight)) &&
         is_multiple(reinterpret_cast<uintptr_t>(args.activation)) && is_multiple(args.row_bytes) &&
         is_multiple(args.weight_stride) && is_multiple(args.activation_stride);
}

// Quads of results that each part of k finishes; at least 2, so that its inverse fits.
inline uint32_t gemm_share(uint32_t rows, uint32_t m, uint32_t splits) {
  return std::max(2u, gemm_divide_up(uint64_t{rows} / 4 * m, splits));
}

// Bytes of LDS of a workgroup: ring of weights, activations, the waves' sums, the parts received.
inline uint32_t gemm_lds_bytes(const GemmShape& shape, uint32_t m, uint32_t split_stages,
                               uint32_t chunk, const DeviceInfo& device) {
  const bool is_ring = shape.form == GemmForm::kRing;
  const bool has_ring = is_ring || (device.has_async_copy && shape.form != GemmForm::kUnaligned);
  const uint32_t rows = shape.waves / shape.k_waves * shape.tiles * kGemmTileRows;
  const uint32_t held = shape.form == GemmForm::kGroup ? shape.columns : m;
  const uint32_t stage = shape.tiles * kGemmTileRows * kGemmStageBytes;
  const uint32_t depth = shape.form == GemmForm::kDense ? kGemmDenseRingDepth : kGemmDepth;
  uint32_t bytes = has_ring ? shape.waves * (depth * stage + (is_ring ? 16 : 0)) : 0;
  bytes += std::min(chunk, gemm_divide_up(split_stages, shape.k_waves)) * shape.k_waves *
           kGemmStageBytes * held;
  bytes += shape.k_waves * m * (rows + 4) * 4;
  if (shape.splits > 1 && device.max_cluster > 1) {
    bytes += 2 * shape.splits * gemm_share(rows, m, shape.splits) * 16;
  }
  return bytes;
}

// Iterations whose activations fit in LDS at a time; 0 if not even one fits.
inline uint32_t gemm_chunk(const GemmShape& shape, uint32_t m, uint32_t split_stages,
                           uint32_t lds_limit, const DeviceInfo& device) {
  const uint32_t iterations = gemm_divide_up(split_stages, shape.k_waves);
  const uint32_t fixed = gemm_lds_bytes(shape, m, split_stages, 0, device);
  const uint32_t one = gemm_lds_bytes(shape, m, split_stages, 1, device) - fixed;
  if (fixed + one > lds_limit) return 0;
  const uint32_t most = (lds_limit - fixed) / one;
  if (most >= iterations) return iterations;
  return most > kGemmDepth ? most / kGemmDepth * kGemmDepth : most;
}

// Two workgroups share a compute unit that has neither a ring nor resident activations.
inline uint32_t gemm_lds_limit(const GemmShape& shape, const DeviceInfo& device) {
  const bool is_whole = device.max_cluster > 1 || shape.form == GemmForm::kRing;
  return is_whole ? device.lds_per_group : device.lds_per_group / 2;
}

// What a shape makes of a problem, for the cost models.
struct GemmWork {
  uint32_t rows;    // weight rows of a workgroup
  uint32_t groups;  // row groups
  uint32_t split_stages;
  uint32_t padded_stages;  // with those that some waves have too many

  GemmWork(const GemmShape& shape, const SkinnyGemmArgs& args)
      : rows(shape.waves / shape.k_waves * shape.tiles * kGemmTileRows),
        groups(gemm_divide_up(args.n, rows)),
        split_stages(gemm_divide_up(gemm_divide_up(args.row_bytes, kGemmStageBytes), shape.splits)),
        padded_stages(gemm_divide_up(split_stages, shape.k_waves) * shape.k_waves) {}

  double group_bytes() const { return double{1} * rows * padded_stages * kGemmStageBytes; }
};

// Clusters of so many workgroups that an H200 runs at a time (measured; a cluster stays within one
// group of processors), scaled to another count of multiprocessors.
inline uint32_t gemm_clusters(uint32_t splits, const DeviceInfo& device) {
  constexpr uint32_t kMeasured[] = {0, 132, 66, 39, 30, 24, 17, 16, 15};
  return std::max(1u, kMeasured[std::min(splits, 8u)] * device.cu_count / 132);
}

// Microseconds on a device with clusters: persistent workgroups, activations resident. The terms are
// fitted to 346 launches of 24 FP8 problems with up to 16 rows on an H200 (2026-11-29); the shapes it
// chooses are 2 % slower than the fastest of those in the mean.
inline double gemm_cluster_cost(const GemmShape& shape, const SkinnyGemmArgs& args,
                                const DeviceInfo& device) {
  const GemmWork work(shape, args);
  const uint32_t teams = std::min(work.groups, gemm_clusters(shape.splits, device));
  const double rounds = gemm_divide_up(work.groups, teams);
  const double busy = static_cast<double>(teams) * shape.splits / device.cu_count;
  // Bytes per microsecond of a multiprocessor; idle ones leave a part of theirs to the others.
  const double share = 36400.0 * 132 / device.cu_count * (busy < 0.955 ? 0.966 : 1);
  const double stream = rounds * work.group_bytes() / (share * std::min(1.12, 1 / busy));
  const double step = shape.form == GemmForm::kGroup ? 0.0067 : 0.0189;
  const double multiply =
      step * rounds * work.padded_stages / shape.k_waves * 16 / shape.waves;
  const double fill = 2.9 + 0.72 * args.m * work.split_stages * kGemmStageBytes / 65536;
  const double results = double{1} * work.rows * args.m;
  const double reduce = 0.37 + 0.25e-3 * results * (4.5 + 0.73 * shape.k_waves) / shape.waves;
  const double hand_over = shape.splits == 1 ? 0
                           : 0.14 + 0.194 * (shape.splits - 1) * (1 + 0.479 * results / 2048) +
                                 rounds * (0.2 + 0.025 * shape.splits);
  return std::max(stream, multiply) + fill + reduce * rounds + hand_over;
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
  const double split =
      shape.splits > 1 ? 2.5 + 8e-6 * args.m * args.n * shape.splits : 0;
  const uint32_t chunk = gemm_chunk(shape, args.m, work.split_stages,
                                    gemm_lds_limit(shape, device), device);
  const uint32_t iterations = work.padded_stages / shape.k_waves;
  const double drain = 0.3 * rounds * (gemm_divide_up(iterations, std::max(chunk, 1u)) - 1) *
                       (chunk < kGemmDepth ? 2 : 1);
  return stream + fill + reduce * rounds + split + drain;
}

}  // namespace mi300
