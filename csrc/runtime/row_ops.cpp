// The norm and SiLU operators for GPU tensors: one function per schema of ops.py.
#include <torch/library.h>

#include "row_call.h"

namespace mi300 {
namespace {

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double eps, double offset,
                DtypeCode norm_dtype, DtypeCode y_dtype) {
  RowCall call("rms_norm", true, x, nullptr);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  Tensor y = call.add_y(true);
  call.run();
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, DtypeCode sum_dtype,
                                        DtypeCode residual_dtype,
                                        const std::optional<Tensor>& weight, double eps,
                                        double offset, DtypeCode norm_dtype, DtypeCode y_dtype) {
  RowCall call("add_rms_norm", true, x, &residual);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  Tensor residual_out = call.add_residual_out(sum_dtype, residual_dtype);
  Tensor y = call.add_y(true);
  call.run();
  return {y, residual_out};
}

std::tuple<Tensor, Tensor> rms_norm_quant(const Tensor& x, const std::optional<Tensor>& weight,
                                          double eps, double offset, DtypeCode norm_dtype,
                                          DtypeCode y_dtype, at::TensorList scales,
                                          DtypeCode q_dtype, c10::string_view scaling,
                                          DtypeCode scaled_dtype, double clamp_min,
                                          double clamp_max, bool return_y) {
  RowCall call("rms_norm_quant", true, x, nullptr);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  Tensor q = call.add_static(scales, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, y};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_quant(
    const Tensor& x, const Tensor& residual, DtypeCode sum_dtype, DtypeCode residual_dtype,
    const std::optional<Tensor>& weight, double eps, double offset, DtypeCode norm_dtype,
    DtypeCode y_dtype, at::TensorList scales, DtypeCode q_dtype, c10::string_view scaling,
    DtypeCode scaled_dtype, double clamp_min, double clamp_max, bool return_y) {
  RowCall call("add_rms_norm_quant", true, x, &residual);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  Tensor residual_out = call.add_residual_out(sum_dtype, residual_dtype);
  Tensor q = call.add_static(scales, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, residual_out, y};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_quant_dynamic(
    const Tensor& x, const std::optional<Tensor>& weight, double eps, double offset,
    DtypeCode norm_dtype, DtypeCode y_dtype, int64_t group_size, c10::string_view scale_form,
    double scale_const, double amax_min, double scale_min, DtypeCode q_dtype,
    c10::string_view scaling, DtypeCode scaled_dtype, double clamp_min, double clamp_max,
    bool return_y) {
  RowCall call("rms_norm_quant_dynamic", true, x, nullptr);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  auto [q, scale] =
      call.add_dynamic(group_size, scale_form, scale_const, amax_min, scale_min, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, scale, y};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_rms_norm_quant_dynamic(
    const Tensor& x, const Tensor& residual, DtypeCode sum_dtype, DtypeCode residual_dtype,
    const std::optional<Tensor>& weight, double eps, double offset, DtypeCode norm_dtype,
    DtypeCode y_dtype, int64_t group_size, c10::string_view scale_form, double scale_const,
    double amax_min, double scale_min, DtypeCode q_dtype, c10::string_view scaling,
    DtypeCode scaled_dtype, double clamp_min, double clamp_max, bool return_y) {
  RowCall call("add_rms_norm_quant_dynamic", true, x, &residual);
  call.set_weight(weight, eps, offset);
  call.set_rounding(norm_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  Tensor residual_out = call.add_residual_out(sum_dtype, residual_dtype);
  auto [q, scale] =
      call.add_dynamic(group_size, scale_form, scale_const, amax_min, scale_min, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, scale, residual_out, y};
}

Tensor silu_mul(const Tensor& gate, const Tensor& up, std::optional<DtypeCode> sigmoid_dtype,
                DtypeCode act_dtype, DtypeCode y_dtype) {
  RowCall call("silu_mul", false, gate, &up);
  call.set_sigmoid(sigmoid_dtype);
  call.set_rounding(act_dtype, y_dtype);
  Tensor y = call.add_y(true);
  call.run();
  return y;
}

std::tuple<Tensor, Tensor> silu_mul_quant(const Tensor& gate, const Tensor& up,
                                          std::optional<DtypeCode> sigmoid_dtype,
                                          DtypeCode act_dtype, DtypeCode y_dtype,
                                          at::TensorList scales, DtypeCode q_dtype,
                                          c10::string_view scaling, DtypeCode scaled_dtype,
                                          double clamp_min, double clamp_max, bool return_y) {
  RowCall call("silu_mul_quant", false, gate, &up);
  call.set_sigmoid(sigmoid_dtype);
  call.set_rounding(act_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  Tensor q = call.add_static(scales, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, y};
}

std::tuple<Tensor, Tensor, Tensor> silu_mul_quant_dynamic(
    const Tensor& gate, const Tensor& up, std::optional<DtypeCode> sigmoid_dtype,
    DtypeCode act_dtype, DtypeCode y_dtype, int64_t group_size, c10::string_view scale_form,
    double scale_const, double amax_min, double scale_min, DtypeCode q_dtype,
    c10::string_view scaling, DtypeCode scaled_dtype, double clamp_min, double clamp_max,
    bool return_y) {
  RowCall call("silu_mul_quant_dynamic", false, gate, &up);
  call.set_sigmoid(sigmoid_dtype);
  call.set_rounding(act_dtype, y_dtype);
  call.set_target(scaling, scaled_dtype, clamp_min, clamp_max);
  auto [q, scale] =
      call.add_dynamic(group_size, scale_form, scale_const, amax_min, scale_min, q_dtype);
  Tensor y = call.add_y(return_y);
  call.run();
  return {q, scale, y};
}

}  // namespace
}  // namespace mi300

TORCH_LIBRARY_IMPL(mi300, CUDA, library) {
  library.impl("rms_norm", mi300::rms_norm);
  library.impl("add_rms_norm", mi300::add_rms_norm);
  library.impl("rms_norm_quant", mi300::rms_norm_quant);
  library.impl("add_rms_norm_quant", mi300::add_rms_norm_quant);
  library.impl("rms_norm_quant_dynamic", mi300::rms_norm_quant_dynamic);
  library.impl("add_rms_norm_quant_dynamic", mi300::add_rms_norm_quant_dynamic);
  library.impl("silu_mul", mi300::silu_mul);
  library.impl("silu_mul_quant", mi300::silu_mul_quant);
  library.impl("silu_mul_quant_dynamic", mi300::silu_mul_quant_dynamic);
}
