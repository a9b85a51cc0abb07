// Both ends of the matmul: activations are widened to float32 before it, and sums scaled, added to
// and rounded after it.
#pragma once

#include "skinny_gemm_problem.h"

namespace mi300 {

// Elements between rows beyond the data, so that rows do not fall into the same cache sets.
constexpr int64_t kSkew = 16;

inline int64_t packed_stride(const GemmProblem& problem) {
  return round_up(problem.k, kLanes) + kSkew;
}

// Both formats' powers of two.
inline float decoded_factor(const GemmProblem& problem) {
  float factor = 1.0f;
  for (const at::ScalarType dtype : {problem.a.dtype, problem.weight.dtype}) {
    with_operand_type(dtype, [&](auto zero) { factor *= Decoded<decltype(zero)>::kFp16Scale; });
  }
  return factor;
}

// Widens activation rows [begin, end), times both formats' powers of two.
inline void pack_rows(const GemmProblem& problem, int64_t begin, int64_t end, float* packed) {
  const int64_t stride = packed_stride(problem), padded = round_up(problem.k, kLanes);
  const float factor = decoded_factor(problem);
  with_operand_type(problem.a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = begin; row < end; ++row) {
      const T* in = reinterpret_cast<const T*>(problem.a.row(row));
      float* out = packed + (row - begin) * stride;
      for (int64_t i = 0; i < problem.k; i += kWidenedAtOnce) {
        const int64_t count = std::min(kWidenedAtOnce, problem.k - i);
        widen_any(in + i, count, round_up(count, kLanes), out + i);
      }
      if (factor == 1.0f) continue;
      for (int64_t i = 0; i < padded; i += kLanes) {
        (Vec::loadu(out + i) * Vec(factor)).store(out + i);
      }
    }
  });
}

// What a form of the matmul that multiplies float32 needs of the activations: each row widened.
struct WidenedRows {
  // 256 rows of 14336 are 15 MB.
  static constexpr int64_t kRowsAtOnce = 256;

  static int64_t packed_floats(const GemmProblem& problem, Range rows) {
    return (rows.end - rows.begin) * packed_stride(problem);
  }
  static int64_t pack_parts(const GemmProblem&, Range rows) { return rows.end - rows.begin; }
  static int64_t pack_work(const GemmProblem& problem) { return std::max<int64_t>(problem.k, 1); }
  static void pack(const GemmProblem& problem, Range rows, Range parts, float* packed) {
    pack_rows(problem, rows.begin + parts.begin, rows.begin + parts.end,
              packed + parts.begin * packed_stride(problem));
  }
};

inline Pair load_extra(const GemmExtra& extra, int64_t row, int64_t column, int64_t count) {
  Pair value;
  with_float_type(extra.dtype, [&](auto zero) {
    const char* data = extra.data + row * extra.row_bytes;
    value = load_unit(reinterpret_cast<const decltype(zero)*>(data) + column, count);
  });
  return value;
}

// Scales, adds and rounds the sums `v` of one row's outputs [column, column + count).
template <typename Out>
void finish_unit(const GemmProblem& problem, int64_t row, int64_t column, int64_t count, Pair v) {
  if (problem.scale_a != nullptr) {
    const Vec scale_a(problem.scale_a[row * problem.scale_a_step]);
    const Pair scale_b = problem.scale_b_step == 0
                             ? Pair{Vec(problem.scale_b[0]), Vec(problem.scale_b[0])}
                             : load_unit(problem.scale_b + column, count);
    v = {v.low * (scale_a * scale_b.low), v.high * (scale_a * scale_b.high)};
  }
  if (problem.bias.data != nullptr) {
    const Pair bias = load_extra(problem.bias, 0, column, count);
    v = {v.low + bias.low, v.high + bias.high};
  }
  if (problem.addend.data != nullptr) {
    const Pair rounded = round_to<Out>(v);
    const Pair addend = load_extra(problem.addend, row, column, count);
    v = {rounded.low + addend.low, rounded.high + addend.high};
  }
  store_unit(reinterpret_cast<Out*>(problem.out) + row * problem.n + column, v, count);
}

}  // namespace mi300
