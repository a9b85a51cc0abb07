// The operands of skinny_gemm and skinny_gemm_list and what they must satisfy: host code only. The
// fakes in op_checks.py say the same in the same words.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <sstream>
#include <string>

namespace mi300 {

using at::ScalarType;
using at::Tensor;
using MaybeTensors = std::optional<at::TensorList>;

constexpr const char* kGemmOp = "skinny_gemm";

inline bool is_float(ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

inline bool is_fp8(ScalarType type) {
  return type == at::kFloat8_e4m3fn || type == at::kFloat8_e4m3fnuz || type == at::kFloat8_e5m2;
}

struct Operands {
  const Tensor& a;
  const Tensor& weight;
  const std::optional<Tensor>& scale_a;
  const std::optional<Tensor>& scale_b;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& addend;
  ScalarType out_type;

  bool has_scales() const { return is_fp8(a.scalar_type()); }

  std::string describe() const {
    std::ostringstream text;
    text << kGemmOp << " of " << a.sizes() << " and " << weight.sizes() << " " << a.scalar_type();
    return text.str();
  }
};

inline void check_scale(const char* name, const std::optional<Tensor>& scale, bool is_wanted,
                        int64_t length, const Tensor& a) {
  const auto count = [](bool is_there) { return is_there ? "one" : "none"; };
  TORCH_CHECK(scale.has_value() == is_wanted, kGemmOp, ": ", name,
              " goes with FP8 operands and with no others; got ", count(scale.has_value()), " for ",
              a.scalar_type(), ", expected ", count(is_wanted),
              ". Pass one scale per operand with FP8, none otherwise.");
  if (!scale.has_value()) return;
  TORCH_CHECK(scale->scalar_type() == at::kFloat &&
                  (scale->numel() == 1 || scale->numel() == length),
              kGemmOp, ": ", name, " has the wrong size or dtype; got ", scale->sizes(), " ",
              scale->scalar_type(), ", expected 1 or ", length,
              " Float values. Pass a per-tensor or a per-row/per-column scale.");
}

inline void check_gemm(const Operands& in) {
  TORCH_CHECK(in.a.dim() == 2 && in.weight.dim() == 2 && in.a.size(1) == in.weight.size(1), kGemmOp,
              ": the operands do not fit; got a ", in.a.sizes(), " and weight ", in.weight.sizes(),
              ", expected [m, k] and [n, k]. Pass the weight as nn.Linear stores it.");
  const ScalarType type = in.a.scalar_type(), other_type = in.weight.scalar_type();
  const bool is_pair = is_fp8(type) ? is_fp8(other_type) : is_float(type) && type == other_type;
  TORCH_CHECK(is_pair, kGemmOp, ": unsupported operand dtypes; got ", type, " and ", other_type,
              ", expected two FP8 dtypes or the same float dtype. Convert one of them.");
  TORCH_CHECK(is_float(in.out_type), kGemmOp, ": unsupported out_dtype; got ", in.out_type,
              ", expected float32, bfloat16 or float16. Choose one of these.");
  const int64_t m = in.a.size(0), n = in.weight.size(0);
  check_scale("scale_a", in.scale_a, in.has_scales(), m, in.a);
  check_scale("scale_b", in.scale_b, in.has_scales(), n, in.a);
  TORCH_CHECK(!in.bias || (in.bias->dim() == 1 && in.bias->size(0) == n), kGemmOp,
              ": the bias does not fit; got ", in.bias ? in.bias->sizes() : at::IntArrayRef{},
              ", expected [", n, "]. Pass one value per output column.");
  TORCH_CHECK(!in.addend || in.addend->sizes() == at::IntArrayRef({m, n}) ||
                  in.addend->sizes() == at::IntArrayRef({n}),
              kGemmOp, ": the addend does not fit; got ",
              in.addend ? in.addend->sizes() : at::IntArrayRef{}, ", expected [", m, ", ", n,
              "] or [", n, "]. Expand it first.");
  for (const auto* other : {&in.scale_a, &in.scale_b, &in.bias, &in.addend}) {
    if (!other->has_value()) continue;
    TORCH_CHECK((*other)->device() == in.a.device() && is_float((*other)->scalar_type()), kGemmOp,
                ": unsupported scale, bias or addend; got ", (*other)->scalar_type(), " on ",
                (*other)->device(), ", expected a float dtype on ", in.a.device(),
                ". Convert or move it.");
  }
  TORCH_CHECK(in.weight.device() == in.a.device(), kGemmOp, ": inputs on several devices; got ",
              in.a.device(), " and ", in.weight.device(),
              ", expected one. Move them to the same device.");
}

// What skinny_gemm_quant makes of its result: the scale, and the dtype of the codes.
inline void check_gemm_quant(const Operands& in, const Tensor& scale, ScalarType q_type) {
  TORCH_CHECK(is_fp8(q_type), "skinny_gemm_quant: unsupported q_dtype; got ", q_type,
              ", expected Float8_e4m3fn, Float8_e4m3fnuz or Float8_e5m2. Choose one of these.");
  TORCH_CHECK(scale.numel() == 1 && scale.scalar_type() == at::kFloat,
              "skinny_gemm_quant: the scale of the result is one fp32 value; got ", scale.sizes(),
              " ", scale.scalar_type(),
              ", expected [1] Float. Quantise rows apart with their own scales.");
  TORCH_CHECK(scale.device() == in.a.device(),
              "skinny_gemm_quant: inputs on several devices; got ", in.a.device(), " and ",
              scale.device(), ", expected one. Move them to the same device.");
}

// The lists of skinny_gemm_list: one entry for each matmul; some may be missing.
inline void check_gemm_list(at::TensorList a, at::TensorList weight, const MaybeTensors& scale_a,
                            const MaybeTensors& scale_b, const MaybeTensors& bias) {
  const auto check = [&](const char* name, const MaybeTensors& list) {
    TORCH_CHECK(!list || list->size() == a.size(), "skinny_gemm_list: ", name,
                " has another length than a; got ", list->size(), ", expected ", a.size(),
                ". Pass one for each matmul.");
  };
  check("weight", weight);
  check("scale_a", scale_a);
  check("scale_b", scale_b);
  check("bias", bias);
}

}  // namespace mi300
