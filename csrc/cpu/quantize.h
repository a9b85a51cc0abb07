// Quantisation of a span of float32 values to FP8, with the scalings of the operators' docstring.
//
// Bound: 4 bytes read from L1 and 1 written per value; the division is the slowest instruction.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <string_view>

#include "simd.h"

namespace mi300 {

enum class Scaling : uint8_t { kDiv, kMul, kMulReciprocal };
enum class ScaleForm : uint8_t { kAmaxDiv, kAmaxMul, kDivAmax };

// What this torch's own cast makes of values that have no finite code in `q_dtype`.
Fp8Specials fp8_specials(at::ScalarType q_dtype);

struct Quantizer {
  at::ScalarType q_dtype;
  at::ScalarType scaled_dtype;
  Scaling scaling;
  float clamp_min;
  float clamp_max;
  Fp8Specials specials;

  Quantizer(const char* op, at::ScalarType q_dtype, std::string_view scaling,
            at::ScalarType scaled_dtype, double clamp_min, double clamp_max);

  // Writes the codes of y[0..n) for one scale. `y` may be read up to the next whole unit.
  void run(float scale, const float* y, int64_t n, uint8_t* q) const;
};

// The rule that turns the largest magnitude of a group into its scale.
struct DynamicScale {
  ScaleForm form;
  float constant;
  float amax_min;
  float scale_min;

  DynamicScale(const char* op, std::string_view form, double constant, double amax_min,
               double scale_min);

  float operator()(float amax) const;
};

// Largest |y[i]|, NaN if there is one; 0 for n = 0.
inline float max_magnitude(const float* y, int64_t n) {
  Vec largest(0.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = at::vec::maximum(largest, Vec::loadu(y + i).abs());
  }
  if (i < n) largest = at::vec::maximum(largest, Vec::loadu(y + i, n - i).abs());
  return reduce_max(largest);
}

// max(a, b) in which NaN wins.
inline float max_or_nan(float a, float b) { return (a >= b || a != a) ? a : b; }

}  // namespace mi300
