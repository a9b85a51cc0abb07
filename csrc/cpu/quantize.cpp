// Quantisation of float32 spans: the loops over every format, scaling and rounding, and the probe of
// this torch's FP8 casts.
#include "quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <array>
#include <limits>

namespace mi300 {
namespace {

int32_t cast_code(at::ScalarType q_dtype, float value) {
  const at::Tensor code =
      at::full({1}, value, at::TensorOptions(at::kFloat).device(at::kCPU)).to(q_dtype);
  return *static_cast<const uint8_t*>(code.const_data_ptr());
}

Fp8Specials probe(at::ScalarType q_dtype) {
  return {cast_code(q_dtype, 1e9f), cast_code(q_dtype, std::numeric_limits<float>::infinity()),
          cast_code(q_dtype, std::numeric_limits<float>::quiet_NaN())};
}

template <Scaling kScaling>
inline Vec apply_scale(const Vec& y, const Vec& scale) {
  if constexpr (kScaling == Scaling::kDiv) {
    return y / scale;
  } else {
    return y * scale;
  }
}

template <typename Format, typename Scaled, Scaling kScaling>
void quantize_span(const Quantizer& quantizer, float scale, const float* y, int64_t n,
                   uint8_t* q) {
  const Vec factor(scale), low(quantizer.clamp_min), high(quantizer.clamp_max);
  const Fp8Specials specials = quantizer.specials;
  for_units(n, [&](int64_t i, int64_t count) {
    const Pair in = load_pair(y + i);
    const Pair scaled = round_to<Scaled>(
        {apply_scale<kScaling>(in.low, factor), apply_scale<kScaling>(in.high, factor)});
    const Pair clamped = {at::vec::clamp(scaled.low, low, high),
                          at::vec::clamp(scaled.high, low, high)};
    store_codes<Format>(q + i, clamped, specials, count);
  });
}

template <typename F>
void with_format(at::ScalarType q_dtype, F&& f) {
  switch (q_dtype) {
    case at::kFloat8_e4m3fn:
      return f(E4m3fn{});
    case at::kFloat8_e4m3fnuz:
      return f(E4m3fnuz{});
    default:
      return f(E5m2{});
  }
}

}  // namespace

Fp8Specials fp8_specials(at::ScalarType q_dtype) {
  static const std::array<Fp8Specials, 3> kSpecials = {
      probe(at::kFloat8_e4m3fn), probe(at::kFloat8_e4m3fnuz), probe(at::kFloat8_e5m2)};
  return kSpecials[q_dtype == at::kFloat8_e4m3fn ? 0 : q_dtype == at::kFloat8_e4m3fnuz ? 1 : 2];
}

Quantizer::Quantizer(const char* op, at::ScalarType q_dtype, std::string_view scaling,
                     at::ScalarType scaled_dtype, double clamp_min, double clamp_max)
    : q_dtype(q_dtype),
      scaled_dtype(scaled_dtype),
      clamp_min(static_cast<float>(clamp_min)),
      clamp_max(static_cast<float>(clamp_max)) {
  TORCH_CHECK(q_dtype == at::kFloat8_e4m3fn || q_dtype == at::kFloat8_e4m3fnuz ||
                  q_dtype == at::kFloat8_e5m2,
              op, ": unsupported q_dtype; got ", q_dtype,
              ", expected Float8_e4m3fn, Float8_e4m3fnuz or Float8_e5m2. Choose one of these.");
  TORCH_CHECK(scaling == "div" || scaling == "mul" || scaling == "mul_reciprocal", op,
              ": unknown scaling; got '", scaling,
              "', expected div, mul or mul_reciprocal. Choose one of these.");
  this->scaling = scaling == "div"   ? Scaling::kDiv
                  : scaling == "mul" ? Scaling::kMul
                                     : Scaling::kMulReciprocal;
  specials = fp8_specials(q_dtype);
}

void Quantizer::run(float scale, const float* y, int64_t n, uint8_t* q) const {
  with_float_type(scaled_dtype, [&](auto scaled_zero) {
    using Scaled = decltype(scaled_zero);
    float factor = round_scalar<Scaled>(scale);
    if (scaling == Scaling::kMulReciprocal) factor = 1.0f / factor;
    with_format(q_dtype, [&](auto format) {
      using Format = decltype(format);
      if (scaling == Scaling::kDiv) {
        quantize_span<Format, Scaled, Scaling::kDiv>(*this, factor, y, n, q);
      } else {
        quantize_span<Format, Scaled, Scaling::kMul>(*this, factor, y, n, q);
      }
    });
  });
}

DynamicScale::DynamicScale(const char* op, std::string_view form, double constant, double amax_min,
                           double scale_min)
    : constant(static_cast<float>(constant)),
      amax_min(static_cast<float>(amax_min)),
      scale_min(static_cast<float>(scale_min)) {
  TORCH_CHECK(form == "amax_div" || form == "amax_mul" || form == "div_amax", op,
              ": unknown scale_form; got '", form,
              "', expected amax_div, amax_mul or div_amax. Choose one of these.");
  this->form = form == "amax_div"   ? ScaleForm::kAmaxDiv
               : form == "amax_mul" ? ScaleForm::kAmaxMul
                                    : ScaleForm::kDivAmax;
}

float DynamicScale::operator()(float amax) const {
  const float a = amax_min == 0.0f ? amax : max_or_nan(amax, amax_min);
  const float scale = form == ScaleForm::kAmaxDiv   ? a / constant
                      : form == ScaleForm::kAmaxMul ? a * constant
                                                    : constant / a;
  return scale_min == 0.0f ? scale : max_or_nan(scale, scale_min);
}

}  // namespace mi300
