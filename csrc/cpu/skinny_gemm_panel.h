// Panels of weights for many activation rows: widened to float32 and transposed, so that a vector
// holds one k of kLanes weight rows.
//
// A panel of kPanelDepth x kPanelColumns stays in L1 while all activation rows are multiplied with
// it, so its making is shared by them. With AVX-512 the elements are transposed as they lie and
// widened afterwards (skinny_gemm_gather.h), elsewhere the other way round.
#pragma once

#include "skinny_gemm_ends.h"
#include "skinny_gemm_gather.h"

namespace mi300 {

constexpr int64_t kPanelVectors = 3;
constexpr int64_t kPanelColumns = kPanelVectors * kLanes;
constexpr int64_t kPanelDepth = 128;

// Widens `count` elements of kLanes weight rows, missing ones (null) as zeros, into
// panel[k * kPanelColumns + row].
template <typename T>
void make_group(const T* const* rows, int64_t count, float* panel) {
#if defined(CPU_CAPABILITY_AVX512)
  gather_group<T, kPanelColumns>(rows, count, panel);
#else
  constexpr int64_t kStride = kPanelDepth + kSkew;
  alignas(64) float wide[kLanes * kStride];
  const int64_t padded = round_up(count, kLanes);
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    float* out = wide + lane * kStride;
    if (rows[lane] == nullptr) {
      std::fill_n(out, padded, 0.0f);
    } else {
      widen_any(rows[lane], count, padded, out);
    }
  }
  for (int64_t k = 0; k < padded; k += kLanes) {
    at::vec::transpose_mxn<float, kLanes, kLanes>(wide + k, kStride, panel + k * kPanelColumns,
                                                  kPanelColumns);
  }
#endif
}

// The panel of weight rows [columns.begin, columns.end), at most kPanelColumns, from `depth` on.
template <typename T>
void make_panel(const GemmProblem& problem, Range columns, int64_t depth, int64_t count,
                float* panel) {
  for (int64_t column = columns.begin; column < columns.end; column += kLanes) {
    const T* rows[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      rows[lane] = nullptr;
      if (column + lane >= columns.end) continue;
      rows[lane] = reinterpret_cast<const T*>(problem.weight.row(column + lane)) + depth;
    }
    make_group(rows, count, panel + (column - columns.begin));
  }
}

}  // namespace mi300
