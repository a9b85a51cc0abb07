// A planned launch, and how rows are spread over lanes: what every plan is made of.
#pragma once

#include <cstdio>

#include "row_problem.h"

namespace mi300 {

// One launch of a plan, with its names by value.
struct RowLaunch {
  char module[32];
  char entry[48];
  uint32_t grid;
  uint32_t block;
  uint32_t cluster;
  uint32_t lds_bytes;
  uint32_t is_dependent;
  RowArgs args;
};

constexpr int kMaxRowLaunches = 3;

// How a row is spread: workgroups, threads of each and vectors a lane; no vectors if it does not fit.
struct RowSpread {
  uint32_t cluster = 1;
  uint32_t threads = 0;
  uint32_t vectors = 0;
};

inline uint32_t divide_up(uint64_t a, uint64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }
inline uint32_t round_up(uint32_t a, uint32_t b) { return divide_up(a, b) * b; }

// Most threads of a workgroup with so many vectors a lane; as kMaxThreads in row_reduce.h.
inline uint32_t max_threads(uint32_t vectors, const DeviceInfo& device) {
  return vectors <= 2 || device.wave_size == 64 ? 1024 : 512;
}

// The spread with the fewest vectors a lane, over `cluster` workgroups.
inline RowSpread spread_row(uint32_t row_vectors, uint32_t cluster, uint32_t fewest, uint32_t most,
                            const DeviceInfo& device) {
  for (uint32_t vectors = fewest; vectors <= most; vectors *= 2) {
    const uint32_t threads =
        round_up(divide_up(row_vectors, uint64_t{cluster} * vectors), device.wave_size);
    const bool fits_parts = cluster == 1 || cluster * threads / device.wave_size <= 64;
    if (threads <= max_threads(vectors, device) && fits_parts) return {cluster, threads, vectors};
  }
  return {};
}

inline const char* dtype_name(Dtype type) { return type == Dtype::kBf16 ? "bf16" : "fp16"; }

inline const char* quant_name(Quant quant) {
  constexpr const char* kNames[] = {"plain", "static", "per_token", "per_group"};
  return kNames[static_cast<int>(quant)];
}

inline RowLaunch make_launch(const RowArgs& args, uint64_t teams, const RowSpread& spread,
                             const DeviceInfo& device) {
  RowLaunch launch{};
  launch.args = args;
  launch.args.threads = spread.threads;
  launch.args.cluster = spread.cluster;
  launch.args.workgroups = static_cast<uint32_t>(teams);
  launch.grid = static_cast<uint32_t>(teams * spread.cluster);
  launch.block = spread.threads;
  launch.cluster = spread.cluster;
  // Starts while the kernel ahead ends (sm_90): 0.3 to 0.7 us less on an H200, at any size.
  launch.is_dependent = device.max_cluster > 1;
  return launch;
}

template <class... Parts>
void set_name(char (&name)[48], const char* format, Parts... parts) {
  std::snprintf(name, sizeof(name), format, parts...);
}

inline void set_module(RowLaunch& launch, const char* format, const char* part = "") {
  std::snprintf(launch.module, sizeof(launch.module), format, part);
}

// Threads of a flat workgroup, `most` or, if that spares three lanes in a hundred, down to `fewest`.
inline uint32_t flat_threads(uint32_t pieces, uint32_t fewest, uint32_t most,
                             const DeviceInfo& device) {
  uint32_t best = most;
  for (uint32_t threads = most; threads >= fewest; threads -= device.wave_size) {
    if (uint64_t{round_up(pieces, threads)} * 33 < uint64_t{round_up(pieces, best)} * 32) best = threads;
  }
  return std::min(best, round_up(pieces, device.wave_size));
}

inline bool set_flat(RowLaunch& launch, const RowArgs& args, uint32_t threads, uint32_t chunks,
                     const DeviceInfo& device) {
  if (args.rows * chunks > 0x7fffffffll) return false;
  launch = make_launch(args, static_cast<uint64_t>(args.rows) * chunks, {1, threads, 1}, device);
  launch.args.workgroups = chunks;
  return true;
}

}  // namespace mi300
