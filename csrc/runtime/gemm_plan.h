// Which kernel runs a skinny GEMM and how it is launched: a pure function of problem and device.
//
// `mi300_inductor/gemm_plan.py` calls it too, so tests see what the operator launches. A plan is the
// cheapest of all legal shapes by a small cost model; no launches mean the vendor's library.
#pragma once

#include <mi300/row_args.h>
#include <mi300/skinny_gemm_args.h>

#include <algorithm>
#include <cstdio>

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

// Whether a shape is one of those that the cost model was fitted to: enough waves to keep a
// multiprocessor's loads and pipes busy.
inline bool is_gemm_modelled(const GemmShape& shape, const DeviceInfo& device) {
  if (device.max_cluster == 1 || shape.form == GemmForm::kUnaligned) return true;
  if (shape.form == GemmForm::kDense) return shape.waves >= 8 && shape.k_waves >= 2;
  return shape.waves >= (shape.columns > 32 ? 8u : 12u) && shape.k_waves * shape.splits >= 2;
}

inline uint32_t gemm_max_waves(const GemmShape& shape, const DeviceInfo& device) {
  const bool is_large = device.wave_size == 64 || shape.tiles > 1 || shape.columns > 32;
  return (is_large ? 256 : 512) / device.wave_size;
}

inline bool is_gemm_legal(const GemmShape& shape, const SkinnyGemmArgs& args,
                          const DeviceInfo& device) {
  const uint32_t stages = gemm_divide_up(args.row_bytes, kGemmStageBytes);
  const uint32_t split_stages = gemm_divide_up(stages, shape.splits);
  if (args.m > shape.columns || shape.waves > gemm_max_waves(shape, device)) return false;
  if (shape.waves % shape.k_waves != 0) return false;
  if (shape.form == GemmForm::kGroup && shape.waves / shape.k_waves % 4 != 0) return false;
  if (shape.form == GemmForm::kRing && shape.waves != 4) return false;
  if (device.max_cluster > 1 && shape.splits > static_cast<uint32_t>(device.max_cluster)) {
    return false;
  }
  if (uint64_t{split_stages} * (shape.splits - 1) >= stages) return false;
  const uint32_t limit = gemm_lds_limit(shape, device);
  const uint32_t chunk = gemm_chunk(shape, args.m, split_stages, limit, device);
  // With a ring of weights the activations stay in LDS; without one they may come in pieces.
  const uint32_t iterations = gemm_divide_up(split_stages, shape.k_waves);
  return device.has_async_copy && shape.form != GemmForm::kUnaligned ? chunk == iterations
                                                                     : chunk > 0;
}

inline const char* gemm_type_name(Dtype operand) {
  return operand == Dtype::kBf16 ? "bf16" : operand == Dtype::kF16 ? "fp16" : "fp8";
}

inline void name_gemm(const GemmShape& shape, Dtype operand, GemmLaunch& launch) {
  const char* type = gemm_type_name(operand);
  const char* form = shape.form == GemmForm::kSparse  ? "sparse_"
                     : shape.form == GemmForm::kRing  ? "ring_"
                     : shape.form == GemmForm::kGroup ? "group_"
                                                      : "";
  std::snprintf(launch.module, sizeof(launch.module), "skinny_gemm_%s%s", form, type);
  if (shape.form == GemmForm::kUnaligned) {
    std::snprintf(launch.entry, sizeof(launch.entry), "skinny_gemm_%s_unaligned", type);
  } else {
    std::snprintf(launch.entry, sizeof(launch.entry), "skinny_gemm_%s%s_m%u_t%u", form, type,
                  shape.columns, shape.tiles);
  }
}

inline GemmLaunch make_gemm_launch(const GemmShape& shape, const GemmProblem& problem,
                                   const DeviceInfo& device) {
  GemmLaunch launch{};
  name_gemm(shape, static_cast<Dtype>(problem.operand), launch);
  SkinnyGemmArgs& args = launch.args;
  args = problem.args;
  const uint32_t rows = shape.waves / shape.k_waves * shape.tiles * kGemmTileRows;
  args.row_groups = gemm_divide_up(args.n, rows);
  args.splits = shape.splits;
  args.split_stages =
      gemm_divide_up(gemm_divide_up(args.row_bytes, kGemmStageBytes), shape.splits);
  args.quads_inverse = gemm_divide_up(uint64_t{1} << 32, rows / 4);
  args.share = gemm_share(rows, args.m, shape.splits);
  args.share_inverse = gemm_divide_up(uint64_t{1} << 32, args.share);
  args.waves = shape.waves;
  args.k_waves = shape.k_waves;
  const uint32_t limit = gemm_lds_limit(shape, device);
  args.chunk = gemm_chunk(shape, args.m, args.split_stages, limit, device);
  launch.lds_bytes = gemm_lds_bytes(shape, args.m, args.split_stages, args.chunk, device);
  const bool is_persistent = device.max_cluster > 1;
  // The launcher raises a kernel's limit once, when its first launch needs more than 48 KiB.
  if (is_persistent) launch.lds_bytes = std::max(launch.lds_bytes, kGemmLdsAlwaysRaised);
  const uint32_t teams = gemm_clusters(shape.splits, device);
  args.groups_in_grid = is_persistent ? std::min(args.row_groups, teams) : args.row_groups;
  launch.grid = args.groups_in_grid * shape.splits;
  const uint32_t roles = shape.form == GemmForm::kRing ? 2 : 1;
  launch.block = shape.waves * roles * device.wave_size;
  launch.cluster = is_persistent ? shape.splits : 1;
  launch.is_dependent = is_persistent;
  return launch;
}

// The forms that a problem may take on a device; kAny in the problem leaves the choice.
inline bool is_gemm_form(const GemmProblem& problem, GemmForm form, const DeviceInfo& device) {
  const bool is_fp8 = static_cast<Dtype>(problem.operand) >= Dtype::kE4m3fn;
  const bool is_aligned = is_gemm_aligned(problem.args);
  if (problem.form != GemmForm::kAny && problem.form != form) return false;
  switch (form) {
    case GemmForm::kDense: return is_aligned;
    case GemmForm::kSparse: return is_aligned && is_fp8 && device.wave_size == 64;
    case GemmForm::kRing: return is_aligned && is_fp8 && device.wave_size == 64;
    case GemmForm::kGroup: return is_aligned && device.wave_size == 32;
    case GemmForm::kUnaligned: return !is_aligned || problem.form == GemmForm::kUnaligned;
    default: return false;
  }
}

// Limit of m of the form's entry for so many rows; below m if there is none.
inline uint32_t gemm_columns(GemmForm form, uint32_t m, const DeviceInfo& device) {
  const uint32_t columns = m > 32 ? 64 : m > 16 ? 32 : m > 8 ? 16 : 8;
  switch (form) {
    case GemmForm::kSparse: return 8;
    case GemmForm::kRing: return std::min(columns, 16u);
    case GemmForm::kUnaligned: return 64;
    // One matrix instruction takes 16 rows with 64 lanes; with 32 the group form takes over from 8.
    case GemmForm::kDense: return device.wave_size == 64 ? std::max(columns, 16u) : 8;
    default: return columns;
  }
}

// Where the vendor's library was faster on an H200 (2026-11-29): more than 16 rows, and from 9 rows
// on all but FP8 with long rows.
inline bool is_vendor_faster(const GemmProblem& problem, const DeviceInfo& device) {
  const SkinnyGemmArgs& args = problem.args;
  if (device.max_cluster == 1 || args.m <= 8 || !is_gemm_aligned(args)) return false;
  const bool is_fp8 = static_cast<Dtype>(problem.operand) >= Dtype::kE4m3fn;
  return args.m > 16 || !is_fp8 || args.row_bytes < 8192;
}

inline uint32_t gemm_max_tiles(GemmForm form, uint32_t columns, const DeviceInfo& device) {
  if (device.wave_size == 64 || form == GemmForm::kUnaligned) return 1;
  return form == GemmForm::kDense || columns == 16 || columns == 32 ? 2 : 1;
}

// The cheapest legal shape of the allowed forms; kVendor if there is none.
inline GemmShape choose_gemm_shape(const GemmProblem& problem, const DeviceInfo& device) {
  GemmShape best{GemmForm::kVendor, 0, 0, 0, 0, 0};
  double best_cost = 0;
  const uint32_t m = problem.args.m;
  // The first of equals wins: the sparse form has half the dense one's matrix cycles.
  for (GemmForm form : {GemmForm::kSparse, GemmForm::kDense, GemmForm::kRing, GemmForm::kGroup,
                        GemmForm::kUnaligned}) {
    if (!is_gemm_form(problem, form, device)) continue;
    // The ring is kept for comparison: it is taken when it is asked for.
    if (form == GemmForm::kRing && problem.form != form) continue;
    const uint32_t columns = gemm_columns(form, m, device);
    if (columns < m || (problem.form == GemmForm::kAny && is_vendor_faster(problem, device))) continue;
    for (uint32_t tiles : {1u, 2u}) {
      if (tiles > gemm_max_tiles(form, columns, device)) continue;
      for (uint32_t waves : {4u, 8u, 12u, 16u}) {
        for (uint32_t k_waves : {1u, 2u, 4u, 8u, 16u}) {
          for (uint32_t splits : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
            const GemmShape shape{form, columns, tiles, waves, k_waves, splits};
            if (!is_gemm_legal(shape, problem.args, device)) continue;
            if (!is_gemm_modelled(shape, device)) continue;
            const double cost = device.max_cluster > 1
                                    ? gemm_cluster_cost(shape, problem.args, device)
                                    : gemm_workspace_cost(shape, problem.args, device);
            if (best.form == GemmForm::kVendor || cost < best_cost) {
              best = shape;
              best_cost = cost;
            }
          }
        }
      }
    }
  }
  return best;
}

// Plans a problem with m, n and k above 0.
inline GemmPlan plan_gemm(const GemmProblem& problem, const DeviceInfo& device) {
  GemmPlan plan{};
  plan.shape.form = GemmForm::kVendor;
  const Dtype operand = static_cast<Dtype>(problem.operand);
  const bool is_native = operand == Dtype::kBf16 || operand == Dtype::kF16 ||
                         static_cast<int32_t>(operand) == device.native_fp8;
  if (!is_native || problem.args.m > kGemmMaxRows || problem.form == GemmForm::kVendor) return plan;
  plan.shape = choose_gemm_shape(problem, device);
  if (plan.shape.form == GemmForm::kVendor) return plan;
  plan.launches[0] = make_gemm_launch(plan.shape, problem, device);
  plan.launch_count = 1;
  if (plan.shape.splits > 1 && device.max_cluster == 1) {
    const uint64_t results = uint64_t{problem.args.m} * problem.args.n;
    plan.workspace_bytes = results * plan.shape.splits * sizeof(float);
    GemmLaunch& sum = plan.launches[plan.launch_count++];
    sum = plan.launches[0];
    std::snprintf(sum.module, sizeof(sum.module), "skinny_gemm_sum");
    std::snprintf(sum.entry, sizeof(sum.entry), "skinny_gemm_sum");
    sum.grid = gemm_divide_up(problem.args.m * gemm_divide_up(problem.args.n, 4), 256);
    sum.block = 256;
    sum.lds_bytes = 0;
  }
  return plan;
}

}  // namespace mi300
