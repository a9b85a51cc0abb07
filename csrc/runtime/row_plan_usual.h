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

// Vectors a lane of the usual norm, at least. Many rows: up to four, in workgroups of which two and
// more share a multiprocessor.
inline uint32_t usual_vectors(uint32_t row_vectors, uint32_t cluster) {
  if (cluster > 1) return row_vectors >= 1024 && row_vectors / cluster >= 256 ? 2 : 1;
  return row_vectors < 256 ? 1 : row_vectors < 1024 ? 2 : 4;
}

// The usual norm, in workgroups of at most 512 lanes, 64 waves a row.
inline RowSpread usual_spread(const RowArgs& args, const DeviceInfo& device) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  for (uint32_t cluster = usual_cluster(args, device);
       cluster <= static_cast<uint32_t>(device.max_cluster); cluster *= 2) {
    for (uint32_t vectors = usual_vectors(row_vectors, cluster); vectors <= 4; vectors *= 2) {
      const uint32_t lanes = divide_up(row_vectors, uint64_t{cluster} * vectors);
      const uint32_t threads = round_up(lanes, device.wave_size);
      if (threads <= std::min(512u, 2048 / cluster)) return {cluster, threads, vectors};
    }
  }
  return {};
}

inline bool plan_usual_norm(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const RowSpread spread = usual_spread(args, device);
  if (spread.vectors == 0 || args.rows > 0x7fffffff / device.max_cluster) return false;
  launch = make_launch(args, static_cast<uint64_t>(args.rows), spread, device);
  const bool is_shared = spread.cluster > 1;
  set_module(launch, is_shared ? "rms_norm_shared" : "rms_norm_usual");
  set_name(launch.entry, "rms_norm_%s_usual_%sv%u_%s", dtype_name(args.first_dtype),
           is_shared ? "shared_" : "", spread.vectors, quant_name(args.quant));
  return true;
}

// The usual SiLU, measured on an H200 (2026-11-30): two words a lane up to an eighth of a million
// elements, then four; workgroups grow with the work, since a multiprocessor starts few of them a
// microsecond, but not beyond seven waves with groups, whose waves wait for themselves. Many rows with
// static scales go to the vector kernel with two vectors a lane.
inline bool plan_flat_silu(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const bool has_groups = args.quant == Quant::kPerGroup;
  const uint32_t wave = device.wave_size;
  const long long elements = args.rows * static_cast<long long>(args.hidden);
  const bool is_small = elements <= 1ll << 17 && (!has_groups || args.group <= 4 * wave);
  const uint32_t words = is_small ? 2 : 4;
  const uint32_t pieces = args.hidden / (2 * words);
  const long long lanes = args.rows * static_cast<long long>(pieces);
  const long long limit = !has_groups ? 448 : is_small ? 128 : 224;
  const auto wanted = static_cast<uint32_t>(std::clamp(lanes / device.cu_count, 128ll, limit));
  const uint32_t most = round_up(wanted, wave);
  const uint32_t threads = flat_threads(pieces, std::max(128u, most / 4 * 3 / wave * wave), most, device);
  if (!set_flat(launch, args, threads, divide_up(pieces, threads), device)) return false;
  set_module(launch, "silu_mul_usual");
  set_name(launch.entry, "silu_mul_%s_usual_w%u_%s", dtype_name(args.first_dtype), words,
           quant_name(args.quant));
  return true;
}

// Workgroups on a row of the usual SiLU per token, measured likewise: eight where rows are few, two up
// to two million elements, then one; of two waves at least.
inline uint32_t token_cluster(const RowArgs& args, const DeviceInfo& device) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  const uint32_t most = std::bit_floor(std::max(1u, row_vectors / (2 * device.wave_size)));
  const bool is_few = args.rows * device.max_cluster <= 4ll * device.cu_count;
  const bool is_many = args.rows * static_cast<long long>(args.hidden) > 1ll << 21;
  const uint32_t wanted = is_few ? device.max_cluster : is_many ? 1 : 2;
  return std::min(wanted, most);
}

// The usual SiLU per token: a row over a cluster of workgroups, a vector a lane, or a workgroup each.
inline bool plan_token_silu(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  const uint32_t row_vectors = args.hidden / kVectorElements;
  const uint32_t cluster = token_cluster(args, device);
  const uint32_t vectors = cluster > 1 ? 1 : usual_vectors(row_vectors, 1);
  const uint32_t threads = round_up(divide_up(row_vectors, uint64_t{cluster} * vectors), device.wave_size);
  if (threads > (cluster > 1 ? 1024u : 512u) || args.rows > 0x7fffffff / device.max_cluster) return false;
  launch = make_launch(args, static_cast<uint64_t>(args.rows), {cluster, threads, vectors}, device);
  set_module(launch, "silu_mul_usual");
  set_name(launch.entry, "silu_mul_%s_usual_%sv%u_per_token", dtype_name(args.first_dtype),
           cluster > 1 ? "shared_" : "", vectors);
  return true;
}

inline bool plan_usual_silu(const RowArgs& args, const DeviceInfo& device, RowLaunch& launch) {
  return args.quant == Quant::kPerToken ? plan_token_silu(args, device, launch)
                                        : plan_flat_silu(args, device, launch);
}

}  // namespace mi300
