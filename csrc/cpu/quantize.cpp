// Quantisation of spans: the loops over every format, scaling and rounding, and the probe of
// this torch's FP8 casts.
#include "quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <array>
#include <limits>

#include "fp8_table.h"

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

Vec scale_value(Scaling scaling, const Vec& y, const Vec& factor) {
  return scaling == Scaling::kDiv ? y / factor : y * factor;
}

// One unit with every case: special values, infinite bounds, rounding to 16 bits.
template <typename Format, typename Scaled>
C10_NOINLINE void quantize_unit(const Quantizer& quantizer, float factor, const float* y,
                                int64_t count, uint8_t* q) {
  const Vec low(quantizer.clamp_min), high(quantizer.clamp_max);
  const Pair codes = map(
      [&](const Vec& v) {
        const Vec scaled = round_to<Scaled>(scale_value(quantizer.scaling, v, Vec(factor)));
        const Vec clamped = at::vec::clamp(scaled, low, high);
        return as_floats(encode<Format>(clamped, quantizer.specials));
      },
      load_pair(y));
  store_bytes(q, as_ints(codes.low), as_ints(codes.high), count);
}

// Divisors whose quotients `quantize_span` may take from a reciprocal: positive, far from overflow
// and underflow, and not of the one mantissa for which the correction step can fail.
bool has_safe_reciprocal(float divisor) {
  int32_t bits;
  std::memcpy(&bits, &divisor, sizeof(bits));
  return divisor > 0x1p-60f && divisor < 0x1p60f && (bits & 0x7fffff) != 0x7fffff;
}

// Finite bounds. A quotient is corrected by its own remainder, which gives the IEEE quotient
// (Markstein, IBM J. Res. Dev. 34, 1990) in a fraction of the time of a division; quotients that
// overflow or are NaN on the way make NaN and take the slow unit, tiny ones have code 0 anyway.
template <typename Format, typename Scaled, Scaling kScaling>
void quantize_span(const Quantizer& quantizer, float factor, const float* y, int64_t n,
                   uint8_t* q) {
  const Vec low(quantizer.clamp_min), high(quantizer.clamp_max), divisor(factor);
  const Vec multiplier(kScaling == Scaling::kDiv ? 1.0f / factor : factor);
  for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
    const Pair in = load_pair(y + i);
    const Pair v = map(
        [&](const Vec& value) {
          Vec scaled = value * multiplier;
          if constexpr (kScaling == Scaling::kDiv) {
            const Vec remainder = at::vec::fnmadd(scaled, divisor, value);
            scaled = at::vec::fmadd(remainder, multiplier, scaled);
          }
          return at::vec::clamp(round_to<Scaled>(scaled), low, high);
        },
        in);
    if (C10_UNLIKELY(any_nan(v))) {
      return quantize_unit<Format, Scaled>(quantizer, factor, y + i, count, q + i);
    }
    // The correction turns -0 into +0: the sign is that of y, as the divisor is positive.
    const Pair& sign = kScaling == Scaling::kDiv ? in : v;
    store_bytes(q + i, encode_finite<Format>(v.low, sign.low),
                encode_finite<Format>(v.high, sign.high), count);
  });
}

template <typename Format, typename Scaled>
void quantize_slowly(const Quantizer& quantizer, float factor, const float* y, int64_t n,
                     uint8_t* q) {
  for_units(n, [&](int64_t i, int64_t count) {
    quantize_unit<Format, Scaled>(quantizer, factor, y + i, count, q + i);
  });
}

// Elements for which making a table of codes pays.
constexpr int64_t kTableWorth = 512;
// The bits of 2^60 as a bfloat16.
constexpr int kOverflowWord = 0x5d80;

// y is bfloat16, nothing is rounded before the conversion, and the clamp is even: as quantize_span,
// but for the signs, which are those of y, and for the values that could overflow, which are seen
// before the division.
template <typename Format, Scaling kScaling>
void quantize_words(const Quantizer& quantizer, float factor, const c10::BFloat16* y, int64_t n,
                    uint8_t* q) {
  const Vec bound(quantizer.clamp_max), divisor(factor);
  const Vec multiplier(kScaling == Scaling::kDiv ? 1.0f / factor : factor);
  const auto scale = [&](const Vec& value) C10_ALWAYS_INLINE_ATTRIBUTE {
    Vec scaled = value * multiplier;
    if constexpr (kScaling == Scaling::kDiv) {
      const Vec remainder = at::vec::fnmadd(scaled, divisor, value);
      scaled = at::vec::fmadd(remainder, multiplier, scaled);
    }
    return scaled;
  };
  const auto quick = [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
    const IntVec words = load_words(y + i, count);
    const Pair codes = map(
        [&](const Vec& value) C10_ALWAYS_INLINE_ATTRIBUTE {
          return as_floats(encode_magnitude<Format>(bounded_magnitude(scale(value), bound)));
        },
        widen_words(words));
    store_signed_bytes<Format>(q + i, as_ints(codes.low), as_ints(codes.high), words, count);
  };
  const auto careful = [&](int64_t i, int64_t count) {
    if (!any_word_beyond<kOverflowWord>(load_words(y + i, count))) return quick(i, count);
    alignas(64) float wide[kUnit];
    store_pair(wide, load_unit(y + i, count));
    quantize_unit<Format, float>(quantizer, factor, wide, count, q + i);
  };
#if defined(__AVX512VBMI__)
  int32_t bits;
  std::memcpy(&bits, &factor, sizeof(bits));
  if (n >= kTableWorth && n <= kChunk && factor > 0x1p-60f) {
    thread_local CodeTable<Format> table;
    const int32_t exponent = kScaling == Scaling::kDiv ? (bits >> 23) + 1 : 254 - (bits >> 23);
    table.prepare(factor, quantizer.clamp_max, exponent, scale);
    const CodeTable<Format> codes = table;
    int64_t left[kChunk / kUnit + 1], count = 0, i = 0;
    for (; i + kUnit <= n; i += kUnit) {
      left[count] = i;
      count += codes.store(load_words(y + i, kUnit), q + i) ? 0 : 1;
    }
    for (int64_t k = 0; k < count; ++k) careful(left[k], kUnit);
    if (i < n) careful(i, n - i);
    return;
  }
#endif
  if (C10_LIKELY(!any_beyond<kOverflowWord>(y, n))) return for_units(n, quick);
  for_units(n, careful);
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

Quantizer::Quantizer(const char* op, DtypeCode q_code, std::string_view scaling,
                     DtypeCode scaled_code, double clamp_min, double clamp_max)
    : q_dtype(dtype_of_code(q_code)),
      scaled_dtype(dtype_of_code(scaled_code)),
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
  const float largest = q_dtype == at::kFloat8_e4m3fn ? 448.0f
                        : q_dtype == at::kFloat8_e5m2 ? 57344.0f
                                                      : 240.0f;
  finite_bounds = -largest <= this->clamp_min && this->clamp_min < 0.0f &&
                  0.0f < this->clamp_max && this->clamp_max <= largest;
  even_bounds = finite_bounds && this->clamp_min == -this->clamp_max;
}

void Quantizer::run(float scale, at::ScalarType y_dtype, const void* y, int64_t n,
                    uint8_t* q) const {
  const bool is_division = scaling == Scaling::kDiv;
  if (y_dtype == at::kBFloat16 && scaled_dtype == at::kFloat && even_bounds) {
    const float factor = scaling == Scaling::kMulReciprocal ? 1.0f / scale : scale;
    const bool is_safe = is_division ? kHasFma && has_safe_reciprocal(factor)
                                     : factor >= 0.0f && factor < 0x1p60f;
    if (is_safe) {
      const auto* words = static_cast<const c10::BFloat16*>(y);
      return with_format(q_dtype, [&](auto format) {
        using Format = decltype(format);
        if (is_division) return quantize_words<Format, Scaling::kDiv>(*this, factor, words, n, q);
        quantize_words<Format, Scaling::kMul>(*this, factor, words, n, q);
      });
    }
  }
  alignas(64) float wide[kChunk];
  with_float_type(y_dtype, [&](auto zero) {
    const auto* from = static_cast<const decltype(zero)*>(y);
    for_units(n, [&](int64_t i, int64_t count) {
      store_pair(wide + i, load_unit(from + i, count));
    });
  });
  with_float_type(scaled_dtype, [&](auto scaled_zero) {
    using Scaled = decltype(scaled_zero);
    float factor = round_scalar<Scaled>(scale);
    if (scaling == Scaling::kMulReciprocal) factor = 1.0f / factor;
    with_format(q_dtype, [&](auto format) {
      using Format = decltype(format);
      if (finite_bounds && !is_division) {
        quantize_span<Format, Scaled, Scaling::kMul>(*this, factor, wide, n, q);
      } else if (finite_bounds && kHasFma && has_safe_reciprocal(factor)) {
        quantize_span<Format, Scaled, Scaling::kDiv>(*this, factor, wide, n, q);
      } else {
        quantize_slowly<Format, Scaled>(*this, factor, wide, n, q);
      }
    });
  });
}

DynamicScale::DynamicScale(const char* op, std::string_view form, double constant, double amax_min,
                           double scale_min)
    : constant(static_cast<float>(constant)),
      amax_min(static_cast<float>(amax_min)),
      scale_min(static_cast<float>(scale_min)) {
  constexpr std::string_view kRounded = "_rounded";
  is_rounded = form.ends_with(kRounded);
  const std::string_view kind = form.substr(0, form.size() - (is_rounded ? kRounded.size() : 0));
  TORCH_CHECK(
      kind == "amax_div" || kind == "amax_mul" || kind == "div_amax" || kind == "reciprocal_mul",
      op, ": unknown scale_form; got '", form,
      "', expected amax_div, amax_mul, div_amax or reciprocal_mul, each also with _rounded behind "
      "it. Choose one of these.");
  this->form = kind == "amax_div"   ? ScaleForm::kAmaxDiv
               : kind == "amax_mul" ? ScaleForm::kAmaxMul
               : kind == "div_amax" ? ScaleForm::kDivAmax
                                    : ScaleForm::kReciprocalMul;
}

float DynamicScale::operator()(float amax, at::ScalarType y_dtype) const {
  const auto rounded = [&](float value) {
    if (!is_rounded) return value;
    return with_float_type(y_dtype, [&](auto zero) { return round_scalar<decltype(zero)>(value); });
  };
  const float a = amax_min == 0.0f ? amax : max_or_nan(amax, amax_min);
  const float scale = form == ScaleForm::kAmaxDiv   ? a / constant
                      : form == ScaleForm::kAmaxMul ? a * constant
                      : form == ScaleForm::kDivAmax ? constant / a
                                                    : rounded(1.0f / a) * constant;
  return scale_min == 0.0f ? rounded(scale) : max_or_nan(rounded(scale), scale_min);
}

}  // namespace mi300
