// FP8 codes of scaled bfloat16 values by a table of their 128 mantissas, where the CPU has VBMI.
//
// A power of two in y is the same power in y / s, so a code is one that belongs to y's mantissa,
// plus a step for each power of two: integer work on 32 elements at a time, half of what computing
// the quotients takes. That holds where the result is normal; smaller ones are left to the caller.
#pragma once

#include "fp8.h"

#if defined(__AVX512VBMI__)
namespace mi300 {

template <typename Format>
class CodeTable {
 public:
  // Makes the table, unless it is made for this factor and bound already. `scale(v)` is the scaled
  // value; values with that exponent are scaled to between 1 and 4. `bound` is the largest value.
  template <typename F>
  void prepare(float factor, float bound, int32_t exponent, F&& scale) {
    if (C10_LIKELY(factor == factor_ && bound == bound_)) return;
    factor_ = factor;
    bound_ = bound;
    for (int32_t i = 0; i < 128; i += 16) {
      const IntVec bits = shift_left<16>(IntVec::arange(i, 1)) + IntVec(exponent << 23);
      const __m512i codes = encode_magnitude<Format>(scale(as_floats(bits)));
      _mm_store_si128(reinterpret_cast<__m128i*>(codes_ + i), _mm512_cvtepi32_epi8(codes));
    }
    int32_t largest[kLanes];
    encode_magnitude<Format>(Vec(bound)).store(largest);
    largest_code_ = largest[0] & 0x7f;
    offset_ = exponent << kMantissa;
    // Below it codes are 0: the scaled value is at most half the smallest subnormal.
    tiny_ = (exponent - Format::kBias - kMantissa - 1) << 7;
    first_ = first_normal(exponent);
  }

  // Stores the codes of 32 elements; false, and rubbish stored, if one is NaN or not normal.
  C10_ALWAYS_INLINE bool store(__m512i words, uint8_t* q) const {
    const __m512i magnitude = _mm512_and_si512(words, splat(0x7fff));
    const __mmask32 is_subnormal =
        _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, splat(tiny_)), splat(first_ - tiny_));
    const __mmask32 is_nan = _mm512_cmpgt_epu16_mask(magnitude, splat(0x7f80));
    const __m512i low = _mm512_load_si512(codes_), high = _mm512_load_si512(codes_ + 64);
    const __m512i base = _mm512_and_si512(_mm512_permutex2var_epi8(low, words, high), splat(0xff));
    const __m512i powers =
        _mm512_and_si512(_mm512_srli_epi16(words, 7 - kMantissa), splat(0xff << kMantissa));
    const __m512i code = _mm512_min_epu16(
        _mm512_subs_epu16(_mm512_add_epi16(base, powers), splat(offset_)), splat(largest_code_));
    __m512i coded = or_and(IntVec(code), IntVec(_mm512_srli_epi16(words, 8)), IntVec(0x00800080));
    if constexpr (!Format::kHasNegativeZero) {
      coded = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(code, code), coded);
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm512_cvtepi16_epi8(coded));
    return _kortestz_mask32_u8(is_subnormal, is_nan) != 0;
  }

 private:
  static constexpr int kMantissa = Format::kMantissa;

  C10_ALWAYS_INLINE static __m512i splat(int32_t value) {
    return _mm512_set1_epi16(static_cast<short>(value));
  }

  // Bits of the smallest magnitude whose code, by the table, is that of a normal value. Codes grow
  // with magnitudes.
  int32_t first_normal(int32_t exponent) const {
    int32_t below = (exponent - Format::kBias - 2) << 7, at = (exponent + 1 - Format::kBias) << 7;
    while (at - below > 1) {
      const int32_t middle = (below + at) / 2;
      const int32_t code = codes_[middle & 127] + ((middle >> 7) << kMantissa) - offset_;
      (code < (1 << kMantissa) ? below : at) = middle;
    }
    return at;
  }

  alignas(64) uint8_t codes_[128];
  float factor_ = 0.0f, bound_ = 0.0f;
  int32_t offset_, largest_code_, tiny_, first_;
};

}  // namespace mi300
#endif
