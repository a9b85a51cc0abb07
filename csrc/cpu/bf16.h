// bfloat16 rows as vectors of 32-bit words, each of which holds two neighbouring elements.
//
// Even elements are the lower halves of the words, odd ones the upper: two instructions widen a
// vector of words to floats, and after a rounding two put them together again, where elements in
// their order need twice as many. A pair in this file is {even elements, odd elements}.
#pragma once

#include "simd.h"

namespace mi300 {

constexpr int32_t kUpperHalf = static_cast<int32_t>(0xffff0000);

template <int kBits>
C10_ALWAYS_INLINE IntVec shift_left(const IntVec& v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_slli_epi32(v, kBits);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_slli_epi32(v, kBits);
#else
  return v << IntVec(kBits);
#endif
}

// Zeros come in from above.
template <int kBits>
C10_ALWAYS_INLINE IntVec shift_right(const IntVec& v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_srli_epi32(v, kBits);
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_srli_epi32(v, kBits);
#else
  return (v >> IntVec(kBits)) & IntVec((1 << (32 - kBits)) - 1);
#endif
}

// Loads `count` <= kUnit elements; missing ones are zero.
C10_ALWAYS_INLINE IntVec load_words(const c10::BFloat16* p, int64_t count) {
  alignas(64) c10::BFloat16 padded[kUnit];
  if (C10_UNLIKELY(count != kUnit)) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(*p));
    p = padded;
  }
  return IntVec::loadu(p);
}

C10_ALWAYS_INLINE void store_words(c10::BFloat16* p, const IntVec& words, int64_t count) {
  alignas(64) c10::BFloat16 padded[kUnit];
  words.store(C10_LIKELY(count == kUnit) ? p : padded);
  if (C10_UNLIKELY(count != kUnit)) {
    std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(*p));
  }
}

C10_ALWAYS_INLINE Pair widen_words(const IntVec& words) {
  return {as_floats(shift_left<16>(words)), as_floats(words & IntVec(kUpperHalf))};
}

// Floats whose upper halves are rounded to bfloat16 (nearest even); the lower halves are rubbish.
struct RoundedPair {
  IntVec even, odd;

  C10_ALWAYS_INLINE Pair floats() const {
    return {as_floats(even & IntVec(kUpperHalf)), as_floats(odd & IntVec(kUpperHalf))};
  }
  C10_ALWAYS_INLINE IntVec words() const {
    return or_and(shift_right<16>(even), odd, IntVec(kUpperHalf));
  }
};

// NaN stays NaN if its lower half is zero, which is so for results of bfloat16 operands: a NaN that
// is handed on keeps its bits, and a new one is 0x7fc00000 or 0xffc00000.
C10_ALWAYS_INLINE IntVec round_upper_half(const Vec& v) {
  const IntVec bits = as_ints(v);
  const IntVec sum = bits + IntVec(0x7fff);
#if defined(CPU_CAPABILITY_AVX512)
  const __mmask16 is_odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  return _mm512_mask_add_epi32(sum, is_odd, sum, _mm512_set1_epi32(1));
#else
  return sum + (shift_right<16>(bits) & IntVec(1));
#endif
}

C10_ALWAYS_INLINE RoundedPair round_pair(const Pair& v) {
  return {round_upper_half(v.low), round_upper_half(v.high)};
}

// Rounds to Between, which is bfloat16 or, for no rounding, float.
template <typename Between>
C10_ALWAYS_INLINE Pair round_between(const Pair& v) {
  if constexpr (std::is_same_v<Between, float>) return v;
  return round_pair(v).floats();
}

// Whether the magnitude of any element is above that of the bfloat16 with the bits `limit`, or NaN.
template <int kLimit>
C10_ALWAYS_INLINE bool any_word_beyond(const IntVec& words) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i without_sign = _mm512_add_epi16(words, words);
  return _mm512_cmpgt_epu16_mask(without_sign, _mm512_set1_epi16(static_cast<short>(2 * kLimit)));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i without_sign = _mm256_and_si256(words, _mm256_set1_epi16(0x7fff));
  return _mm256_movemask_epi8(_mm256_cmpgt_epi16(without_sign, _mm256_set1_epi16(kLimit))) != 0;
#else
  float limit;
  const int32_t bits = kLimit << 16;
  std::memcpy(&limit, &bits, sizeof(limit));
  return any_beyond(widen_words(words), limit);
#endif
}

// any_word_beyond for n elements.
template <int kLimit>
C10_ALWAYS_INLINE bool any_beyond(const c10::BFloat16* p, int64_t n) {
#if defined(CPU_CAPABILITY_AVX512)
  __m512i most = _mm512_setzero_si512();
  for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
    const __m512i words = load_words(p + i, count);
    most = _mm512_max_epu16(most, _mm512_add_epi16(words, words));
  });
  return _mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16(static_cast<short>(2 * kLimit))) != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  __m256i most = _mm256_setzero_si256();
  for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
    const __m256i words = load_words(p + i, count);
    most = _mm256_max_epi16(most, _mm256_and_si256(words, _mm256_set1_epi16(0x7fff)));
  });
  return _mm256_movemask_epi8(_mm256_cmpgt_epi16(most, _mm256_set1_epi16(kLimit))) != 0;
#else
  bool is_beyond = false;
  for_units(n, [&](int64_t i, int64_t count) {
    is_beyond = is_beyond || any_word_beyond<kLimit>(load_words(p + i, count));
  });
  return is_beyond;
#endif
}

}  // namespace mi300
