// Quantisation of a span of values to FP8, with the scalings of the operators' docstring.
//
// Bound: instructions, about one per value with AVX-512 where y is bfloat16, the usual case.
#pragma once

#include <ATen/core/Tensor.h>
#include <mi300/dtype_code.h>

#include <cmath>
#include <string_view>

#include "fp8.h"

namespace mi300 {

// Elements per chunk: 4 KiB of floats, so a chunk and its inputs stay in L1.
constexpr int64_t kChunk = 1024;

enum class Scaling : uint8_t { kDiv, kMul, kMulReciprocal };
enum class ScaleForm : uint8_t { kAmaxDiv, kAmaxMul, kDivAmax, kReciprocalMul };

// What this torch's own cast makes of values that have no finite code in `q_dtype`.
Fp8Specials fp8_specials(at::ScalarType q_dtype);

struct Quantizer {
  at::ScalarType q_dtype;
  at::ScalarType scaled_dtype;
  Scaling scaling;
  float clamp_min;
  float clamp_max;
  Fp8Specials specials;
  bool finite_bounds;  // the clamp is around 0 and leaves only NaN and values with a finite code
  bool even_bounds;    // ... and the bounds are the same

  Quantizer(const char* op, DtypeCode q_dtype, std::string_view scaling, DtypeCode scaled_dtype,
            double clamp_min, double clamp_max);

  // Writes the codes of up to kChunk elements of `y_dtype` for one scale.
  void run(float scale, at::ScalarType y_dtype, const void* y, int64_t n, uint8_t* q) const;
};

// The rule that turns the largest magnitude of a group into its scale.
struct DynamicScale {
  ScaleForm form;
  bool is_rounded;
  float constant;
  float amax_min;
  float scale_min;

  DynamicScale(const char* op, std::string_view form, double constant, double amax_min,
               double scale_min);

  float operator()(float amax, at::ScalarType y_dtype) const;
};

// max(a, b) in which NaN wins.
inline float max_or_nan(float a, float b) { return (a >= b || a != a) ? a : b; }

}  // namespace mi300
