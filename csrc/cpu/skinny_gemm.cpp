// Decode and prefill matmul for the CPU: the operator, its checks and its threads.
//
// Bound: at few rows the weights' bytes from memory, each read once; from about 8 rows on the
// float32 multiply-adds (see skinny_gemm_few.h and skinny_gemm_many.h).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <mi300/gemm_operands.h>
#include <torch/library.h>

#include "skinny_gemm_few.h"
#include "skinny_gemm_many.h"

namespace mi300 {
namespace {

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

// A bias or an addend as the kernels read it.
GemmExtra make_extra(const std::optional<Tensor>& tensor) {
  if (!tensor) return {};
  const Tensor owner = tensor->stride(-1) == 1 ? *tensor : tensor->contiguous();
  const int64_t row_bytes = owner.stride(0) * static_cast<int64_t>(owner.element_size());
  return {owner, owner.scalar_type(), static_cast<const char*>(owner.const_data_ptr()),
          owner.dim() == 1 ? 0 : row_bytes};
}

Tensor skinny_gemm(const Tensor& a, const Tensor& weight, const std::optional<Tensor>& scale_a,
                   const std::optional<Tensor>& scale_b, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& addend, ScalarType out_dtype) {
  check_gemm({a, weight, scale_a, scale_b, bias, addend, out_dtype});
  const int64_t m = a.size(0), n = weight.size(0);
  GemmProblem problem{m, n, a.size(1), as_rows(a), as_rows(weight)};
  problem.bias = make_extra(bias);
  problem.addend = make_extra(addend);
  std::optional<Tensor> flat_a, flat_b;
  if (scale_a) {
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

// The result is small, so that quantising it from the caches behind the product costs little.
Tensor skinny_gemm_quant(const Tensor& a, const Tensor& weight,
                         const std::optional<Tensor>& scale_a,
                         const std::optional<Tensor>& scale_b, const std::optional<Tensor>& bias,
                         const std::optional<Tensor>& addend, DtypeCode y_dtype,
                         const Tensor& scale, DtypeCode q_dtype, std::string_view scaling,
                         DtypeCode scaled_dtype, double clamp_min, double clamp_max) {
  const ScalarType y_type = dtype_of_code(y_dtype);
  check_gemm_quant({a, weight, scale_a, scale_b, bias, addend, y_type}, scale,
                   dtype_of_code(q_dtype));
  const Quantizer quantizer("skinny_gemm_quant", q_dtype, scaling, scaled_dtype, clamp_min,
                            clamp_max);
  const Tensor y = skinny_gemm(a, weight, scale_a, scale_b, bias, addend, y_type);
  const Tensor q = at::empty(y.sizes(), y.options().dtype(quantizer.q_dtype));
  const float factor = *scale.const_data_ptr<float>();
  const auto* from = static_cast<const char*>(y.const_data_ptr());
  auto* to = static_cast<uint8_t*>(q.data_ptr());
  const auto size = static_cast<int64_t>(y.element_size());
  at::parallel_for(0, (y.numel() + kChunk - 1) / kChunk, kGrain / kChunk,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin * kChunk; i < std::min(end * kChunk, y.numel());
                          i += kChunk) {
                       const int64_t count = std::min(kChunk, y.numel() - i);
                       quantizer.run(factor, y_type, from + i * size, count, to + i);
                     }
                   });
  return q;
}

TORCH_LIBRARY_IMPL(mi300, CPU, m) {
  m.impl("skinny_gemm", TORCH_FN(skinny_gemm));
  m.impl("skinny_gemm_quant", TORCH_FN(skinny_gemm_quant));
}

}  // namespace
}  // namespace mi300
