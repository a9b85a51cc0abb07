// Which kernel runs a skinny GEMM and how it is launched: a pure function of problem and device.
//
// `mi300_inductor/gemm_plan.py` calls it too, so tests see what the operator launches. A plan is the
// cheapest of all legal shapes by a small cost model; no launches mean the vendor's library.
#pragma once

#include <cstdio>

#include "gemm_cost.h"

namespace mi300 {

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
  // Measured on an H200: 1 us less where a multiprocessor streams long, 0.6 us more where it does not.
  const uint64_t bytes = uint64_t{args.n} * args.row_bytes;
  args.is_prefetched = is_persistent && bytes / device.cu_count >= 400 * 1024;
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

// Whether a scale differs from row to row or from column to column.
inline bool has_gemm_vectors(const SkinnyGemmArgs& args) {
  return args.scale_a_step != 0 || args.scale_b_step != 0;
}

// Where the vendor's library was faster on an H200 (2026-11-29): more than 16 rows, and from 9 rows
// on all but FP8 with few long rows. With scales per row or column it took up to twice its time for one
// scale; an addend costs it another kernel.
inline bool is_vendor_faster(const GemmProblem& problem, const DeviceInfo& device) {
  const SkinnyGemmArgs& args = problem.args;
  if (device.max_cluster == 1 || args.m <= 8 || !is_gemm_aligned(args)) return false;
  if (has_gemm_vectors(args) || (args.addend != nullptr && args.m <= 16)) return false;
  const bool is_fp8 = static_cast<Dtype>(problem.operand) >= Dtype::kE4m3fn;
  return args.m > 16 || !is_fp8 || args.row_bytes < 8192 || args.n > 8192;
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
