// FP8 encoders in integer registers: float32 to one code per 32-bit lane, and codes to bytes.
#pragma once

#include "bf16.h"

namespace mi300 {

// An FP8 format as a float32 sees it. kMaxCode is the code of the largest finite value.
template <int kMantissaBits, int kExponentBias, int kLargest, bool kNegativeZero>
struct Fp8Format {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = kExponentBias;
  static constexpr int kMaxCode = kLargest;
  static constexpr bool kHasNegativeZero = kNegativeZero;
  // float32 bits of the smallest normal value, and how far its mantissa is the longer one.
  static constexpr int32_t kMinNormal = (128 - kBias) << 23;
  static constexpr int kShift = 23 - kMantissa;
};
using E4m3fn = Fp8Format<3, 7, 0x7e, true>;
using E4m3fnuz = Fp8Format<3, 8, 0x7f, false>;
using E5m2 = Fp8Format<2, 15, 0x7b, true>;

// Codes for values without a finite code: PyTorch's casts differ between formats and versions.
struct Fp8Specials {
  int32_t overflow, infinity, nan;
};

C10_ALWAYS_INLINE IntVec select(const IntVec& if_zero, const IntVec& if_ones, const IntVec& mask) {
  return IntVec::blendv(if_zero, if_ones, mask);
}

// Any float32, nearest even, subnormals included.
template <typename Format>
inline IntVec encode(const Vec& v, const Fp8Specials& specials) {
  constexpr int kShift = Format::kShift;
  constexpr int32_t kRebias = (127 - Format::kBias) << 23;
  // Adding 2^(23 - subnormal exponent) makes the FPU round a subnormal's code into the low bits.
  constexpr int32_t kMagic = (128 - Format::kBias + kShift) << 23;
  const IntVec shift(kShift);
  const IntVec bits = as_ints(v);
  const IntVec magnitude = bits & IntVec(0x7fffffff);
  const IntVec odd = (magnitude >> shift) & IntVec(1);
  const IntVec normal = (magnitude + odd + IntVec((1 << (kShift - 1)) - 1 - kRebias)) >> shift;
  const IntVec subnormal = as_ints(as_floats(magnitude) + as_floats(IntVec(kMagic))) - IntVec(kMagic);
  IntVec code = select(normal, subnormal, magnitude < IntVec(Format::kMinNormal));
  code = select(code, IntVec(specials.overflow), code > IntVec(Format::kMaxCode));
  code = select(code, IntVec(specials.infinity), magnitude == IntVec(0x7f800000));
  code = select(code, IntVec(specials.nan), magnitude > IntVec(0x7f800000));
  const IntVec with_sign = or_and(code, bits >> IntVec(24), IntVec(0x80));
  if constexpr (Format::kHasNegativeZero) return with_sign;
  return select(with_sign, IntVec(0), code == IntVec(0));
}

// Values that have a finite code, with the sign taken from `sign`; only the low byte is the code.
//
// Adding the power of two whose unit in the last place is that of the code rounds |v| and leaves
// the code's mantissa, implicit bit included, in the low bits of the sum; below the smallest normal
// value that power stays, which makes subnormals. The exponent's share of the code is added after;
// constants of both, modulo 256, are hidden in the power's low bits.
template <typename Format>
C10_ALWAYS_INLINE IntVec encode_finite(const Vec& v, const Vec& sign) {
  constexpr int32_t kOffset = ((Format::kBias - 128) * (1 << Format::kMantissa)) & 0xff;
  static_assert(kOffset % 2 == 0, "an odd offset would turn ties to odd");
  const IntVec bits = as_ints(v);
  const IntVec exponent =
      at::vec::maximum(bits & IntVec(0x7f800000), IntVec(Format::kMinNormal));
  const Vec power = as_floats(exponent + IntVec((Format::kShift << 23) + kOffset));
  const IntVec sum = as_ints(as_floats(bits & IntVec(0x7fffffff)) + power);
  const IntVec code = sum + (exponent >> IntVec(Format::kShift));
  const IntVec sign_bits = as_ints(sign) >> IntVec(24);
  const IntVec with_sign = or_and(code, sign_bits, IntVec(0x80));
  if constexpr (Format::kHasNegativeZero) return with_sign;
  return select(with_sign, IntVec(0), (code & IntVec(0x7f)) == IntVec(0));
}

// |v| for a finite v, at most `bound`.
C10_ALWAYS_INLINE Vec bounded_magnitude(const Vec& v, const Vec& bound) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_range_ps(v, bound, 0b1010);  // the smaller magnitude, without its sign
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_min_ps(v.abs(), bound);
#else
  return at::vec::minimum(v.abs(), bound);
#endif
}

// encode_finite for magnitudes: no sign, and only the low byte is the code.
template <typename Format>
C10_ALWAYS_INLINE IntVec encode_magnitude(const Vec& v) {
  constexpr int32_t kOffset = ((Format::kBias - 128) * (1 << Format::kMantissa)) & 0xff;
  const IntVec exponent =
      at::vec::maximum(as_ints(v) & IntVec(0x7f800000), IntVec(Format::kMinNormal));
  const Vec power = as_floats(exponent + IntVec((Format::kShift << 23) + kOffset));
  return as_ints(v + power) + shift_right<Format::kShift>(exponent);
}

// Writes the first `count` codes of magnitudes, whose even and odd elements are apart, with the
// signs of the bfloat16 elements in `words`.
template <typename Format>
C10_ALWAYS_INLINE void store_signed_bytes(uint8_t* p, const IntVec& even, const IntVec& odd,
                                          const IntVec& words, int64_t count) {
  uint8_t padded[kUnit];
  uint8_t* to = C10_LIKELY(count == kUnit) ? p : padded;
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i codes = _mm512_mask_blend_epi16(0xaaaaaaaa, even, shift_left<16>(odd));
  __m512i coded = or_and(codes, IntVec(_mm512_srli_epi16(words, 8)), IntVec(0x00800080));
  if constexpr (!Format::kHasNegativeZero) {
    const __mmask32 is_nonzero = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x7f));
    coded = _mm512_maskz_mov_epi16(is_nonzero, coded);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(coded));
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256i codes = _mm256_and_si256(_mm256_blend_epi16(even, shift_left<16>(odd), 0xaa),
                                         _mm256_set1_epi16(0x7f));
  const __m256i signs = _mm256_and_si256(_mm256_srli_epi16(words, 8), _mm256_set1_epi16(0x80));
  __m256i coded = _mm256_or_si256(codes, signs);
  if constexpr (!Format::kHasNegativeZero) {
    const __m256i is_zero = _mm256_cmpeq_epi16(codes, _mm256_setzero_si256());
    coded = _mm256_andnot_si256(is_zero, coded);
  }
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(coded, coded), 0b1000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
#else
  int32_t code_lanes[2][kLanes], word_lanes[kLanes];
  even.store(code_lanes[0]);
  odd.store(code_lanes[1]);
  words.store(word_lanes);
  for (int64_t i = 0; i < kUnit; ++i) {
    const int32_t code = code_lanes[i % 2][i / 2] & 0x7f;
    const int32_t sign = (word_lanes[i / 2] >> (i % 2 == 0 ? 8 : 24)) & 0x80;
    const bool is_unsigned = !Format::kHasNegativeZero && code == 0;
    to[i] = static_cast<uint8_t>(is_unsigned ? 0 : code | sign);
  }
#endif
  if (C10_UNLIKELY(count != kUnit)) std::memcpy(p, padded, static_cast<size_t>(count));
}

// Writes the low byte of each lane of the first `count` lanes.
C10_ALWAYS_INLINE void store_bytes(uint8_t* p, const IntVec& low, const IntVec& high,
                                   int64_t count) {
  uint8_t padded[kUnit];
  uint8_t* to = C10_LIKELY(count == kUnit) ? p : padded;
#if defined(CPU_CAPABILITY_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kLanes), _mm512_cvtepi32_epi8(high));
#elif defined(CPU_CAPABILITY_AVX2)
  // The packs work within 128-bit halves: [l0 h0 | l1 h1] in dwords, put back in order.
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i words =
      _mm256_packus_epi32(_mm256_and_si256(low, byte), _mm256_and_si256(high, byte));
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const __m256i ordered =
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 3, 6, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(ordered));
#else
  int32_t lanes[kUnit];
  low.store(lanes);
  high.store(lanes + kLanes);
  for (int64_t i = 0; i < kUnit; ++i) to[i] = static_cast<uint8_t>(lanes[i]);
#endif
  if (C10_UNLIKELY(count != kUnit)) std::memcpy(p, padded, static_cast<size_t>(count));
}

}  // namespace mi300
