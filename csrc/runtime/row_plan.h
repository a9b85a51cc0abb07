// Which kernel runs a norm or SiLU problem, and how it is launched: a pure function of the problem
// and the device. `mi300_inductor/plan.py` calls it too, so tests see what the operators launch.
#pragma once

#include "row_plan_usual.h"

namespace mi300 {

// Few rows: one row over eight workgroups where there are clusters. Measured on an H200: from hidden
// 8192 up this wins up to two workgroups a multiprocessor, at 16384 up to four, with two vectors a lane
// once a multiprocessor has more than one; below 8192 one workgroup is as fast. Rows too long for one
// workgroup take the fewest that hold them.
inline RowSpread choose_spread(const RowArgs& args, uint32_t most, const DeviceInfo& device) {
  const uint32_t row_vectors = divide_up(args.hidden, kVectorElements);
  const uint64_t workgroups = 8 * static_cast<uint64_t>(args.rows);
  const bool is_long = row_vectors >= 2048;
  const uint64_t places = (is_long ? 4ull : 2ull) * device.cu_count;
  if (device.max_cluster >= 8 && row_vectors >= 1024 && workgroups <= places) {
    const bool is_crowded = is_long && workgroups > static_cast<uint64_t>(device.cu_count);
    const RowSpread spread = spread_row(row_vectors, 8, is_crowded ? 2 : 1, most, device);
    if (spread.vectors != 0) return spread;
  }
  for (uint32_t cluster = 1; cluster <= static_cast<uint32_t>(device.max_cluster); cluster *= 2) {
    const RowSpread spread = spread_row(row_vectors, cluster, 1, most, device);
    if (spread.vectors != 0) return spread;
  }
  return {};
}

// Many long rows with asynchronous copies: as many workgroups as fit, each with a ring of three rows.
// Measured on an H200 at 2048 rows: up to hidden 8192 several workgroups share a multiprocessor anyway
// and are faster (17.8 against 21.9 us at 4096); at 16384 the ring wins with dynamic scales (65 us) and
// loses with static ones (75 against 67 us).
inline bool plan_ring(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  const RowSpread spread = spread_row(row_vectors, 1, 2, 2, device);
  const bool has_dynamic_scale = args.quant == Quant::kPerToken || args.quant == Quant::kPerGroup;
  if (!device.has_async_copy || spread.vectors == 0) return false;
  if (row_vectors <= 1024 || !has_dynamic_scale) return false;
  const uint32_t inputs = args.second != nullptr ? 2 : 1;
  const uint32_t lds_bytes = 3 * inputs * spread.vectors * spread.threads * 16;
  // Each workgroup also has about 5 KiB for parts, quantisers and the driver's own use.
  const uint32_t per_cu = std::min<uint32_t>(device.threads_per_cu / spread.threads,
                                             device.lds_per_cu / (lds_bytes + 5 * 1024));
  const uint64_t teams = uint64_t{per_cu} * device.cu_count;
  if (per_cu == 0 || static_cast<uint64_t>(args.rows) < 2 * teams) return false;
  launch = make_launch(args, teams, spread, device);
  launch.lds_bytes = lds_bytes;
  set_module(launch, "rms_norm_async");
  set_name(launch.entry, "rms_norm_%s_async_%s", dtype_name(args.first_dtype),
           quant_name(args.quant));
  return true;
}

inline bool plan_norm(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  if (is_usual(args, true, device) && plan_usual_norm(args, device, launch)) return true;
  if (plan_ring(args, device, launch)) return true;
  RowSpread spread = choose_spread(args, 4, device);
  if (spread.vectors == 0) return false;
  // More vectors a lane, hence smaller workgroups of which several share a CU, from about one row a
  // CU up. H200: 8192 x 64 3.9 us against 4.3, 16384 x 2048 67 us against 69.
  const uint32_t row_vectors = args.hidden / kVectorElements;
  const bool is_many = args.rows >= 4ll * device.cu_count;
  uint32_t denser = spread.vectors;
  if (is_many && row_vectors >= 2u * device.wave_size) denser = 2;
  if (device.has_async_copy && args.rows > 32 && spread.threads > 512) denser = 2;
  if (device.has_async_copy && is_many && row_vectors > 1024) denser = 4;
  if (spread.cluster == 1 && denser > spread.vectors) {
    const RowSpread wider = spread_row(row_vectors, 1, denser, denser, device);
    if (wider.vectors != 0) spread = wider;
  }
  uint64_t teams = std::min<uint64_t>(args.rows, 1u << 30);
  if (!device.has_async_copy) {
    // 64 VGPRs allow 8 waves a SIMD with up to two vectors, 128 allow 4.
    const uint32_t resident = spread.vectors <= 2 ? device.threads_per_cu : device.threads_per_cu / 2;
    teams = std::min<uint64_t>(teams, uint64_t{resident / spread.threads} * device.cu_count);
  }
  launch = make_launch(args, teams, spread, device);
  set_module(launch, "rms_norm_%s", dtype_name(args.first_dtype));
  set_name(launch.entry, "rms_norm_%s_v%u_%s", dtype_name(args.first_dtype), spread.vectors,
           quant_name(args.quant));
  return true;
}

inline bool plan_silu(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const char* type = dtype_name(args.first_dtype);
  set_module(launch, "silu_mul_%s", type);
  if (args.quant == Quant::kPerToken) {
    if (is_usual(args, false, device) && plan_usual_silu(args, device, launch)) return true;
    RowSpread spread = choose_spread(args, 8, device);
    // Many rows: smaller workgroups, so that several share a CU and one loads while another reduces.
    while (args.rows >= 4ll * device.cu_count && spread.cluster == 1 && spread.threads > 512) {
      const RowSpread denser =
          spread_row(args.hidden / kVectorElements, 1, 2 * spread.vectors, 8, device);
      if (denser.vectors == 0) break;
      spread = denser;
    }
    if (spread.vectors == 0 || args.rows * spread.cluster > 0x7fffffffll) return false;
    launch = make_launch(args, args.rows, spread, device);
    set_module(launch, "silu_mul_%s", type);
    set_name(launch.entry, "silu_mul_%s_v%u_per_token", type, spread.vectors);
    return true;
  }
  const uint32_t row_vectors = args.hidden / kVectorElements;
  const uint64_t lanes = static_cast<uint64_t>(args.rows) * row_vectors;
  const uint64_t resident = uint64_t(device.cu_count) * device.threads_per_cu;
  const uint32_t vectors = lanes >= 4 * resident ? 2 : 1;
  const bool is_short = vectors == 1 || args.quant == Quant::kPerGroup;
  if (is_short && is_usual(args, false, device) && plan_usual_silu(args, device, launch)) {
    return true;
  }
  // H200, two vectors a lane: 224 threads rather than 256 (53248 x 2048: 132 us instead of 137).
  const uint32_t most = vectors == 2 && device.wave_size == 32 ? 224 : 256;
  const uint32_t pieces = divide_up(row_vectors, vectors);
  const uint32_t threads = flat_threads(pieces, 128, most, device);
  if (!set_flat(launch, args, threads, divide_up(pieces, threads), device)) return false;
  set_module(launch, "silu_mul_%s", type);
  set_name(launch.entry, "silu_mul_%s_v%u_%s", type, vectors,
           args.quant == Quant::kPerGroup ? "per_group" : "static");
  return true;
}

// The kernels that take anything: 256 threads a row, rows in turns.
inline RowLaunch plan_any(const RowArgs& args, const char* entry, const DeviceInfo& device) {
  const uint64_t resident = 8ull * device.cu_count;
  RowLaunch launch = make_launch(args, std::min<uint64_t>(args.rows, resident), {1, 256, 0}, device);
  set_module(launch, "rows_any");
  set_name(launch.entry, "%s", entry);
  return launch;
}

// Plans a problem; returns the number of launches, to be made in order on one stream.
inline int plan_rows(const RowProblem& problem, const DeviceInfo& device, RowLaunch* launches) {
  RowProblem settled = problem;
  RowArgs& args = settled.args;
  settle_overflow(args, device);
  settle_paths(args, device);
  args.inverse_hidden = 1.0f / static_cast<float>(args.hidden);
  int count = 0;
  if (args.rows > 0 && args.hidden > 0) {
    RowLaunch& launch = launches[count++];
    const bool is_vector = is_vector_problem(settled) &&
                           (problem.is_per_tensor || is_vector_quant(args, device));
    const bool is_planned = is_vector && (problem.is_norm ? plan_norm(args, device, launch)
                                                          : plan_silu(args, device, launch));
    if (!is_planned) {
      launch = plan_any(args, problem.is_norm ? "rms_norm_any" : "silu_mul_any", device);
    }
  }
  if (problem.is_per_tensor) {
    launches[count] = plan_any(args, "tensor_scale", device);
    launches[count].grid = launches[count].args.workgroups = 1;
    launches[count].block = launches[count].args.threads = 1024;
    ++count;
    if (count == 2) {
      RowLaunch& launch = launches[count++];
      launch = plan_any(args, "tensor_quantize", device);
      const uint64_t needed = (static_cast<uint64_t>(args.rows) * args.hidden + 255) / 256;
      launch.grid = static_cast<uint32_t>(std::min<uint64_t>(needed, 8ull * device.cu_count));
      launch.args.workgroups = launch.grid;
    }
  }
  return count;
}

}  // namespace mi300
