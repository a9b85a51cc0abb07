// FP8 conversion on both GPU targets, exact for e4m3fn, e4m3fnuz and e5m2.
//
// Each target converts one e4m3 format in hardware, two values an instruction (gfx942: e4m3fnuz,
// sm_90: e4m3fn). The other e4m3 format is had from the same instruction; any format, with any
// behaviour beyond its range, in integer arithmetic.
#pragma once

#include <mi300/numeric.h>

namespace mi300 {

#if defined(__AMDGCN__)
constexpr Dtype kNativeFp8 = Dtype::kE4m3fnuz;
#else
constexpr Dtype kNativeFp8 = Dtype::kE4m3fn;
#endif

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

// Four values by the hardware instruction of kNativeFp8, first in the lowest byte. Saturates on
// sm_90 only: on gfx942 the caller clamps to +-240, NaN kept.
MI300_DEVICE u32 native_fp8_code4(const float* values) {
#if defined(__AMDGCN__)
  i32 low = __builtin_amdgcn_cvt_pk_fp8_f32(values[0], values[1], 0, false);
  return (u32)__builtin_amdgcn_cvt_pk_fp8_f32(values[2], values[3], low, true);
#else
  u16 low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(values[1]), "f"(values[0]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(values[3]), "f"(values[2]));
  return low | ((u32)high << 16);
#endif
}

// Clamp to [low, high]; NaN stays NaN.
MI300_DEVICE float clamp(float value, float low, float high) {
#if defined(__AMDGCN__)
  float clamped = __builtin_amdgcn_fmed3f(value, low, high);
  return is_nan(value) ? value : clamped;
#else
  float clamped;
  asm("{ .reg .f32 raised;\n max.NaN.f32 raised, %1, %2;\n min.NaN.f32 %0, raised, %3; }"
      : "=f"(clamped)
      : "f"(value), "f"(low), "f"(high));
  return clamped;
#endif
}

// 0x80 in each byte of `word` that equals `byte`, 0 in the others.
MI300_DEVICE u32 bytes_equal(u32 word, u32 byte) {
  u32 difference = word ^ (byte * 0x01010101u);
  return ~(((difference & 0x7f7f7f7fu) + 0x7f7f7f7fu) | difference | 0x7f7f7f7fu);
}

// Four values in the e4m3 format that is not native, by the native instruction: e4m3fn codes are
// e4m3fnuz codes of half the value, save for zero's sign, NaN and the topmost code. Values are
// clamped to the format's range, NaN kept.
MI300_DEVICE u32 twin_fp8_code4(const float* values) {
#if defined(__AMDGCN__)
  float halves[4] = {values[0] * 0.5f, values[1] * 0.5f, values[2] * 0.5f, values[3] * 0.5f};
  u32 codes = native_fp8_code4(halves);
  u32 nan = bytes_equal(codes, 0x80);
  u32 low = __builtin_amdgcn_perm(bit_cast<u32>(values[1]), bit_cast<u32>(values[0]), 0x0c0c0703);
  u32 high = __builtin_amdgcn_perm(bit_cast<u32>(values[3]), bit_cast<u32>(values[2]), 0x07030c0c);
  return (codes & 0x7f7f7f7fu) | ((low | high) & 0x80808080u) | (nan - (nan >> 7));
#else
  float doubles[4] = {values[0] * 2.0f, values[1] * 2.0f, values[2] * 2.0f, values[3] * 2.0f};
  u32 codes = native_fp8_code4(doubles);
  u32 nan = bytes_equal(codes & 0x7f7f7f7fu, 0x7f);
  codes ^= bytes_equal(codes, 0x80);
  // What rounds to 240, which would be e4m3fn's 480, saturated one code below.
  for (u32 i = 0; i < 4; ++i) codes |= (abs_bits(values[i]) > bit_cast<u32>(232.0f)) << (8 * i);
  return (codes & ~((nan >> 7) * 0xff)) | nan;
#endif
}

constexpr MI300_DEVICE bool is_e4m3(Dtype type) {
  return type == Dtype::kE4m3fn || type == Dtype::kE4m3fnuz;
}

// Four values in an e4m3 format, first in the lowest byte; clamped to its range, NaN kept.
MI300_DEVICE u32 e4m3_code4(Dtype type, const float* values) {
  return type == kNativeFp8 ? native_fp8_code4(values) : twin_fp8_code4(values);
}

}  // namespace mi300
