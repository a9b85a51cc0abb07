// Plans of the usual launches: rms_norm_usual.h and silu_mul_usual.h, sm_90.
#pragma once

#include "row_launch.h"

namespace mi300 {

// Workgroups on a row of the usual norm, measured on an H200 (2026-11-29): up to one row a CU as many
// as give every CU one, eight at most, of two waves at least; long rows one for 512 vectors.
inline uint32_t usual_cluster(const RowArgs& args, const DeviceInfo& device) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  if (args.rows > device.cu_count) return 1;
  const auto by_rows = std::bit_floor(static_cast<uint32_t>(device.cu_count / args.rows));
  const uint32_t fewest = std::max(2u, std::bit_floor(row_vectors / 512));
  const uint32_t most = std::bit_floor(std::max(1u, row_vectors / (2 * device.wave_size)));
  return std::min({std::max(by_rows, fewest), most, static_cast<uint32_t>(device.max_cluster)});
}

// The usual norm: a second vector a lane from 256 lanes up, a workgroup of at most 512.
inline RowSpread usual_spread(const RowArgs& args, const DeviceInfo& device) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  for (uint32_t cluster = usual_cluster(args, device);
       cluster <= static_cast<uint32_t>(device.max_cluster); cluster *= 2) {
    const uint32_t share = divide_up(row_vectors, cluster);
    const bool is_wide = share >= 256 && (cluster == 1 || row_vectors >= 1024);
    RowSpread spread = spread_row(row_vectors, cluster, is_wide ? 2 : 1, 4, device);
    if (spread.threads > 512) spread = spread_row(row_vectors, cluster, 2 * spread.vectors, 4, device);
    if (spread.vectors != 0) return spread;
  }
  return {};
}

inline bool plan_usual_norm(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const RowSpread spread = usual_spread(args, device);
  if (spread.vectors == 0 || args.rows > 0x7fffffff / device.max_cluster) return false;
  launch = make_launch(args, static_cast<uint64_t>(args.rows), spread, device);
  set_module(launch, "rms_norm_usual");
  set_name(launch.entry, "rms_norm_%s_usual_v%u_%s", dtype_name(args.first_dtype), spread.vectors,
           quant_name(args.quant));
  return true;
}

// The usual SiLU, measured on an H200 (2026-11-29): two words a lane up to a million elements; then
// four; workgroups grow with the work, since a multiprocessor starts few of them a microsecond. Many
// rows go to the vector kernel with two vectors a lane.
inline bool plan_usual_silu(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const long long elements = args.rows * static_cast<long long>(args.hidden);
  const bool is_small = elements <= 1ll << 20 && args.quant != Quant::kPerGroup;
  const uint32_t words = is_small ? 2 : 4;
  const uint32_t pieces = args.hidden / (2 * words);
  const long long lanes = args.rows * static_cast<long long>(pieces);
  const uint32_t wave = device.wave_size;
  const auto wanted = static_cast<uint32_t>(std::clamp(lanes / device.cu_count, 128ll, 448ll));
  const uint32_t most = round_up(wanted, wave);
  const uint32_t threads = flat_threads(pieces, std::max(128u, most / 4 * 3 / wave * wave), most, device);
  if (!set_flat(launch, args, threads, divide_up(pieces, threads), device)) return false;
  set_module(launch, "silu_mul_usual");
  set_name(launch.entry, "silu_mul_%s_usual_w%u_%s", dtype_name(args.first_dtype), words,
           quant_name(args.quant));
  return true;
}

}  // namespace mi300
