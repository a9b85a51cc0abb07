// gate / (1 + exp(-gate)) and the sigmoid, in vectors.
//
// exp(-gate) = 2^n * 2^f with |f| <= 1/2: f is gate * -log2(e) - n in two fused steps, 2^f a
// polynomial (relative error 2e-9, fitted for this file), n is added to the exponent. The quotient
// comes from an approximate reciprocal and its own remainder. Both are within one ulp of the exact
// result; gates for which 2^n or the quotient would leave the normal range take the plain formula.
#pragma once

#include "bf16.h"

namespace mi300 {

// exp(80) and its reciprocal are normal, and the quotient's remainder is too.
constexpr float kFastGate = 80.0f;

// 1 + exp(-gate) for |gate| <= kFastGate.
C10_ALWAYS_INLINE Vec one_plus_exp_minus(const Vec& gate) {
  // 1.5 * 2^23: adding it rounds to an integer, which then lies in the low bits.
  const Vec shifter(0x1.8p23f);
  const Vec log2_e(0x1.715476p+0f), log2_e_rest(0x1.4ae0cp-26f);
  const Vec shifted = at::vec::fnmadd(gate, log2_e, shifter);
  const Vec n = shifted - shifter;
  const Vec f = at::vec::fnmadd(gate, log2_e_rest, at::vec::fnmadd(gate, log2_e, n.neg()));
  Vec p(0.00015353362f);
  p = at::vec::fmadd(p, f, Vec(0.0013398874f));
  p = at::vec::fmadd(p, f, Vec(0.009618437f));
  p = at::vec::fmadd(p, f, Vec(0.055503324f));
  p = at::vec::fmadd(p, f, Vec(0.24022648f));
  p = at::vec::fmadd(p, f, Vec(0.6931472f));
  p = at::vec::fmadd(p, f, Vec(1.0f));
  return Vec(1.0f) + as_floats(as_ints(p) + (as_ints(shifted) << IntVec(23)));
}

C10_ALWAYS_INLINE Vec fast_silu(const Vec& gate) {
  const Vec d = one_plus_exp_minus(gate);
  const Vec reciprocal = approximate_reciprocal(d);
  const Vec quotient = gate * reciprocal;
  const Vec silu = at::vec::fmadd(at::vec::fnmadd(quotient, d, gate), reciprocal, quotient);
  // The correction turns -0 into +0.
  return as_floats(or_and(as_ints(silu), as_ints(gate), IntVec(INT32_MIN)));
}

C10_ALWAYS_INLINE Vec fast_sigmoid(const Vec& gate) {
  const Vec d = one_plus_exp_minus(gate);
  const Vec reciprocal = approximate_reciprocal(d);
  return at::vec::fmadd(at::vec::fnmadd(reciprocal, d, Vec(1.0f)), reciprocal, reciprocal);
}

C10_NOINLINE inline Pair silu_any(const Pair& gate) {
  return map([](const Vec& g) { return g / (Vec(1.0f) + g.neg().exp()); }, gate);
}

C10_NOINLINE inline Pair sigmoid_any(const Pair& gate) {
  return map([](const Vec& g) { return Vec(1.0f) / (Vec(1.0f) + g.neg().exp()); }, gate);
}

C10_ALWAYS_INLINE Pair silu(const Pair& gate) {
  if (!kHasFma || C10_UNLIKELY(any_beyond(gate, kFastGate))) return silu_any(gate);
  return {fast_silu(gate.low), fast_silu(gate.high)};
}

C10_ALWAYS_INLINE Pair sigmoid(const Pair& gate) {
  if (!kHasFma || C10_UNLIKELY(any_beyond(gate, kFastGate))) return sigmoid_any(gate);
  return {fast_sigmoid(gate.low), fast_sigmoid(gate.high)};
}

// The bits of kFastGate as a bfloat16.
constexpr int kFastGateWord = 0x42a0;

// silu for |gate| <= kFastGate to 2^-21 for gates up to 20, 2^-19 above: enough where it is rounded
// to bfloat16, which it moves by one in 0.02 % of the elements. The polynomial is 2^-f to 1e-7.
C10_ALWAYS_INLINE Vec short_silu(const Vec& gate) {
  const Vec shifter(0x1.8p23f), log2_e(0x1.715476p+0f);
  const Vec shifted = at::vec::fnmadd(gate, log2_e, shifter);
  const Vec n = shifted - shifter;
  const Vec f = at::vec::fmadd(gate, log2_e, n);
  Vec p(-0.0013264728f);
  p = at::vec::fmadd(p, f, Vec(0.009671513f));
  p = at::vec::fmadd(p, f, Vec(-0.055507336f));
  p = at::vec::fmadd(p, f, Vec(0.24022242f));
  p = at::vec::fmadd(p, f, Vec(-0.693147f));
  p = at::vec::fmadd(p, f, Vec(1.0f));
#if defined(CPU_CAPABILITY_AVX512)
  const Vec power = _mm512_scalef_ps(p, n);
#else
  const Vec power = as_floats(as_ints(p) + shift_left<23>(as_ints(shifted)));
#endif
  return gate * approximate_reciprocal(Vec(1.0f) + power);
}

}  // namespace mi300
