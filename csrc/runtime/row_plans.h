// Norm and SiLU problems that this thread has planned before: looking a plan up takes a tenth of the
// host time of making it.
#pragma once

#include <cstring>
#include <type_traits>

#include "row_plan.h"

namespace mi300 {

// A problem of which only what a plan sees of its pointers is kept, and its launches.
struct KnownRows {
  RowProblem seen;
  DeviceInfo device;
  int count;  // of launches
  RowLaunch launches[kMaxRowLaunches];
};

// Calls `visit(pointer, that of other)` for every pointer of `args`.
template <class Visit>
void visit_pointers(RowArgs& args, const RowArgs& other, const Visit& visit) {
  visit(args.first, other.first);
  visit(args.second, other.second);
  visit(args.weight, other.weight);
  visit(args.residual_out, other.residual_out);
  visit(args.y, other.y);
  visit(args.q, other.q);
  visit(args.scale, other.scale);
  for (int i = 0; i < kMaxScales; ++i) visit(args.scales[i], other.scales[i]);
  visit(args.amax, other.amax);
}

// A pointer as plans see it: null or not, and how aligned.
inline uintptr_t seen_pointer(const void* pointer) {
  return pointer == nullptr ? 0 : 16 | (reinterpret_cast<uintptr_t>(pointer) & 15);
}

// The plan of a problem, with its pointers: as plan_rows(), but it serves until this thread asks for the
// next one.
inline KnownRows& find_row_plan(const RowProblem& problem, const DeviceInfo& device) {
  constexpr int kPlaceBits = 5;  // a model has fewer kinds of calls
  thread_local KnownRows known[1 << kPlaceBits];
  const RowArgs& args = problem.args;
  RowProblem seen = problem;
  visit_pointers(seen.args, args, [](auto*& pointer, auto* from) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(seen_pointer(from));
  });
  uint64_t hash = static_cast<uint64_t>(args.rows) << 32 | args.hidden;
  hash ^= uint64_t{args.scale_count} << 29 | static_cast<uint64_t>(args.quant) << 27 |
          uint64_t(problem.is_norm) << 26;
  KnownRows& place = known[hash * 0x9e3779b97f4a7c15 >> (64 - kPlaceBits)];
  const auto differ = [](const auto& a, const auto& b) { return std::memcmp(&a, &b, sizeof(a)) != 0; };
  if (place.count == 0 || differ(place.seen, seen) || differ(place.device, device)) {
    place.count = plan_rows(problem, device, place.launches);
    place.seen = seen;
    place.device = device;
  }
  for (int i = 0; i < place.count; ++i) {
    visit_pointers(place.launches[i].args, args, [](auto*& pointer, auto* from) { pointer = from; });
  }
  return place;
}

}  // namespace mi300
