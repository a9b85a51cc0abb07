// Which kernel runs a skinny GEMM and how it is launched: a pure function of problem and device.
//
// `mi300_inductor/gemm_plan.py` calls it too, so tests see what the operator launches. A plan is the
// cheapest of all legal shapes by a small cost model; no launches mean the vendor's library.
#pragma once

#include <bit>
#include <cstdio>
#include <utility>

#include "gemm_cost.h"
#include "row_problem.h"

namespace mi300 {

inline uint32_t gemm_max_waves(const GemmShape& shape, const DeviceInfo& device) {
  const bool is_large = device.wave_size == 64 || shape.columns > 32;
  return (is_large ? 256 : 512) / device.wave_size;
}

// The group form's barriers and the ring's slots are numbered.
inline bool is_gemm_depth(const GemmShape& shape, const DeviceInfo& device) {
  if (shape.form == GemmForm::kRing) return shape.depth == kGemmRingSlots;
  if (!device.has_async_copy || shape.form == GemmForm::kUnaligned) return shape.depth == 0;
  if (shape.form == GemmForm::kGroup && shape.k_waves > 4) return false;
  return shape.depth >= kGemmMinDepth && shape.depth <= kGemmMaxDepth;
}

inline bool is_gemm_legal(const GemmShape& shape, const SkinnyGemmArgs& args,
                          const DeviceInfo& device) {
  const uint32_t stages = gemm_divide_up(args.row_bytes, kGemmStageBytes);
  if (args.m > shape.columns || shape.waves > gemm_max_waves(shape, device)) return false;
  if (shape.waves % shape.k_waves != 0 || !std::has_single_bit(shape.k_waves)) return false;
  if (shape.form == GemmForm::kGroup && shape.waves / shape.k_waves % 4 != 0) return false;
  if (shape.form == GemmForm::kRing && shape.waves != 4) return false;
  if (!is_gemm_depth(shape, device)) return false;
  if (device.max_cluster > 1 && shape.splits > static_cast<uint32_t>(device.max_cluster)) {
    return false;
  }
  const GemmWork work(shape, args);
  if (work.rows == 0 || uint64_t{work.split_stages} * (shape.splits - 1) >= stages) return false;
  const uint32_t chunk = gemm_chunk(shape, args, gemm_lds_limit(shape, device), device);
  // With a ring of copies the activations stay in LDS; without one they may come in pieces.
  const bool is_whole = device.has_async_copy && shape.form != GemmForm::kUnaligned;
  return is_whole ? chunk == work.iterations : chunk > 0;
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
  const GemmWork work(shape, args);
  args.rows = work.rows;
  args.tile_rows = shape.tile_rows;
  args.splits = shape.splits;
  args.split_stages = work.split_stages;
  args.quads_inverse = gemm_divide_up(uint64_t{1} << 32, work.rows / 4);
  args.share = gemm_share(work.rows, args.m, shape.splits);
  args.share_inverse = gemm_divide_up(uint64_t{1} << 32, args.share);
  args.waves = shape.waves;
  args.k_waves = shape.k_waves;
  args.k_shift = static_cast<unsigned>(std::countr_zero(shape.k_waves));
  args.depth = shape.depth;
  args.chunk = gemm_chunk(shape, args, gemm_lds_limit(shape, device), device);
  launch.lds_bytes = gemm_lds_bytes(shape, args, args.chunk, device);
  const bool is_persistent = device.max_cluster > 1;
  // The launcher raises a kernel's limit once, when its first launch needs more than 48 KiB.
  if (is_persistent) launch.lds_bytes = std::max(launch.lds_bytes, kGemmLdsAlwaysRaised);
  const uint32_t rounds =
      is_persistent ? work.rounds(gemm_clusters(shape.splits, device)) : 1;
  uint32_t first_team = 0;
  for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
    GemmSet& set = gemm_set(args, i);
    set.row_groups = work.set_groups[i];
    set.teams = gemm_divide_up(set.row_groups, rounds);
    set.first_team = set.n == 0 ? kNoTeam : first_team;
    first_team += set.teams;
  }
  launch.grid = first_team * shape.splits;
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
    case GemmForm::kDense: return is_aligned && device.wave_size == 64;
    case GemmForm::kSparse: return is_aligned && is_fp8 && device.wave_size == 64;
    // The ring is kept for comparison: it is taken when it is asked for.
    case GemmForm::kRing:
      return is_aligned && is_fp8 && device.wave_size == 64 && problem.form == form;
    case GemmForm::kGroup: return is_aligned && device.wave_size == 32;
    case GemmForm::kUnaligned: return !is_aligned || problem.form == GemmForm::kUnaligned;
    default: return false;
  }
}

// Limit of m of the form's entry for so many rows; below m if there is none.
inline uint32_t gemm_columns(GemmForm form, uint32_t m) {
  const uint32_t columns = m > 32 ? 64 : m > 16 ? 32 : m > 8 ? 16 : 8;
  switch (form) {
    case GemmForm::kSparse: return 8;
    case GemmForm::kRing: return std::min(columns, 16u);
    case GemmForm::kUnaligned: return 64;
    case GemmForm::kDense: return std::max(columns, 16u);
    default: return columns;
  }
}

// Whether a scale differs from row to row or from column to column.
inline bool has_gemm_vectors(const SkinnyGemmArgs& args) {
  return args.scale_a_step != 0 || args.scale_b_step != 0;
}

// Whether the kernels quantise so; brings the clamp inside the format's range, which changes nothing.
inline bool settle_gemm_quant(GemmQuant& quant, Dtype q_dtype, const DeviceInfo& device) {
  const float limit = fp8_max(q_dtype);
  const bool saturates = (device.cast_saturates >> static_cast<int>(q_dtype)) & 1;
  const bool is_inside = quant.clamp_min >= -limit && quant.clamp_max <= limit;
  if (static_cast<int>(q_dtype) != device.native_fp8 || !(saturates || is_inside)) return false;
  quant.clamp_min = std::clamp(quant.clamp_min, -limit, limit);
  quant.clamp_max = std::clamp(quant.clamp_max, -limit, limit);
  return true;
}

// Whether the library would need another kernel behind it.
inline bool has_gemm_epilogue(const SkinnyGemmArgs& args) {
  return args.addend != nullptr || args.quant.scale != nullptr;
}

constexpr GemmShape kVendorShape{GemmForm::kVendor, 0, 0, 0, 0, 0, 0, 0};

// Calls `visit` with every legal shape of a form; the deepest first of those that differ by depth.
template <class Visit>
void visit_gemm_form(GemmForm form, const GemmProblem& problem, const DeviceInfo& device,
                     const Visit& visit) {
  const auto visit_cuts = [&](GemmShape shape) {
    for (uint32_t splits : {1u, 2u, 3u, 4u, 6u, 8u, 12u, 16u}) {
      shape.splits = splits;
      for (shape.depth = kGemmMaxDepth;; --shape.depth) {
        if (is_gemm_legal(shape, problem.args, device)) visit(std::as_const(shape));
        if (shape.depth == 0) break;
      }
    }
  };
  const uint32_t columns = gemm_columns(form, problem.args.m);
  const bool is_group = form == GemmForm::kGroup;
  const uint32_t most = is_group ? kGemmGroupRows : kGemmTileRows;
  for (uint32_t tile_rows = is_group ? most - 8 : most; tile_rows <= most; tile_rows += 8) {
    for (uint32_t waves : {4u, 8u, 12u, 16u}) {
      // A multiprocessor of its own is worth a workgroup of the most waves.
      if (is_group && waves < (columns > 32 ? 8u : 16u)) continue;
      for (uint32_t k_waves : {1u, 2u, 4u, 8u, 16u}) {
        // Teams of more than eight waves were slower wherever they were tried.
        if (is_group && waves / k_waves > 8) continue;
        visit_cuts({form, columns, 1, tile_rows, waves, k_waves, 0, 0});
      }
    }
  }
}

// Calls `visit` with every legal shape of the forms that a problem may take.
template <class Visit>
void visit_gemm_shapes(const GemmProblem& problem, const DeviceInfo& device, const Visit& visit) {
  for (GemmForm form : {GemmForm::kSparse, GemmForm::kDense, GemmForm::kRing, GemmForm::kGroup,
                        GemmForm::kUnaligned}) {
    if (is_gemm_form(problem, form, device)) visit_gemm_form(form, problem, device, visit);
  }
}

// Whether the vendor's library is likely to be faster on a device with clusters, but for rare shapes
// with 8 rows or more: by its time and the own one as measured on an H200 (2026-11-30). It has no launch for
// several products, an addend or a quantisation costs it another kernel, and scales per row or column
// up to twice its time. Own kernels for more than 32 rows take 1.4 to 1.9 times what the model says.
inline bool is_vendor_faster(const GemmProblem& problem, const DeviceInfo& device, double cost) {
  const SkinnyGemmArgs& args = problem.args;
  if (device.max_cluster == 1 || !is_gemm_aligned(args)) return false;
  if (has_gemm_vectors(args)) return false;
  if (args.m <= 32 && (has_gemm_epilogue(args) || args.more[0].n > 0)) return false;
  const bool is_fp8 = static_cast<Dtype>(problem.operand) >= Dtype::kE4m3fn;
  // Too few rows of weights for all multiprocessors, and parts of k that are long all the same.
  const bool is_narrow = args.n <= 256 && args.row_bytes > 16384 && args.m <= 32;
  if (!is_fp8 && is_narrow && (args.m == 1 || args.m > 16)) return true;
  if (args.m < 8) return false;
  double library = has_gemm_epilogue(args) ? 2.0 : 0.0, whole_stream = 0;
  for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
    const uint32_t n = gemm_set(args, i).n;
    if (n == 0) continue;
    const double stream = double{1} * n * args.row_bytes / 4.3e6;
    // It splits long rows over its blocks in a way that takes 2 us more.
    const bool is_long = args.row_bytes >= 8192 && n <= (args.m <= 16 ? 8192u : 3072u);
    library += std::max(5.6, stream + (is_long ? 5.4 : 3.4));
    whole_stream += stream;
  }
  if (args.m > 32) return 1.7 * cost > library;
  if (args.m > 16) {
    return whole_stream > (is_fp8 ? 26 : 60) || (is_fp8 ? 1.02 * cost > library : args.n >= 16384);
  }
  if (is_fp8 && whole_stream > 40 && args.row_bytes > 8192) return true;
  return args.m > 8 && cost > library;
}

// A ring that holds the whole of a short part has all weights come before the first activations, so
// that nothing is multiplied until then. With half of the part in it, 4096 x 4096 of FP8 took an H200
// 6.4 us instead of 7.0 with one row (2026-11-30). Returns by how much the model's time is less.
inline double shorten_gemm_ring(GemmShape& shape, const SkinnyGemmArgs& args) {
  if (shape.form != GemmForm::kGroup || args.m > 32) return 0;
  const uint32_t iterations = GemmWork(shape, args).iterations;
  if (iterations < 4 || iterations > 5) return 0;
  shape.depth = kGemmMinDepth;
  return 0.7;
}

// The cheapest legal shape of the allowed forms; kVendor if there is none.
inline GemmShape choose_gemm_shape(const GemmProblem& problem, const DeviceInfo& device) {
  const auto cost_of = device.max_cluster > 1 ? gemm_cluster_cost : gemm_workspace_cost;
  GemmShape best = kVendorShape;
  double best_cost = 0;
  visit_gemm_shapes(problem, device, [&](const GemmShape& shape) {
    const double cost = cost_of(shape, problem.args, device);
    // The first of equals wins: the sparse form has half the dense one's matrix cycles.
    if (best.form != GemmForm::kVendor && cost >= best_cost) return;
    best = shape;
    best_cost = cost;
  });
  if (best.form != GemmForm::kVendor) best_cost -= shorten_gemm_ring(best, problem.args);
  const bool is_free = problem.form == GemmForm::kAny;
  return is_free && is_vendor_faster(problem, device, best_cost) ? kVendorShape : best;
}

// The launches of a problem cut in one way; none with kVendor.
inline GemmPlan make_gemm_plan(const GemmShape& shape, const GemmProblem& problem,
                               const DeviceInfo& device) {
  GemmPlan plan{};
  plan.shape = shape;
  if (shape.form == GemmForm::kVendor) return plan;
  plan.launches[0] = make_gemm_launch(shape, problem, device);
  plan.launch_count = 1;
  if (shape.splits > 1 && device.max_cluster == 1) {
    uint64_t results = 0, quads = 0;
    for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
      const uint32_t n = gemm_set(problem.args, i).n;
      results += uint64_t{problem.args.m} * n;
      quads += uint64_t{problem.args.m} * gemm_divide_up(n, 4);
    }
    plan.workspace_bytes = results * shape.splits * sizeof(float);
    GemmLaunch& sum = plan.launches[plan.launch_count++];
    sum = plan.launches[0];
    std::snprintf(sum.module, sizeof(sum.module), "skinny_gemm_sum");
    std::snprintf(sum.entry, sizeof(sum.entry), "skinny_gemm_sum");
    sum.grid = gemm_divide_up(quads, 256);
    sum.block = 256;
    sum.lds_bytes = 0;
  }
  return plan;
}

// Whether any kernel takes a problem's operands and number of rows.
inline bool has_gemm_kernel(const GemmProblem& problem, const DeviceInfo& device) {
  const Dtype operand = static_cast<Dtype>(problem.operand);
  const bool is_native = operand == Dtype::kBf16 || operand == Dtype::kF16 ||
                         problem.operand == device.native_fp8;
  return is_native && problem.args.m <= kGemmMaxRows && problem.form != GemmForm::kVendor;
}

// Plans a problem with m, n and k above 0.
inline GemmPlan plan_gemm(const GemmProblem& problem, const DeviceInfo& device) {
  if (!has_gemm_kernel(problem, device)) return make_gemm_plan(kVendorShape, problem, device);
  return make_gemm_plan(choose_gemm_shape(problem, device), problem, device);
}

}  // namespace mi300
