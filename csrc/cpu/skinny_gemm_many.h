// The matmul of many activation rows, prefill included: blocked for the caches as a library's is.
//
// Weights are widened into panels in L1 (skinny_gemm_panel.h), and each panel multiplied with all
// activation rows. A sum runs over kPanelDepth products, and these partial sums are added in rising
// order of k; no blocking of rows or columns enters it, so an output's bits do not depend on the
// tile it falls in or the thread that computes it.
//
// Bound: fused multiply-adds on two ports, which a tile reaches (174 GFLOP/s of 178 per core with
// panels at hand, Sapphire Rapids, 2026-11). It reads the panel from L1, the activations from L2.
#pragma once

#include "skinny_gemm_panel.h"

namespace mi300 {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kOuterRows = 8;  // 24 sums, 3 weights and 1 activation in 32 registers
#else
constexpr int kOuterRows = 4;  // 12 sums, 3 weights and 1 activation in 16 registers
#endif

// What a tile asks memory for while it multiplies: one line each of the next `count` weight rows.
struct Ahead {
  uintptr_t line;
  uintptr_t row_bytes;
  int64_t count;
};

// sums[row][vector] += the products over n columns of the activation rows; with is_first, = them.
template <int kRows, int kVectors>
[[gnu::noinline]] void multiply_outer(const float* panel, const float* rows, int64_t rows_stride,
                                      int64_t n, float* sums, int64_t sums_stride, bool is_first,
                                      Ahead ahead) {
  // Unrolled by decree: an array with a variable index lives in memory.
  Vec acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) acc[r][v] = Vec(0.0f);
  }
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    Vec w[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) w[v] = Vec::loadu(panel + k * kPanelColumns + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec a(rows[r * rows_stride + k]);
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) acc[r][v] = at::vec::fmadd(a, w[v], acc[r][v]);
    }
  };
  int64_t k = 0;
  for (; k + 2 <= n && ahead.count > 0; k += 2, --ahead.count) {
    prefetch_line(ahead.line);
    ahead.line += ahead.row_bytes;
    step(k);
    step(k + 1);
  }
  for (; k < n; ++k) step(k);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      float* sum = sums + r * sums_stride + v * kLanes;
      (is_first ? acc[r][v] : Vec::loadu(sum) + acc[r][v]).store(sum);
    }
  }
}

// The columns of a thread, for weights of type T.
template <typename T>
class ManyRows : public WidenedRows {
 public:
  static constexpr int64_t kColumnStep = kLanes;

  // `packed` holds the widened rows [rows.begin, rows.end).
  ManyRows(const GemmProblem& problem, Range rows, const float* packed)
      : problem_(problem), rows_(rows), packed_(packed) {
    // With more rows than the L2 holds, several panels share what is read of them.
    panels_ = rows.end - rows.begin > kRowsInL2 ? kSharedPanels : 1;
    static thread_local Scratch scratch;
    sums_ = scratch.floats((rows.end - rows.begin) * sums_stride());
  }

  void run(Range columns) {
    const int64_t step = panels_ * kPanelColumns;
    for (int64_t column = columns.begin; column < columns.end; column += step) {
      const Range block = {column, std::min(column + step, columns.end)};
      if (problem_.k == 0) std::fill_n(sums_, (rows_.end - rows_.begin) * sums_stride(), 0.0f);
      for (int64_t depth = 0; depth < problem_.k; depth += kPanelDepth) {
        for (int64_t c = block.begin; c < block.end; c += kPanelColumns) {
          run_panel({c, std::min(c + kPanelColumns, block.end)}, depth, sums_ + (c - column));
        }
      }
      finish(block);
    }
  }

 private:
  static constexpr int64_t kRowsInL2 = 64;
  static constexpr int64_t kSharedPanels = 4;

  int64_t sums_stride() const { return round_up(panels_ * kPanelColumns, kUnit); }

  void run_panel(Range columns, int64_t depth, float* sums) {
    const int64_t count = std::min(kPanelDepth, problem_.k - depth);
    alignas(64) float panel[kPanelDepth * kPanelColumns];
    make_panel<T>(problem_, columns, depth, count, panel);
    const int64_t row_count = rows_.end - rows_.begin;
    for (int64_t row = 0; row < row_count; row += kOuterRows) {
      const Ahead ahead = lines_ahead(columns, depth, row / kOuterRows);
      const auto tile = [&](auto rows, auto vectors) {
        const int64_t stride = packed_stride(problem_);
        multiply_outer<rows(), vectors()>(panel, packed_ + row * stride + depth, stride, count,
                                          sums + row * sums_stride(), sums_stride(), depth == 0,
                                          ahead);
      };
      const int64_t vectors = (columns.end - columns.begin + kLanes - 1) / kLanes;
      with_count<kOuterRows>(std::min<int64_t>(kOuterRows, row_count - row), [&](auto rows) {
        with_count<kPanelVectors>(vectors, [&](auto v) { tile(rows, v); });
      });
    }
  }

  // Tile `tile` asks for line `tile` of each weight row's next columns.
  Ahead lines_ahead(Range columns, int64_t depth, int64_t tile) const {
    const int64_t next = (depth + kPanelDepth) * static_cast<int64_t>(sizeof(T));
    const int64_t offset = next + tile * kLineBytes;
    const int64_t row_end = problem_.k * static_cast<int64_t>(sizeof(T));
    const bool is_wanted =
        offset < std::min(row_end, next + kPanelDepth * static_cast<int64_t>(sizeof(T)));
    return {reinterpret_cast<uintptr_t>(problem_.weight.row(columns.begin)) +
                static_cast<uintptr_t>(offset),
            static_cast<uintptr_t>(problem_.weight.row_bytes),
            is_wanted ? columns.end - columns.begin : 0};
  }

  // Calls f with `count`, 1 to kMost, as a constant.
  template <int kMost, typename F>
  static void with_count(int64_t count, F&& f) {
    if constexpr (kMost > 1) {
      if (count < kMost) return with_count<kMost - 1>(count, f);
    }
    f(std::integral_constant<int, kMost>{});
  }

  void finish(Range columns) {
    with_float_type(problem_.out_dtype, [&](auto zero) {
      for (int64_t row = rows_.begin; row < rows_.end; ++row) {
        const float* sums = sums_ + (row - rows_.begin) * sums_stride();
        for_units(columns.end - columns.begin, [&](int64_t c, int64_t count) {
          finish_unit<decltype(zero)>(problem_, row, columns.begin + c, count, load_pair(sums + c));
        });
      }
    });
  }

  const GemmProblem& problem_;
  Range rows_;
  const float* packed_;
  int64_t panels_;
  float* sums_;
};

}  // namespace mi300
