// Decode and prefill matmul for the CPU: out = scale_a * scale_b * (a @ weight.T) + bias + addend.
//
// Bound: at few rows the weights' bytes from memory, each read once; from about 8 rows on the
// float32 multiply-adds. The activations are widened to float32 once per call. A thread takes blocks
// of kBlock weight rows; it widens kDepth columns of a block at a time into its cache, multiplies
// them with up to kRowBlock activation rows, and keeps the sums as vectors (skinny_gemm_tile.h).
// float32 multiply-adds also beat the bf16 dot product here: Sapphire Rapids starts one of those
// every second cycle and two of these every cycle (measured 84 and 169 GFLOP/s per core at 2.6 GHz).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <torch/library.h>

#include "row_ops.h"
#include "skinny_gemm_decode.h"
#include "skinny_gemm_tile.h"

namespace mi300 {
namespace {

using Tensor = at::Tensor;
using Dtype = at::ScalarType;
using MaybeTensor = std::optional<Tensor>;

constexpr const char* kOp = "skinny_gemm";
constexpr int64_t kDepth = 512;
constexpr int64_t kBlock = 3 * kUnit;
constexpr int64_t kRowBlock = 64;
// Activation rows that are widened at a time: 256 rows of 14336 are 15 MB.
constexpr int64_t kPackedRows = 256;
// Floats between rows beyond the data, so that rows do not fall into the same cache sets.
constexpr int64_t kSkew = 16;
// Multiply-adds below which another thread costs more than it saves.
constexpr int64_t kWorkGrain = 1 << 18;

static_assert(kBlock % kPanel == 0);

// What the epilogue reads, checked and with unit last strides. `stride` is in elements; 0 repeats.
struct Extra {
  Tensor owner;
  Dtype dtype = at::kFloat;
  const char* data = nullptr;
  int64_t row_bytes = 0;
};

struct Problem {
  int64_t m, n, k;
  Rows a, weight;
  const float* scale_a = nullptr;
  int64_t scale_a_step = 0;
  const float* scale_b = nullptr;
  int64_t scale_b_step = 0;
  Extra bias = {}, addend = {};
  Dtype out_dtype = at::kFloat;
  char* out = nullptr;
};

bool is_fp8(Dtype dtype) {
  return dtype == at::kFloat8_e4m3fn || dtype == at::kFloat8_e4m3fnuz ||
         dtype == at::kFloat8_e5m2;
}

// Calls f with a value of the C++ type of an operand's dtype.
template <typename F>
void with_operand_type(Dtype dtype, F&& f) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return f(c10::Float8_e4m3fn{});
    case at::kFloat8_e4m3fnuz:
      return f(c10::Float8_e4m3fnuz{});
    case at::kFloat8_e5m2:
      return f(c10::Float8_e5m2{});
    default:
      return with_float_type(dtype, f);
  }
}

at::DataPtr new_floats(int64_t count) {
  return c10::GetCPUAllocator()->allocate(static_cast<size_t>(count) * sizeof(float));
}

float* floats(const at::DataPtr& data) { return static_cast<float*>(data.get()); }

int64_t packed_stride(const Problem& problem) { return round_up(problem.k, kLanes) + kSkew; }

// Widens activation rows [begin, end), times both formats' powers of two.
void pack_rows(const Problem& problem, int64_t begin, int64_t end, float* packed) {
  const int64_t stride = packed_stride(problem), padded = round_up(problem.k, kLanes);
  float factor = 1.0f;
  for (const Dtype dtype : {problem.a.dtype, problem.weight.dtype}) {
    with_operand_type(dtype, [&](auto zero) { factor *= Decoded<decltype(zero)>::kFp16Scale; });
  }
  with_operand_type(problem.a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = begin; row < end; ++row) {
      float* out = packed + (row - begin) * stride;
      decode_row(reinterpret_cast<const T*>(problem.a.row(row)), problem.k, padded, out);
      if (factor == 1.0f) continue;
      for (int64_t i = 0; i < padded; i += kLanes) (Vec::loadu(out + i) * Vec(factor)).store(out + i);
    }
  });
}

void multiply_panel(const float* weights, int64_t weights_stride, const float* rows,
                    int64_t rows_stride, int64_t row_count, int64_t depth, float* sums,
                    bool is_first) {
  constexpr int64_t kSums = kBlock;
  int64_t row = 0;
  const auto tile = [&](auto count) {
    multiply_tile<count()>(weights, weights_stride, rows + row * rows_stride, rows_stride, depth,
                           sums + row * kSums * kLanes, kSums, is_first);
    row += count();
  };
  while (row + kTileRows <= row_count) tile(std::integral_constant<int, kTileRows>{});
  switch (row_count - row) {
    case 3:
      return tile(std::integral_constant<int, 3>{});
    case 2:
      return tile(std::integral_constant<int, 2>{});
    case 1:
      return tile(std::integral_constant<int, 1>{});
  }
}

Pair load_extra(const Extra& extra, int64_t row, int64_t column, int64_t count) {
  Pair value;
  with_float_type(extra.dtype, [&](auto zero) {
    const char* data = extra.data + row * extra.row_bytes;
    value = load_unit(reinterpret_cast<const decltype(zero)*>(data) + column, count);
  });
  return value;
}

// Scales, adds and rounds the sums of one row's outputs [column, column + count).
template <typename Out>
void finish_unit(const Problem& problem, int64_t row, int64_t column, int64_t count,
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

// A thread's share: weight rows [begin, end) with activation rows [first_row, last_row), whose
// widened form is `packed`.
void run_columns(const Problem& problem, int64_t begin, int64_t end, int64_t first_row,
                 int64_t last_row, const float* packed) {
  constexpr int64_t kStride = kDepth + kSkew;
  const int64_t packed_step = packed_stride(problem);
  const int64_t most_rows = std::min(kRowBlock, last_row - first_row);
  const at::DataPtr panel_data = new_floats(kBlock * kStride);
  const at::DataPtr sums_data = new_floats(most_rows * kBlock * kLanes);
  float* panel = floats(panel_data);
  float* sums = floats(sums_data);
  for (int64_t column = begin; column < end; column += kBlock) {
    const int64_t columns = std::min(kBlock, end - column);
    const int64_t used = round_up(columns, kPanel);
    for (int64_t row = first_row; row < last_row; row += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, last_row - row);
      const float* packed_rows = packed + (row - first_row) * packed_step;
      if (problem.k == 0) {
        std::memset(sums, 0, static_cast<size_t>(rows * kBlock * kLanes) * sizeof(float));
      }
      for (int64_t depth = 0; depth < problem.k; depth += kDepth) {
        const int64_t count = std::min(kDepth, problem.k - depth);
        const int64_t padded = round_up(count, kLanes);
        for (int64_t p = 0; p < used; p += kPanel) {
          with_operand_type(problem.weight.dtype, [&](auto zero) {
            using T = decltype(zero);
            for (int64_t c = p; c < p + kPanel; ++c) {
              if (c >= columns) {
                std::memset(panel + c * kStride, 0, static_cast<size_t>(padded) * sizeof(float));
                continue;
              }
              const T* codes = reinterpret_cast<const T*>(problem.weight.row(column + c));
              decode_row(codes + depth, count, padded, panel + c * kStride);
            }
          });
          multiply_panel(panel + p * kStride, kStride, packed_rows + depth, packed_step, rows,
                         padded, sums + p * kLanes, depth == 0);
        }
      }
      with_float_type(problem.out_dtype, [&](auto zero) {
        for (int64_t r = 0; r < rows; ++r) {
          for_units(columns, [&](int64_t c, int64_t count) {
            finish_unit<decltype(zero)>(problem, row + r, column + c, count,
                                        sums + (r * kBlock + c) * kLanes);
          });
        }
      });
    }
  }
}

void run(const Problem& problem) {
  const int64_t stride = packed_stride(problem);
  const int64_t most_rows = std::min(kPackedRows, problem.m);
  const at::DataPtr packed_data = new_floats(most_rows * stride);
  float* packed = floats(packed_data);
  const int64_t row_work = std::max<int64_t>(problem.k, 1);
  for (int64_t row = 0; row < problem.m; row += kPackedRows) {
    const int64_t rows = std::min(kPackedRows, problem.m - row);
    at::parallel_for(0, rows, std::max<int64_t>(1, kWorkGrain / 4 / row_work),
                     [&](int64_t begin, int64_t end) {
                       pack_rows(problem, row + begin, row + end, packed + begin * stride);
                     });
    const int64_t panels = (problem.n + kPanel - 1) / kPanel;
    const int64_t panel_work = kPanel * row_work * std::max<int64_t>(rows, 4);
    at::parallel_for(0, panels, std::max<int64_t>(1, kWorkGrain / panel_work),
                     [&](int64_t begin, int64_t end) {
                       run_columns(problem, begin * kPanel, std::min(end * kPanel, problem.n), row,
                                   row + rows, packed);
                     });
  }
}

void check_scale(const char* name, const MaybeTensor& scale, bool is_wanted, int64_t length) {
  TORCH_CHECK(scale.has_value() == is_wanted, kOp, ": ", name,
              " goes with FP8 operands and with no others; got ", scale ? "one" : "none",
              ", expected ", is_wanted ? "one" : "none",
              ". Pass one scale per operand with FP8, none otherwise.");
  if (!scale) return;
  TORCH_CHECK(scale->scalar_type() == at::kFloat &&
                  (scale->numel() == 1 || scale->numel() == length),
              kOp, ": ", name, " has the wrong size or dtype; got ", scale->sizes(), " ",
              scale->scalar_type(), ", expected 1 or ", length,
              " float32 values. Pass a per-tensor or a per-row/per-column scale.");
}

void check_operands(const Tensor& a, const Tensor& weight, Dtype out_dtype) {
  TORCH_CHECK(a.dim() == 2 && weight.dim() == 2 && a.size(1) == weight.size(1), kOp,
              ": the operands do not fit; got a ", a.sizes(), " and weight ", weight.sizes(),
              ", expected [m, k] and [n, k]. Pass the weight as nn.Linear stores it.");
  const Dtype dtype = a.scalar_type();
  const bool both_fp8 = is_fp8(dtype) && is_fp8(weight.scalar_type());
  TORCH_CHECK(both_fp8 || dtype == weight.scalar_type(), kOp,
              ": unsupported operand dtypes; got ", dtype, " and ", weight.scalar_type(),
              ", expected two FP8 dtypes or the same float dtype. Convert one of them.");
  if (!both_fp8) check_float(kOp, "operand dtype", dtype);
  check_float(kOp, "out_dtype", out_dtype);
}

Extra make_extra(const char* name, const MaybeTensor& tensor, int64_t rows, int64_t columns) {
  if (!tensor) return {};
  const bool is_row = tensor->dim() == 1 && tensor->size(0) == columns;
  const bool is_matrix = rows >= 0 && tensor->dim() == 2 && tensor->size(0) == rows &&
                         tensor->size(1) == columns;
  TORCH_CHECK(is_row || is_matrix, kOp, ": the ", name, " does not fit; got ", tensor->sizes(),
              ", expected one value per output column. Expand it first.");
  check_float(kOp, name, tensor->scalar_type());
  const Tensor owner = tensor->stride(-1) == 1 ? *tensor : tensor->contiguous();
  const int64_t step = is_row ? 0 : owner.stride(0) * static_cast<int64_t>(owner.element_size());
  return {owner, owner.scalar_type(), static_cast<const char*>(owner.const_data_ptr()), step};
}

Tensor skinny_gemm(const Tensor& a, const Tensor& weight, const MaybeTensor& scale_a,
                   const MaybeTensor& scale_b, const MaybeTensor& bias, const MaybeTensor& addend,
                   Dtype out_dtype) {
  check_operands(a, weight, out_dtype);
  const int64_t m = a.size(0), n = weight.size(0);
  const bool wants_scales = is_fp8(a.scalar_type());
  check_scale("scale_a", scale_a, wants_scales, m);
  check_scale("scale_b", scale_b, wants_scales, n);
  Problem problem{m, n, a.size(1), as_rows(a), as_rows(weight)};
  problem.bias = make_extra("bias", bias, -1, n);
  problem.addend = make_extra("addend", addend, m, n);
  MaybeTensor flat_a, flat_b;
  if (wants_scales) {
    flat_a = scale_a->contiguous();
    flat_b = scale_b->contiguous();
    problem.scale_a = flat_a->const_data_ptr<float>();
    problem.scale_b = flat_b->const_data_ptr<float>();
    problem.scale_a_step = flat_a->numel() == 1 ? 0 : 1;
    problem.scale_b_step = flat_b->numel() == 1 ? 0 : 1;
  }
  const Tensor out = at::empty({m, n}, a.options().dtype(out_dtype));
  problem.out_dtype = out_dtype;
  problem.out = static_cast<char*>(out.data_ptr());
  if (out.numel() > 0) run(problem);
  return out;
}

TORCH_LIBRARY_IMPL(mi300, CPU, m) { m.impl("skinny_gemm", TORCH_FN(skinny_gemm)); }

}  // namespace
}  // namespace mi300
