// Decode and prefill matmul for the CPU: the operator, its checks and its threads.
//
// Bound: at few rows the weights' bytes from memory, each read once; from about 8 rows on the
// float32 multiply-adds (see skinny_gemm_few.h and skinny_gemm_many.h).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "skinny_gemm_few.h"
#include "skinny_gemm_many.h"

namespace mi300 {
namespace {

using Tensor = at::Tensor;
using Dtype = at::ScalarType;
using MaybeTensor = std::optional<Tensor>;

constexpr const char* kOp = "skinny_gemm";
// Activation rows that are widened at a time: 256 rows of 14336 are 15 MB.
constexpr int64_t kPackedRows = 256;
// Multiply-adds below which another thread costs more than it saves.
constexpr int64_t kWorkGrain = 1 << 18;

template <typename Form>
void run_form(const GemmProblem& problem, Range rows, const float* packed, int64_t step) {
  const int64_t steps = (problem.n + step - 1) / step;
  const int64_t step_work = step * std::max<int64_t>(problem.k * (rows.end - rows.begin), 1);
  at::parallel_for(0, steps, std::max<int64_t>(1, kWorkGrain / step_work),
                   [&](int64_t begin, int64_t end) {
                     const Range columns = {begin * step, std::min(end * step, problem.n)};
                     Form(problem, rows, packed).run(columns);
                   });
}

void run(const GemmProblem& problem) {
  const int64_t stride = packed_stride(problem);
  const int64_t most_rows = std::min(kPackedRows, problem.m);
  static thread_local Scratch scratch;
  float* packed = scratch.floats(most_rows * stride);
  const int64_t row_work = std::max<int64_t>(problem.k, 1);
  for (int64_t row = 0; row < problem.m; row += kPackedRows) {
    const Range rows = {row, std::min(row + kPackedRows, problem.m)};
    at::parallel_for(0, rows.end - rows.begin, std::max<int64_t>(1, kWorkGrain / 4 / row_work),
                     [&](int64_t begin, int64_t end) {
                       pack_rows(problem, row + begin, row + end, packed + begin * stride);
                     });
    with_operand_type(problem.weight.dtype, [&](auto zero) {
      if (problem.m <= kFewRows) {
        run_form<FewRows<decltype(zero)>>(problem, rows, packed, kPanel);
      } else {
        run_form<ManyRows<decltype(zero)>>(problem, rows, packed, kLanes);
      }
    });
  }
  scratch.trim();
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

GemmExtra make_extra(const char* name, const MaybeTensor& tensor, int64_t rows, int64_t columns) {
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
  GemmProblem problem{m, n, a.size(1), as_rows(a), as_rows(weight)};
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
