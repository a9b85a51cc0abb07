// Numbers on both GPU targets: dtypes, conversions to the bit, exp2, reciprocals and divisions.
//
// Every rounding is to nearest, ties to even. NaN stays NaN (its payload is not kept).
#pragma once

#include <mi300/memory.h>
#include <mi300/row_args.h>

namespace mi300 {

constexpr u32 kSignBit = 0x80000000u;
constexpr u32 kInfBits = 0x7f800000u;

MI300_DEVICE u32 abs_bits(float value) { return bit_cast<u32>(value) & ~kSignBit; }
MI300_DEVICE bool is_nan(float value) { return value != value; }
MI300_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MI300_DEVICE float copy_sign(float magnitude, float sign) {
  return bit_cast<float>(abs_bits(magnitude) | (bit_cast<u32>(sign) & kSignBit));
}

// ---- hardware approximations: within 1 ulp (exp2 within 2); exp2 and rcp flush subnormals ----

MI300_DEVICE float exp2_approx(float value) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_exp2f(value);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#endif
}

MI300_DEVICE float rcp_approx(float value) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_rcpf(value);
#else
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#endif
}

MI300_DEVICE float rsqrt_approx(float value) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_rsqf(value);
#else
  float result;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
#endif
}

// ---- bf16 and fp16, two to a 32-bit register ----

// The two high halves after rounding. NOTE: a NaN survives because its low half is zero: NaNs come
// from 16-bit inputs or from the hardware (0x7fc00000). For others there is round_to(type, value).
MI300_DEVICE u32 bf16_rounded(float value) {
  u32 bits = bit_cast<u32>(value);
  return bits + 0x7fff + ((bits >> 16) & 1);
}

// Rounds both and packs them, `low` in the low half.
template <Dtype kType>
MI300_DEVICE u32 pack2(float low, float high) {
  static_assert(kType == Dtype::kBf16 || kType == Dtype::kF16);
  if constexpr (kType == Dtype::kBf16) {
#if defined(__AMDGCN__)
    return __builtin_amdgcn_perm(bf16_rounded(high), bf16_rounded(low), 0x07060302);
#else
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
  } else {
#if defined(__AMDGCN__)
    return bit_cast<u16>((_Float16)low) | ((u32)bit_cast<u16>((_Float16)high) << 16);
#else
    u32 packed;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
#endif
  }
}

template <Dtype kType>
MI300_DEVICE Float2 unpack2(u32 packed) {
  static_assert(kType == Dtype::kBf16 || kType == Dtype::kF16);
  if constexpr (kType == Dtype::kBf16) {
    return {bit_cast<float>(packed << 16), bit_cast<float>(packed & 0xffff0000u)};
  } else {
    return {(float)bit_cast<_Float16>((u16)packed), (float)bit_cast<_Float16>((u16)(packed >> 16))};
  }
}

// Sum and product of two packed pairs, rounded once: what fp32 arithmetic and one rounding give.
template <Dtype kType>
MI300_DEVICE u32 add2(u32 a, u32 b) {
#if defined(__AMDGCN__)
  const Float2 sum = unpack2<kType>(a) + unpack2<kType>(b);
  return pack2<kType>(sum.x, sum.y);
#else
  u32 sum;
  if constexpr (kType == Dtype::kBf16) {
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  } else {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  }
  return sum;
#endif
}

template <Dtype kType>
MI300_DEVICE u32 mul2(u32 a, u32 b) {
#if defined(__AMDGCN__)
  const Float2 product = unpack2<kType>(a) * unpack2<kType>(b);
  return pack2<kType>(product.x, product.y);
#else
  u32 product;
  if constexpr (kType == Dtype::kBf16) {
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  } else {
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  }
  return product;
#endif
}

// The packed pair with magnitudes up to `bound` (both halves of it); NaN stays NaN.
template <Dtype kType>
MI300_DEVICE u32 bound2(u32 pair, u32 bound) {
  u32 bounded = pair;
#if defined(__AMDGCN__)
  (void)bound;  // never called: kHasPackedMath is false
#else
  if constexpr (kType == Dtype::kBf16) {
    asm("min.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(bounded) : "r"(pair), "r"(bound));
  } else {
    asm("min.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(bounded) : "r"(pair), "r"(bound));
  }
#endif
  return bounded;
}

// Larger magnitudes of two packed pairs, as bits without signs: they order as numbers, NaN on top.
MI300_DEVICE u32 max_magnitude2(u32 largest, u32 pair) {
  const u32 magnitudes = pair & 0x7fff7fffu;
#if defined(__AMDGCN__)
  return max_u32(largest & 0xffff0000u, magnitudes & 0xffff0000u) |
         max_u32(largest & 0xffffu, magnitudes & 0xffffu);
#else
  u32 result;
  asm("max.u16x2 %0, %1, %2;" : "=r"(result) : "r"(largest), "r"(magnitudes));
  return result;
#endif
}

template <Dtype kType>
MI300_DEVICE float round_to(float value) {
  if constexpr (kType == Dtype::kF32) {
    return value;
  } else {
    return unpack2<kType>(pack2<kType>(value, 0.0f)).x;
  }
}

// Rounds any value, NaN of any payload among them.
MI300_DEVICE float round_to(Dtype type, float value) {
  if (is_nan(value)) return bit_cast<float>(0x7fc00000u);
  if (type == Dtype::kBf16) return round_to<Dtype::kBf16>(value);
  if (type == Dtype::kF16) return round_to<Dtype::kF16>(value);
  return value;
}

// ---- one element of a dtype that is known at run time only ----

MI300_DEVICE float load_float(Dtype type, const void* base, i64 index) {
  if (type == Dtype::kF32) return load<float>(base, index);
  u16 bits = load<u16>(base, index);
  return type == Dtype::kBf16 ? bit_cast<float>((u32)bits << 16) : (float)bit_cast<_Float16>(bits);
}

MI300_DEVICE void store_float(Dtype type, void* base, i64 index, float value) {
  if (type == Dtype::kF32) {
    store<float>(base, index, value);
  } else if (type == Dtype::kBf16) {
    store<u16>(base, index, (u16)(bit_cast<u32>(round_to(type, value)) >> 16));
  } else {
    store<u16>(base, index, bit_cast<u16>((_Float16)value));
  }
}

// ---- division and its relatives ----

// To [-limit, limit]; any number for NaN.
MI300_DEVICE float bounded(float value, float limit) {
#if defined(__AMDGCN__)
  return __builtin_amdgcn_fmed3f(value, -limit, limit);
#else
  return __nvvm_fmin_f(__nvvm_fmax_f(value, -limit), limit);
#endif
}

// Both correctly rounded.
MI300_DEVICE float divide(float a, float b) { return a / b; }
MI300_DEVICE float reciprocal(float value) {
#if defined(__AMDGCN__)
  return divide(1.0f, value);
#else
  return __nvvm_rcp_rn_f(value);
#endif
}

// Many numbers divided by one, each quotient correctly rounded: multiply by the correctly rounded
// reciprocal, then correct by the exact remainder (Markstein). The sign and the extremes of the
// exponent go into a factor for the numerator, so that divisor and reciprocal are normal numbers.
struct Divisor {
  float prescale, divisor, reciprocal;

  MI300_DEVICE static Divisor of(float s) {
    float magnitude = bit_cast<float>(abs_bits(s));
    float factor = magnitude < 0x1p-64f ? 0x1p64f : magnitude > 0x1p64f ? 0x1p-64f : 1.0f;
    float divisor = magnitude * factor;
    bool is_infinite = bit_cast<u32>(divisor) == kInfBits;
    return {copy_sign(factor, s), is_infinite ? 1.0f : divisor, mi300::reciprocal(divisor)};
  }

  // NOTE: the signs are arranged so that a zero keeps its own; the bound keeps the remainder of an
  // infinite guess from being NaN.
  MI300_DEVICE float operator()(float y) const {
    float scaled = y * prescale;
    float guess = bounded(scaled * reciprocal, 0x1p100f);
    return fma(fma(guess, divisor, -scaled), -reciprocal, guess);
  }
};

// 1 / sqrt(value). On sm_90 the instruction as it is: eager's torch.rsqrt there, within 1 ulp for
// subnormals too. On gfx942 a Newton step on the hardware's guess; subnormals are scaled into range.
MI300_DEVICE float rsqrt(float value) {
#if !defined(__AMDGCN__)
  return rsqrt_approx(value);
#else
  bool is_tiny = value < 0x1p-100f;
  float scaled = is_tiny ? value * 0x1p64f : value;
  float guess = rsqrt_approx(scaled);
  float refined = guess * fma(-0.5f * scaled * guess, guess, 1.5f);
  bool is_regular = guess > 0.0f && guess < 0x1p126f;
  return (is_regular ? refined : guess) * (is_tiny ? 0x1p32f : 1.0f);
#endif
}

// exp(-value) to about 2 ulp: the product with log2(e) is carried in two parts.
MI300_DEVICE float exp_negative(float value) {
  constexpr float kLog2e = 1.44269504f, kLog2eRest = 1.92596299e-8f, kLn2 = 0.693147181f;
  float high = -value * kLog2e;
  float rest = fma(-value, kLog2eRest, fma(-value, kLog2e, -high));
  float power = exp2_approx(high);
  float corrected = fma(power, rest * kLn2, power);
  return is_nan(corrected) ? power : corrected;
}

// numerator / (1 + exp(-gate)) to about 1 ulp; numerator = gate gives SiLU, 1 the sigmoid.
MI300_DEVICE float divide_by_one_plus_exp(float numerator, float gate) {
  float denominator = 1.0f + exp_negative(gate);
  bool is_huge = denominator > 0x1p64f;  // its reciprocal would leave the normal range
  float scaled = is_huge ? denominator * 0x1p-64f : denominator;
  float reciprocal = rcp_approx(scaled);
  float guess = numerator * reciprocal;
  float exact = fma(fma(-guess, scaled, numerator), reciprocal, guess);
  float quotient = is_nan(exact) ? guess : exact;
  return is_huge ? quotient * 0x1p-64f : quotient;
}

// The same to about 1 + |gate| ulp of fp32, far inside a rounding to bf16: a third of the
// instructions. All is scaled by a quarter, so that the reciprocal is normal (or, where exp overflows
// fp32, zero) for every gate.
MI300_DEVICE float divide_by_one_plus_exp_fast(float numerator, float gate) {
  float power = exp2_approx(fma(gate, -1.44269504f, -2.0f));
  return (numerator * 0.25f) * rcp_approx(power + 0.25f);
}

}  // namespace mi300
