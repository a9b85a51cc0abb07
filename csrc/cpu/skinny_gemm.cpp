// Decode and prefill matmul for the CPU: the operator, its checks and its threads.
//
// Bound: at few rows the weights' bytes from memory, each read once; from about 8 rows on the
// float32 multiply-adds (see skinny_gemm_few.h and skinny_gemm_many.h), or, where the CPU has a
// matrix unit for bf16, from about 64 rows on its loads from L2 (skinny_gemm_amx.h).
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <mi300/gemm_operands.h>
#include <torch/library.h>

#include "skinny_gemm_amx.h"
#include "skinny_gemm_few.h"
#include "skinny_gemm_many.h"

namespace mi300 {
namespace {

// Multiply-adds below which another thread costs more than it saves.
constexpr int64_t kWorkGrain = 1 << 18;
// From so many rows on the matrix unit is faster: 1.1x at 2 rows, 1.3x at 4, 1.9x at 8 (bf16,
// 4096 x 4096, one thread of a Xeon with amx_bf16, 2026-11).
constexpr int64_t kLeastTileRows = 2;

// Packs the activations, some rows at a time, and multiplies them with all columns.
template <typename Form>
void run_form(const GemmProblem& problem) {
  static thread_local Scratch scratch;
  for (int64_t row = 0; row < problem.m; row += Form::kRowsAtOnce) {
    const Range rows = {row, std::min(row + Form::kRowsAtOnce, problem.m)};
    float* packed = scratch.floats(Form::packed_floats(problem, rows));
    at::parallel_for(0, Form::pack_parts(problem, rows),
                     std::max<int64_t>(1, kWorkGrain / 4 / Form::pack_work(problem)),
                     [&](int64_t begin, int64_t end) {
                       Form::pack(problem, rows, {begin, end}, packed);
                     });
    constexpr int64_t kStep = Form::kColumnStep;
    const int64_t step_work = kStep * std::max<int64_t>(problem.k * (rows.end - rows.begin), 1);
    at::parallel_for(0, (problem.n + kStep - 1) / kStep,
                     std::max<int64_t>(1, kWorkGrain / step_work),
                     [&](int64_t begin, int64_t end) {
                       const Range columns = {begin * kStep, std::min(end * kStep, problem.n)};
                       Form(problem, rows, packed).run(columns);
                     });
  }
  scratch.trim();
}

void run(const GemmProblem& problem) {
  with_operand_type(problem.weight.dtype, [&](auto zero) {
    using T = decltype(zero);
#if defined(__AMX_BF16__)
    if constexpr (kHasPairs<T>) {
      if (problem.m >= kLeastTileRows && has_tiles()) return run_form<TileRows<T>>(problem);
    }
#endif
    if (problem.m <= kFewRows) {
      run_form<FewRows<T>>(problem);
    } else {
      run_form<ManyRows<T>>(problem);
    }
  });
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
