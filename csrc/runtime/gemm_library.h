// skinny_gemm by torch's own products, for what no kernel takes or the vendor's library does faster.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>

#include <mi300/gemm_operands.h>
#include <mi300/skinny_gemm_args.h>

namespace mi300 {

// How a result is quantised: for the kernels and for torch.
struct GemmTarget {
  const Tensor& scale;
  ScalarType q_type, scaled_type;
  Dtype q_dtype;    // of q_type
  GemmQuant quant;  // without the scale, the clamp as it is asked for
};

// Adds the addend to a result that is rounded already.
inline Tensor add_addend(const Operands& in, const Tensor& rounded) {
  if (!in.addend) return rounded;
  return at::add(rounded.to(at::kFloat), in.addend->to(at::kFloat)).to(in.out_type);
}

// Adds what an fp32 product lacks, with the operator's roundings.
inline Tensor finish(const Operands& in, Tensor product, bool has_scales) {
  if (in.scale_a && !has_scales) {
    const int64_t m = in.a.size(0);
    const Tensor rows = in.scale_a->numel() == m ? in.scale_a->reshape({m, 1}) : *in.scale_a;
    product = at::mul(product, at::mul(rows, in.scale_b->reshape({-1})));
  }
  if (in.bias) product = at::add(product, in.bias->to(at::kFloat));
  return add_addend(in, product.to(in.out_type));
}

// Whether the library's epilogue can add the bias: in the output's own dtype, rounding once.
inline bool is_library_bias(const Operands& in) {
  return in.bias && in.out_type != at::kFloat && in.bias->scalar_type() == in.out_type;
}

inline bool has_plain_scales(const Operands& in) {
  return in.scale_a->numel() == 1 && in.scale_b->numel() == 1;
}

// FP8 problems that the library's kernel takes on every device.
inline bool is_library_fp8(const Operands& in) {
  const int64_t m = in.a.size(0), n = in.weight.size(0), k = in.a.size(1);
  const bool is_rowwise = in.scale_a->numel() == m && in.scale_b->numel() == n &&
                          in.out_type == at::kBFloat16 && !in.bias;
  return m > 0 && k > 0 && n % 16 == 0 && k % 16 == 0 && in.a.stride(1) == 1 &&
         in.weight.stride(1) == 1 && in.a.stride(0) >= k && in.weight.stride(0) >= k &&
         (has_plain_scales(in) || is_rowwise);
}

inline Tensor run_library_fp8(const Operands& in) {
  const bool is_plain = has_plain_scales(in);
  const Tensor scale_a = is_plain ? *in.scale_a : in.scale_a->reshape({-1, 1});
  const Tensor scale_b = is_plain ? *in.scale_b : in.scale_b->reshape({1, -1});
  std::optional<Tensor> bias;
  if (is_library_bias(in)) bias = in.bias->contiguous();
  const bool is_rounded = !in.bias || bias;
  const Tensor product = at::_scaled_mm(in.a, in.weight.t(), scale_a, scale_b, bias, std::nullopt,
                                        is_rounded ? in.out_type : at::kFloat, false);
  return is_rounded ? add_addend(in, product) : finish(in, product, true);
}

// The codes of a result, by the steps of the operator's formula.
inline Tensor quantize_result(const GemmTarget& target, const Tensor& y) {
  const Tensor scale = target.scale.reshape({}).to(target.scaled_type).to(at::kFloat);
  Tensor v = y.to(at::kFloat);
  switch (target.quant.scaling) {
    case Scaling::kDiv: v = at::div(v, scale); break;
    case Scaling::kMul: v = at::mul(v, scale); break;
    default: v = at::mul(v, at::reciprocal(scale));
  }
  v = v.to(target.scaled_type).to(at::kFloat);
  return at::clamp(v, target.quant.clamp_min, target.quant.clamp_max).to(target.q_type);
}

// The vendor's library through torch; any problem, any device, capture-safe.
inline Tensor run_library(const Operands& in) {
  // The operators have no derivative: torch's own calls need not look for theirs on the way.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (in.has_scales()) {
    if (is_library_fp8(in)) return run_library_fp8(in);
    return finish(in, at::mm(in.a.to(at::kFloat), in.weight.t().to(at::kFloat)), false);
  }
  const bool is_same = in.out_type == in.a.scalar_type() && in.a.size(1) > 0;
  if (is_same && !in.bias) return add_addend(in, at::mm(in.a, in.weight.t()));
  if (is_same && is_library_bias(in)) {
    return add_addend(in, at::addmm(*in.bias, in.a, in.weight.t()));
  }
  return finish(in, at::mm(in.a.to(at::kFloat), in.weight.t().to(at::kFloat)), false);
}

}  // namespace mi300
