// FP8 conversion on both GPU targets, exact for e4m3fn, e4m3fnuz and e5m2.
//
// Each target converts one e4m3 format in hardware, two values an instruction (gfx942: e4m3fnuz,
// sm_90: e4m3fn); the other formats are converted in integer arithmetic to the same codes.
#pragma once

#include <mi300/numeric.h>

namespace mi300 {

#if defined(__AMDGCN__)
constexpr Dtype kNativeFp8 = Dtype::kE4m3fnuz;
#else
constexpr Dtype kNativeFp8 = Dtype::kE4m3fn;
#endif

// What a finite value beyond the format's range becomes. Chosen by the launcher to match the
// device's own cast; without meaning once the clamp keeps values in range.
enum class Overflow : u8 { kSaturate, kSpecial };  // kSpecial: NaN, for e5m2 infinity

struct Fp8Format {
  i32 mantissa_bits;
  i32 bias;
  u32 max_code;      // largest finite value
  u32 special_code;  // what kSpecial stores, sign aside
  u32 nan_code;
  bool has_negative_zero;
};

constexpr MI300_DEVICE Fp8Format fp8_format(Dtype type) {
  if (type == Dtype::kE4m3fn) return {3, 7, 0x7e, 0x7f, 0x7f, true};
  if (type == Dtype::kE4m3fnuz) return {3, 8, 0x7f, 0x80, 0x80, false};
  return {2, 15, 0x7b, 0x7c, 0x7e, true};
}

// The largest finite value.
constexpr MI300_DEVICE float fp8_max(Dtype type) {
  return type == Dtype::kE4m3fn ? 448.0f : type == Dtype::kE4m3fnuz ? 240.0f : 57344.0f;
}

// One value in integer arithmetic.
MI300_DEVICE u32 fp8_code(Dtype type, float value, Overflow overflow) {
  const Fp8Format format = fp8_format(type);
  u32 bits = abs_bits(value);
  u32 sign = (bit_cast<u32>(value) >> 24) & 0x80;
  i32 shift = 23 - format.mantissa_bits;
  // Normal results: round to the kept bits, then move the exponent to the format's bias.
  u32 odd = (bits >> shift) & 1;
  u32 code = ((bits + (1u << (shift - 1)) - 1 + odd) >> shift) -
             ((u32)(127 - format.bias) << format.mantissa_bits);
  // Subnormal results: adding a power of two makes fp32 round at the format's last place.
  u32 smallest_normal = (u32)(128 - format.bias) << 23;
  if (bits < smallest_normal) {
    float anchor = bit_cast<float>((u32)(128 - format.bias + shift) << 23);
    code = bit_cast<u32>(bit_cast<float>(bits) + anchor) - bit_cast<u32>(anchor);
  }
  if (code > format.max_code || bits >= kInfBits) {
    bool is_special = overflow == Overflow::kSpecial;
    code = is_special ? format.special_code : format.max_code;
  }
  if (bits > kInfBits) code = format.nan_code;
  if (!format.has_negative_zero && (code == 0 || code == 0x80)) sign = 0;
  return code | sign;
}

// Two values by the hardware instruction of kNativeFp8, saturating: codes in the low 16 bits. The
// caller clamps to +-fp8_max, NaN kept (gfx942 does not saturate by itself).
MI300_DEVICE u32 native_fp8_code2(float low, float high) {
#if defined(__AMDGCN__)
  return (u32)__builtin_amdgcn_cvt_pk_fp8_f32(low, high, 0, false) & 0xffff;
#else
  u16 codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#endif
}

// Four values, first in the lowest byte; in range or clamped as native_fp8_code2 says.
MI300_DEVICE u32 native_fp8_code4(const float* values) {
#if defined(__AMDGCN__)
  i32 low = __builtin_amdgcn_cvt_pk_fp8_f32(values[0], values[1], 0, false);
  return (u32)__builtin_amdgcn_cvt_pk_fp8_f32(values[2], values[3], low, true);
#else
  return native_fp8_code2(values[0], values[1]) | (native_fp8_code2(values[2], values[3]) << 16);
#endif
}

// Clamp to [low, high]; NaN stays NaN.
MI300_DEVICE float clamp(float value, float low, float high) {
#if defined(__AMDGCN__)
  float clamped = __builtin_amdgcn_fmed3f(value, low, high);
  return is_nan(value) ? value : clamped;
#else
  float clamped = value < low ? low : value;
  return clamped > high ? high : clamped;
#endif
}

// Four values in any format, first in the lowest byte.
MI300_DEVICE u32 fp8_code4(Dtype type, const float* values, Overflow overflow) {
  if (type == kNativeFp8) {
    float in_range[4];
    const float limit = fp8_max(kNativeFp8);
    // Beyond the last rounding to fp8_max: what kSpecial turns into NaN.
    const float last = kNativeFp8 == Dtype::kE4m3fn ? 464.0f : 247.99998474121094f;
    for (u32 i = 0; i < 4; ++i) {
      bool is_special = overflow == Overflow::kSpecial && !(abs_bits(values[i]) <= bit_cast<u32>(last));
      in_range[i] = is_special ? __builtin_nanf("") : clamp(values[i], -limit, limit);
    }
    return native_fp8_code4(in_range);
  }
  u32 codes = 0;
  for (u32 i = 0; i < 4; ++i) codes |= fp8_code(type, values[i], overflow) << (8 * i);
  return codes;
}

}  // namespace mi300
