// Widening of operand rows: FP8 codes to fp16, and bf16, fp16 and float32 to float32.
//
// Every FP8 value times 2^(bias - 15) is an fp16 value, subnormals included, and the hardware's
// fp16 conversion is not slowed by subnormals. A sign-extended e4m3 code shifted left by 7 has its
// sign and its mantissa where fp16 has them and its exponent in the low four of the five exponent
// bits. The power of two (`kFp16Scale`) is put on the activations. Only the NaN codes come out
// finite: they are looked for in the raw bytes, 64 at a time, and then one NaN is written into the
// row, since every sum over a row with a NaN in it is NaN.
//
// Bound: at one row of activations the weights are read from memory at about 4 bytes per cycle and
// core, so 16 codes have 8 slots of the two vector ports; decode and sum take about 4 (1.0 ns per
// 16 codes in cache at 2.6 GHz, one core, 2026-11).
#pragma once

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e4m3fnuz.h>
#include <c10/util/Float8_e5m2.h>

#include <limits>

#include "simd.h"

namespace mi300 {

template <typename T>
struct Decoded {
  static constexpr bool kIsFp8 = false;
  static constexpr float kFp16Scale = 1.0f;
};

template <>
struct Decoded<c10::Float8_e4m3fn> {
  static constexpr bool kIsFp8 = true;
  static constexpr int kShift = 7;
  static constexpr bool kHasFiniteNan = true;
  static constexpr int kKeep = 0xbf80;
  static constexpr float kFp16Scale = 256.0f;
  // A code is NaN if, with these bits set, it is 0xff.
  static constexpr int kNanSet = 0x80;
  static constexpr int kNanFlip = 0;
};

template <>
struct Decoded<c10::Float8_e4m3fnuz> {
  static constexpr bool kIsFp8 = true;
  static constexpr int kShift = 7;
  static constexpr bool kHasFiniteNan = true;
  static constexpr int kKeep = 0xbf80;
  static constexpr float kFp16Scale = 128.0f;
  // A code is NaN if, with these bits flipped, it is 0xff.
  static constexpr int kNanSet = 0;
  static constexpr int kNanFlip = 0x7f;
};

template <>
struct Decoded<c10::Float8_e5m2> {
  static constexpr bool kIsFp8 = true;
  static constexpr bool kHasFiniteNan = false;
  static constexpr int kShift = 8;
  static constexpr float kFp16Scale = 1.0f;
};

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)

#if defined(CPU_CAPABILITY_AVX512)
using Bytes = __m512i;
inline Bytes load_bytes(const void* p) { return _mm512_loadu_si512(p); }
inline Bytes all_bytes(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
inline Bytes all_words(int v) { return _mm512_set1_epi16(static_cast<int16_t>(v)); }
inline Bytes max_bytes(Bytes a, Bytes b) { return _mm512_max_epu8(a, b); }
inline Bytes or_bits(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
inline Bytes xor_bits(Bytes a, Bytes b) { return _mm512_xor_si512(a, b); }
inline Bytes and_bits(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
inline bool has_ff(Bytes v) { return _mm512_cmpeq_epi8_mask(v, all_bytes(0xff)) != 0; }
// Sign-extends half as many codes as `Bytes` holds.
inline Bytes load_words(const uint8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <int kShift>
inline Bytes shift_words(Bytes v) {
  return _mm512_slli_epi16(v, kShift);
}
inline void store_bytes_of(void* p, Bytes v) { _mm512_storeu_si512(p, v); }
#else
using Bytes = __m256i;
inline Bytes load_bytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline Bytes all_bytes(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
inline Bytes all_words(int v) { return _mm256_set1_epi16(static_cast<int16_t>(v)); }
inline Bytes max_bytes(Bytes a, Bytes b) { return _mm256_max_epu8(a, b); }
inline Bytes or_bits(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
inline Bytes xor_bits(Bytes a, Bytes b) { return _mm256_xor_si256(a, b); }
inline Bytes and_bits(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
inline bool has_ff(Bytes v) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(v, all_bytes(0xff))) != 0;
}
inline Bytes load_words(const uint8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <int kShift>
inline Bytes shift_words(Bytes v) {
  return _mm256_slli_epi16(v, kShift);
}
inline void store_bytes_of(void* p, Bytes v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
#endif

constexpr int64_t kBytes = sizeof(Bytes);

// Maps NaN codes, and no others, to 0xff.
template <typename T>
inline Bytes map_nan(Bytes codes) {
  using Format = Decoded<T>;
  if constexpr (!Format::kHasFiniteNan) return all_bytes(0);
  else if constexpr (Format::kNanSet != 0) return or_bits(codes, all_bytes(Format::kNanSet));
  else return xor_bits(codes, all_bytes(Format::kNanFlip));
}

// Decodes `n` codes, a multiple of kBytes; returns the largest mapped code.
template <typename T>
inline Bytes decode_whole(const uint8_t* codes, int64_t n, c10::Half* out, Bytes largest) {
  using Format = Decoded<T>;
  for (int64_t i = 0; i < n; i += kBytes) {
    for (int64_t half = 0; half < kBytes; half += kBytes / 2) {
      Bytes words = shift_words<Format::kShift>(load_words(codes + i + half));
      if constexpr (Format::kHasFiniteNan) words = and_bits(words, all_words(Format::kKeep));
      store_bytes_of(out + i + half, words);
    }
    if constexpr (Format::kHasFiniteNan) {
      largest = max_bytes(largest, map_nan<T>(load_bytes(codes + i)));
    }
  }
  return largest;
}

// Writes the n codes' values divided by kFp16Scale, and zeros up to `padded`.
template <typename T>
inline void decode_codes(const T* in, int64_t n, int64_t padded, c10::Half* out) {
  const uint8_t* codes = reinterpret_cast<const uint8_t*>(in);
  const int64_t whole = n / kBytes * kBytes;
  Bytes largest = decode_whole<T>(codes, whole, out, all_bytes(0));
  if (whole < n) {
    uint8_t rest[kBytes] = {};
    c10::Half values[kBytes];
    std::memcpy(rest, codes + whole, static_cast<size_t>(n - whole));
    largest = decode_whole<T>(rest, kBytes, values, largest);
    std::memcpy(out + whole, values, static_cast<size_t>(padded - whole) * sizeof(c10::Half));
  }
  if (has_ff(largest)) out[0] = std::numeric_limits<c10::Half>::quiet_NaN();
}

#else

template <typename T>
inline void decode_codes(const T* in, int64_t n, int64_t padded, c10::Half* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]) / Decoded<T>::kFp16Scale;
  std::fill(out + n, out + padded, c10::Half(0.0f));
}

#endif

// Widens n elements to float32, with zeros up to `padded`, the next multiple of kLanes.
template <typename T>
inline void widen(const T* in, int64_t n, int64_t padded, float* out) {
  const int64_t whole = n / kUnit * kUnit;
  for (int64_t i = 0; i < whole; i += kUnit) store_pair(out + i, load_unit(in + i, kUnit));
  if (whole == n) return;
  float rest[kUnit];
  store_pair(rest, load_unit(in + whole, n - whole));
  std::memcpy(out + whole, rest, static_cast<size_t>(padded - whole) * sizeof(float));
}

// Widens n FP8 codes, at most kWidenedAtOnce, or float elements, with zeros up to `padded`; there
// must be room for whole units.
constexpr int64_t kWidenedAtOnce = 512;
template <typename T>
inline void widen_any(const T* in, int64_t n, int64_t padded, float* out) {
  if constexpr (Decoded<T>::kIsFp8) {
    alignas(64) c10::Half halves[kWidenedAtOnce];
    decode_codes(in, n, round_up(n, kUnit), halves);
    widen(halves, round_up(n, kUnit), round_up(n, kUnit), out);
  } else {
    widen(in, n, padded, out);
  }
}

// Brings a line into the caches; any address will do.
constexpr int64_t kLineBytes = 64;
inline void prefetch_line(uintptr_t address) {
  __builtin_prefetch(reinterpret_cast<const void*>(address));
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
constexpr bool kHasFp16 = true;
#else
constexpr bool kHasFp16 = false;
#endif

// One vector of elements as float32. From memory an fp16 vector is one instruction, which also
// spares the register form's shuffle.
inline Vec load_wide(const float* p) { return Vec::loadu(p); }
#if defined(CPU_CAPABILITY_AVX512)
inline Vec load_wide(const c10::Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_wide(const c10::BFloat16* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
#elif defined(CPU_CAPABILITY_AVX2)
inline Vec load_wide(const c10::Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Vec load_wide(const c10::BFloat16* p) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
#else
template <typename T>
inline Vec load_wide(const T* p) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = static_cast<float>(p[i]);
  return Vec::loadu(lanes);
}
#endif

}  // namespace mi300
