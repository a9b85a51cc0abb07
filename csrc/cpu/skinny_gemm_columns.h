// A thread's share of the matmul: some weight rows with the activation rows of one packing.
//
// The activations are widened to float32 once per call. Weight rows are taken kPanel at a time and
// kDepth columns deep: widened into L1, multiplied with up to kRowBlock activation rows, and the
// sums kept as vectors until the last column (skinny_gemm_tile.h). With few rows FP8 codes are
// widened to fp16 only and the other dtypes are read where they lie, because a widening load is
// then cheaper than a second pass.
//
// float32 multiply-adds also beat the bf16 dot product: Sapphire Rapids starts one of those every
// second cycle and two of these every cycle (84 and 169 GFLOP/s measured per core, 2026-11).
#pragma once

#include "skinny_gemm_problem.h"
#include "skinny_gemm_tile.h"

namespace mi300 {

constexpr int64_t kDepth = 512;
constexpr int64_t kColumnBlock = 3 * kUnit;
constexpr int64_t kRowBlock = 64;
// Up to this many rows weights are widened by each tile that reads them.
constexpr int64_t kFewRows = 2 * kTileRows;
// Elements between rows beyond the data, so that rows do not fall into the same cache sets.
constexpr int64_t kSkew = 16;

static_assert(kColumnBlock % kPanel == 0);

inline int64_t packed_stride(const GemmProblem& problem) {
  return round_up(problem.k, kLanes) + kSkew;
}

// Widens activation rows [begin, end), times both formats' powers of two.
inline void pack_rows(const GemmProblem& problem, int64_t begin, int64_t end, float* packed) {
  const int64_t stride = packed_stride(problem), padded = round_up(problem.k, kLanes);
  float factor = 1.0f;
  for (const at::ScalarType dtype : {problem.a.dtype, problem.weight.dtype}) {
    with_operand_type(dtype, [&](auto zero) { factor *= Decoded<decltype(zero)>::kFp16Scale; });
  }
  with_operand_type(problem.a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = begin; row < end; ++row) {
      const T* in = reinterpret_cast<const T*>(problem.a.row(row));
      float* out = packed + (row - begin) * stride;
      if constexpr (Decoded<T>::kIsFp8) {
        for (int64_t i = 0; i < problem.k; i += kDepth) {
          c10::Half halves[kDepth];
          const int64_t count = std::min(kDepth, problem.k - i);
          decode_codes(in + i, count, round_up(count, kLanes), halves);
          widen(halves, round_up(count, kUnit), round_up(count, kLanes), out + i);
        }
      } else {
        widen(in, problem.k, padded, out);
      }
      if (factor == 1.0f) continue;
      for (int64_t i = 0; i < padded; i += kLanes) {
        (Vec::loadu(out + i) * Vec(factor)).store(out + i);
      }
    }
  });
}

inline Pair load_extra(const GemmExtra& extra, int64_t row, int64_t column, int64_t count) {
  Pair value;
  with_float_type(extra.dtype, [&](auto zero) {
    const char* data = extra.data + row * extra.row_bytes;
    value = load_unit(reinterpret_cast<const decltype(zero)*>(data) + column, count);
  });
  return value;
}

// Scales, adds and rounds the sums of one row's outputs [column, column + count).
template <typename Out>
void finish_unit(const GemmProblem& problem, int64_t row, int64_t column, int64_t count,
                 const float* sums) {
  Pair v = {sum_lanes(sums), sum_lanes(sums + kLanes * kLanes)};
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

// A thread's scratch and the loops over its blocks, for weights of type T.
template <typename T>
class ColumnBlocks {
 public:
  ColumnBlocks(const GemmProblem& problem, Range rows, const float* packed)
      : problem_(problem), rows_(rows), packed_(packed) {
    static thread_local Scratch scratch;
    sums_ = scratch.floats(std::min(kRowBlock, rows.end - rows.begin) * kColumnBlock * kLanes);
  }

  void run(Range columns) {
    for (int64_t column = columns.begin; column < columns.end; column += kColumnBlock) {
      for (int64_t row = rows_.begin; row < rows_.end; row += kRowBlock) {
        run_block({column, std::min(column + kColumnBlock, columns.end)},
                  {row, std::min(row + kRowBlock, rows_.end)});
      }
    }
  }

 private:
  void run_block(Range columns, Range rows) {
    const int64_t row_count = rows.end - rows.begin, column_count = columns.end - columns.begin;
    if (problem_.k == 0) {
      std::memset(sums_, 0, static_cast<size_t>(row_count * kColumnBlock * kLanes) * sizeof(float));
    }
    // Without a widening pass there is nothing to keep in L1, so all of k is taken at once.
    const bool is_direct = !Decoded<T>::kIsFp8 && row_count <= kFewRows;
    for (int64_t depth = 0; depth < problem_.k;) {
      const int64_t left = problem_.k - depth;
      const bool is_whole = is_direct && left >= kLanes;
      const int64_t count = is_whole ? left / kLanes * kLanes : std::min(kDepth, left);
      for (int64_t c = columns.begin; c < columns.end; c += kPanel) {
        const Tile tile = {{c, std::min(c + kPanel, columns.end)}, rows, depth, count,
                           sums_ + (c - columns.begin) * kLanes};
        if (is_whole && c + kPanel <= columns.end) {
          multiply_in_place(tile);
        } else {
          multiply_widened(tile);
        }
      }
      depth += count;
    }
    finish(columns.begin, column_count, rows);
  }

  struct Tile {
    Range columns, rows;
    int64_t depth, count;
    float* sums;
  };

  const T* weight(int64_t column, int64_t depth) const {
    return reinterpret_cast<const T*>(problem_.weight.row(column)) + depth;
  }

  template <typename Weights>
  void multiply(const Tile& tile, const Weights& weights, int64_t offset, int64_t count) {
    const int64_t stride = packed_stride(problem_), depth = tile.depth + offset;
    const float* rows = packed_ + (tile.rows.begin - rows_.begin) * stride + depth;
    const int64_t row_count = tile.rows.end - tile.rows.begin;
    if (depth == 0) {
      multiply_panel<kColumnBlock, true>(weights, rows, stride, row_count, count, tile.sums);
    } else {
      multiply_panel<kColumnBlock, false>(weights, rows, stride, row_count, count, tile.sums);
    }
  }

  void multiply_in_place(const Tile& tile) {
    if constexpr (!Decoded<T>::kIsFp8) {
      const int64_t stride = problem_.weight.row_bytes / static_cast<int64_t>(sizeof(T));
      const WeightRows<T, 0> weights = {weight(tile.columns.begin, tile.depth), stride};
      multiply(tile, weights, 0, tile.count);
    }
  }

  void multiply_widened(const Tile& tile) {
    for (int64_t offset = 0; offset < tile.count; offset += kDepth) {
      const int64_t count = std::min(kDepth, tile.count - offset);
      const int64_t padded = round_up(count, kLanes);
      const bool stay_halves =
          kHasFp16 && Decoded<T>::kIsFp8 && tile.rows.end - tile.rows.begin <= kFewRows;
      for (int64_t p = 0; p < kPanel; ++p) {
        const int64_t column = tile.columns.begin + p;
        c10::Half* halves = halves_ + p * kStride;
        float* wide = wide_ + p * kStride;
        if (column >= tile.columns.end) {
          std::fill_n(halves, padded, c10::Half());
          std::fill_n(wide, padded, 0.0f);
          continue;
        }
        const T* codes = weight(column, tile.depth + offset);
        if constexpr (Decoded<T>::kIsFp8) {
          prefetch(codes, count);
          decode_codes(codes, count, padded, halves);
          if (!stay_halves) widen(halves, padded, padded, wide);
        } else {
          widen(codes, count, padded, wide);
        }
      }
      if (stay_halves) {
        multiply(tile, WeightRows<c10::Half, kStride>{halves_}, offset, padded);
      } else {
        multiply(tile, WeightRows<float, kStride>{wide_}, offset, padded);
      }
    }
  }

  // Asks for the same columns of the next panel: a thread's own work until then hides the memory.
  void prefetch([[maybe_unused]] const T* codes, [[maybe_unused]] int64_t count) const {
#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
    const char* next = reinterpret_cast<const char*>(codes);
    const uintptr_t ahead = static_cast<uintptr_t>(kPanel * problem_.weight.row_bytes);
    for (int64_t i = 0; i < count * static_cast<int64_t>(sizeof(T)); i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(next + i) + ahead),
                   _MM_HINT_T0);
    }
#endif
  }

  void finish(int64_t column, int64_t column_count, Range rows) {
    with_float_type(problem_.out_dtype, [&](auto zero) {
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const float* sums = sums_ + (row - rows.begin) * kColumnBlock * kLanes;
        for_units(column_count, [&](int64_t c, int64_t count) {
          finish_unit<decltype(zero)>(problem_, row, column + c, count, sums + c * kLanes);
        });
      }
    });
  }

  static constexpr int64_t kStride = kDepth + kSkew;
  const GemmProblem& problem_;
  Range rows_;
  const float* packed_;
  float* sums_;
  alignas(64) c10::Half halves_[kPanel * kStride];
  alignas(64) float wide_[kPanel * kStride];
};

inline void run_columns(const GemmProblem& problem, Range columns, Range rows,
                        const float* packed) {
  with_operand_type(problem.weight.dtype, [&](auto zero) {
    ColumnBlocks<decltype(zero)>(problem, rows, packed).run(columns);
  });
}

}  // namespace mi300
