// Arithmetic helpers named by the semantic table: float rules of the ISA that C has no word for.
#pragma once
#include "control.h"

static inline u32 exponent_of(float x) { return from_f32(x) >> 23 & 255; }
static inline int is_denormal(float x) { return fpclassify(x) == FP_SUBNORMAL; }
static inline float flush(float x) { return is_denormal(x) ? copysignf(0.0f, x) : x; }
static inline float quiet(float x) { return as_f32(from_f32(x) | 1u << 22); }
static inline int is_signaling(float x) { return isnan(x) && !(from_f32(x) >> 22 & 1); }

// IEEE mode: a signalling NaN is quieted and returned, a quiet one gives way to a number.
static inline float min_f32(float a, float b) {
  if (is_signaling(a)) return quiet(a);
  if (is_signaling(b)) return quiet(b);
  if (isnan(a)) return b;
  if (isnan(b)) return a;
  if (a == 0 && b == 0) return signbit(a) ? a : b;
  return a < b ? a : b;
}
static inline float max_f32(float a, float b) {
  if (is_signaling(a)) return quiet(a);
  if (is_signaling(b)) return quiet(b);
  if (isnan(a)) return b;
  if (isnan(b)) return a;
  if (a == 0 && b == 0) return signbit(a) ? b : a;
  return a >= b ? a : b;
}
static inline float med3_f32(float a, float b, float c) {
  if (isnan(a) || isnan(b) || isnan(c)) return min_f32(min_f32(a, b), c);
  float high = max_f32(max_f32(a, b), c);
  return high == a ? max_f32(b, c) : high == b ? max_f32(a, c) : max_f32(a, b);
}
static inline double min_f64(double a, double b) { return fmin(a, b); }
static inline double max_f64(double a, double b) { return fmax(a, b); }

// The documented error of these instructions is below 1 ulp. With launch->noise an inexact result
// is one of the two neighbours of the exact one, chosen by its bits: code that relies on the last
// bit is found, and equal operands still give equal results.
static float inexact(Wave *w, double exact) {
  float x = (float)exact;
  Launch *launch = w->group->launch;
  if (!launch->noise || (double)x == exact || !isnormal(x)) return flush(x);
  u32 hash = (from_f32(x) ^ launch->noise) * 2654435761u;
  if (hash >> 31) return flush(x);
  return flush(as_f32(from_f32(x) + (fabs((double)x) < fabs(exact) ? 1 : -1)));
}
static inline float rcp_f32(Wave *w, float x) { return inexact(w, 1.0 / (double)flush(x)); }
static inline float rsq_f32(Wave *w, float x) { return inexact(w, 1.0 / sqrt((double)flush(x))); }
static inline float sqrt_f32(Wave *w, float x) { return inexact(w, sqrt((double)flush(x))); }
static inline float exp_f32(Wave *w, float x) { return inexact(w, exp2((double)flush(x))); }
static inline float log_f32(Wave *w, float x) { return inexact(w, log2((double)flush(x))); }

// Division helpers. a is the operand to scale, b the denominator, c the numerator.
// NOTE: when both 1/b and c/b are denormal the denominator is scaled DOWN: scaling it up, as the
// manual's text says, overflows.
static float div_scale(float a, float b, float c, u32 *vcc) {
  float scaled = a;
  *vcc = 0;
  if (b == 0 || c == 0) return NAN;
  int inverse_denormal = is_denormal(1.0f / b), quotient_denormal = is_denormal((float)((double)c / b));
  if ((int)exponent_of(c) - (int)exponent_of(b) >= 96) {
    *vcc = 1;
    if (a == b) scaled = ldexpf(a, 64);
  } else if (is_denormal(b)) {
    scaled = ldexpf(a, 64);
  } else if (inverse_denormal && quotient_denormal) {
    *vcc = 1;
    if (a == b) scaled = ldexpf(a, -64);
  } else if (inverse_denormal) {
    scaled = ldexpf(a, -64);
  } else if (quotient_denormal) {
    *vcc = 1;
    if (a == c) scaled = ldexpf(a, 64);
  } else if (exponent_of(c) <= 23) {
    scaled = ldexpf(a, 64);
  }
  return scaled;
}
// NOTE: rounded once, after scaling: rounding before it too would spoil subnormal quotients.
static float div_fmas(float a, float b, float c, u32 scaled) {
  if (!scaled) return fmaf(a, b, c);
  long double exact = (long double)a * (long double)b + (long double)c;
  return (float)ldexpl(exact, exponent_of(c) > 127 ? 64 : -64);
}
// a is the quotient, b the denominator, c the numerator.
static float div_fixup(float a, float b, float c) {
  int negative = !!signbit(b) != !!signbit(c);
  float sign = negative ? -1.0f : 1.0f;
  if (isnan(c)) return quiet(c);
  if (isnan(b)) return quiet(b);
  if ((b == 0 && c == 0) || (isinf(b) && isinf(c))) return as_f32(0xffc00000u);
  if (b == 0 || isinf(c)) return sign * INFINITY;
  if (isinf(b) || c == 0) return sign * 0.0f;
  if ((int)exponent_of(c) - (int)exponent_of(b) < -150) return sign * 0.0f;
  if (isnan(a)) return sign * INFINITY;  // the expansion overflowed on its way
  return sign * fabsf(a);
}

static inline i32 f32_to_i32(double x) {
  return isnan(x) ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (i32)x;
}
static inline u32 f32_to_u32(double x) {
  return isnan(x) || x <= 0 ? 0 : x >= 4294967295.0 ? UINT32_MAX : (u32)x;
}
static inline f16 toward_zero_f16(float x) {
  f16 h = (f16)x;
  if (isnan(x) || isinf(x) || (fabsf((float)h) <= fabsf(x) && !isinf((float)h))) return h;
  return as_f16(from_f16(h) - 1);
}
static inline i32 frexp_exponent(float x) {
  int exponent = 0;
  if (isnan(x) || isinf(x)) return 0;
  frexpf(x, &exponent);
  return exponent;
}
static inline float frexp_mantissa(float x) {
  int exponent;
  return isnan(x) || isinf(x) ? x : frexpf(x, &exponent);
}
static inline u32 sext24(u32 x) { return (u32)((i32)(x << 8) >> 8); }
static inline u32 bits_below(u32 n) { return n >= 32 ? ~0u : (1u << n) - 1; }
static inline u32 reverse_bits(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; k++) r |= (x >> k & 1) << (31 - k);
  return r;
}
static inline u32 leading_zeros(u32 x) { return x ? (u32)__builtin_clz(x) : ~0u; }
static inline u32 trailing_zeros(u32 x) { return x ? (u32)__builtin_ctz(x) : ~0u; }
// Index of the highest bit that differs from the sign, counted from the top.
static inline u32 leading_signs(u32 x) { return leading_zeros((i32)x < 0 ? ~x : x); }

static u32 permute_bytes(u32 high, u32 low, u32 selector) {
  u64 bytes = (u64)high << 32 | low;
  u32 out = 0;
  for (int k = 0; k < 4; k++) {
    u32 s = selector >> 8 * k & 255, byte;
    if (s >= 13) byte = 0xff;
    else if (s == 12) byte = 0;
    else if (s >= 8) byte = bytes >> (16 * (s - 8) + 15) & 1 ? 0xff : 0;
    else byte = (u32)(bytes >> 8 * s) & 255;
    out |= byte << 8 * k;
  }
  return out;
}

// Bits of the class mask: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal,
// +normal, +inf.
static u32 in_class(u32 category, int negative, int signaling, u32 mask) {
  u32 bit = category == FP_NAN ? (signaling ? 0 : 1)
      : category == FP_INFINITE ? (negative ? 2 : 9)
      : category == FP_NORMAL ? (negative ? 3 : 8)
      : category == FP_SUBNORMAL ? (negative ? 4 : 7) : (negative ? 5 : 6);
  return mask >> bit & 1;
}
static inline u32 class_f32(float x, u32 mask) {
  return in_class((u32)fpclassify(x), signbit(x) != 0, is_signaling(x), mask);
}
static inline u32 class_f16(f16 x, u32 mask) {
  u32 bits = from_f16(x), magnitude = bits & 0x7fff;
  u32 category = magnitude > 0x7c00 ? FP_NAN : magnitude == 0x7c00 ? FP_INFINITE
      : magnitude >= 0x400 ? FP_NORMAL : magnitude ? FP_SUBNORMAL : FP_ZERO;
  return in_class(category, bits >> 15, !(bits >> 9 & 1), mask);
}

// v_fma_mix: op_sel_hi makes a source fp16, op_sel then picks its half; neg_hi is |x|.
// immediate: 0 writes fp32, 1 the low and 2 the high half as fp16.
static void fma_mix(Wave *w, const Instruction *i) {
  float x[3][kLanes];
  u32 value[kLanes];
  for (int k = 0; k < 3; k++) {
    const Operand *o = &i->o[k + 1];
    int is_half = i->op_sel_hi >> k & 1, high = i->op_sel >> k & 1;
    if (o->kind == kVector)
      check_vector_read(w, o->reg, exec_of(w), is_half ? (high ? kHighHalf : kLowHalf) : kBothHalves);
    u32 scalar = o->kind == kVector ? 0 : scalar32(w, i, k + 1);
    for (int l = 0; l < kLanes; l++) {
      u32 bits = o->kind == kVector ? w->v[o->reg][l] : scalar;
      float f = is_half ? (float)as_f16(bits >> 16 * high) : as_f32(bits);
      if (o->modifiers & kAbs) f = fabsf(f);
      x[k][l] = o->modifiers & kNeg ? -f : f;
    }
  }
  u32 to = i->immediate, half = to == 2 ? 16 : 0;
  for (int l = 0; l < kLanes; l++) {
    double exact = (double)x[0][l] * (double)x[1][l] + (double)x[2][l];
    float f = clamp_omod(i, fmaf(x[0][l], x[1][l], x[2][l]));
    u32 old = w->v[i->o[0].reg][l] & ~(0xffffu << half);
    value[l] = to ? old | from_f16(i->flags & kClamp ? (f16)f : (f16)exact) << half : from_f32(f);
  }
  put_lanes(w, i->o[0].reg, value, exec_of(w), to == 0 ? kBothHalves : to == 1 ? kLowHalf : kHighHalf);
}
