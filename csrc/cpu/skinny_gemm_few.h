// The matmul of few activation rows: weights are streamed from memory, each read once.
//
// Weight rows are taken kPanel at a time, over all of k, so that each is one stream that the memory
// system can run ahead of. FP8 codes are decoded to fp16 in L1, kStep columns at a time, and
// widened by the tile that multiplies them; the other dtypes are widened where they lie.
//
// float32 multiply-adds beat the bf16 dot product: Sapphire Rapids starts one of those every second
// cycle and two of these every cycle (85 and 178 GFLOP/s measured per core, 2026-11).
#pragma once

#include "skinny_gemm_ends.h"
#include "skinny_gemm_tile.h"

namespace mi300 {

// Up to this many rows a tile widens weights itself; with more rows that costs more than it saves.
constexpr int64_t kFewRows = 2 * kTileRows;

// The columns of a thread, for weights of type T.
template <typename T>
class FewRows : public WidenedRows {
 public:
  static constexpr int64_t kColumnStep = kPanel;

  // `packed` holds the widened rows [rows.begin, rows.end), at most kFewRows.
  FewRows(const GemmProblem& problem, Range rows, const float* packed)
      : problem_(problem), rows_(rows), packed_(packed) {
    static thread_local Scratch scratch;
    sums_ = scratch.floats(kFewRows * kColumnBlock * kLanes);
  }

  void run(Range columns) {
    for (int64_t column = columns.begin; column < columns.end; column += kColumnBlock) {
      const int64_t end = std::min(column + kColumnBlock, columns.end);
      for (int64_t c = column; c < end; c += kPanel) {
        run_panel({c, std::min(c + kPanel, end)}, sums_ + (c - column) * kLanes);
      }
      finish({column, end});
    }
  }

 private:
  // One unit of outputs needs kUnit sums.
  static constexpr int64_t kColumnBlock = 3 * kUnit;
  static_assert(kColumnBlock % kPanel == 0);
  // Codes of a weight row that are decoded at a time; 6 rows of 256 keep 24 lines on their way.
  static constexpr int64_t kStep = 256;
  // How far ahead of the decoding a row is asked for.
  static constexpr int64_t kAheadBytes = 512;
  static constexpr int64_t kStride = kStep + kSkew;

  void run_panel(Range columns, float* sums) {
    if (problem_.k == 0) {
      for (int64_t row = 0; row < rows_.end - rows_.begin; ++row) {
        std::fill_n(sums + row * kColumnBlock * kLanes, kPanel * kLanes, 0.0f);
      }
    }
    for (int64_t depth = 0; depth < problem_.k;) {
      const int64_t left = problem_.k - depth;
      int64_t count = std::min(kStep, left);
      if (!Decoded<T>::kIsFp8 && left >= kLanes && columns.end - columns.begin == kPanel) {
        count = left / kLanes * kLanes;
        multiply_in_place(columns.begin, depth, count, sums);
      } else {
        multiply_widened(columns, depth, count, sums);
      }
      depth += count;
    }
  }

  const T* weight(int64_t column, int64_t depth) const {
    return reinterpret_cast<const T*>(problem_.weight.row(column)) + depth;
  }

  template <typename Weights>
  void multiply(const Weights& weights, int64_t depth, int64_t count, float* sums) {
    const int64_t row_count = rows_.end - rows_.begin, stride = packed_stride(problem_);
    if (depth == 0) {
      multiply_panel<kColumnBlock, true>(weights, packed_, stride, row_count, count, sums);
    } else {
      multiply_panel<kColumnBlock, false>(weights, packed_ + depth, stride, row_count, count, sums);
    }
  }

  void multiply_in_place(int64_t column, int64_t depth, int64_t count, float* sums) {
    if constexpr (!Decoded<T>::kIsFp8) {
      const int64_t stride = problem_.weight.row_bytes / static_cast<int64_t>(sizeof(T));
      multiply(WeightRows<T, 0>{weight(column, depth), stride}, depth, count, sums);
    }
  }

  void multiply_widened(Range columns, int64_t depth, int64_t count, float* sums) {
    constexpr bool kStaysHalf = kHasFp16 && Decoded<T>::kIsFp8;
    using Scratch = std::conditional_t<kStaysHalf, c10::Half, float>;
    alignas(64) Scratch rows[kPanel * kStride];
    const int64_t padded = round_up(count, kLanes);
    for (int64_t p = 0; p < kPanel; ++p) {
      Scratch* out = rows + p * kStride;
      if (columns.begin + p >= columns.end) {
        std::fill_n(out, padded, Scratch(0.0f));
        continue;
      }
      const T* in = weight(columns.begin + p, depth);
      prefetch(in, depth, count);
      if constexpr (kStaysHalf) {
        decode_codes(in, count, padded, out);
      } else {
        widen_any(in, count, padded, out);
      }
    }
    multiply(WeightRows<Scratch, kStride>{rows}, depth, padded, sums);
  }

  // Asks for what follows in this weight row, or, at its end, for the next panel's.
  void prefetch(const T* in, int64_t depth, int64_t count) const {
    uintptr_t ahead = reinterpret_cast<uintptr_t>(in) + kAheadBytes;
    const int64_t row_bytes = problem_.k * static_cast<int64_t>(sizeof(T));
    if (depth * static_cast<int64_t>(sizeof(T)) + kAheadBytes >= row_bytes) {
      ahead += static_cast<uintptr_t>(kPanel * problem_.weight.row_bytes - row_bytes);
    }
    for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); i += kLineBytes) {
      prefetch_line(ahead + static_cast<uintptr_t>(i));
    }
  }

  void finish(Range columns) {
    with_float_type(problem_.out_dtype, [&](auto zero) {
      for (int64_t row = rows_.begin; row < rows_.end; ++row) {
        const float* sums = sums_ + (row - rows_.begin) * kColumnBlock * kLanes;
        for_units(columns.end - columns.begin, [&](int64_t c, int64_t count) {
          const float* unit = sums + c * kLanes;
          const Pair v = {sum_lanes(unit), sum_lanes(unit + kLanes * kLanes)};
          finish_unit<decltype(zero)>(problem_, row, columns.begin + c, count, v);
        });
      }
    });
  }

  const GemmProblem& problem_;
  Range rows_;
  const float* packed_;
  float* sums_;
};

}  // namespace mi300
