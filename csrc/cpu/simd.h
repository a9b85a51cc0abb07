// Vector building blocks of the CPU kernels: loads, stores and roundings between float32 and the
// 16-bit types, and selections, on at::vec.
//
// Kernels work on chunks of float32 in L1. A chunk buffer is padded to whole units, so only reads
// from and writes to tensors have tails; padding holds finite zeros after a load. The only
// conditions on the instruction set are here and in fp8.h.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/core/ScalarType.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace mi300 {

using Vec = at::vec::Vectorized<float>;
using IntVec = at::vec::Vectorized<int32_t>;

// One unit is what one 16-bit vector holds: two float vectors.
constexpr int64_t kLanes = Vec::size();
constexpr int64_t kUnit = 2 * kLanes;

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

struct Pair {
  Vec low, high;
};

// f(low half) and f(high half).
template <typename F>
C10_ALWAYS_INLINE Pair map(F&& f, const Pair& a) {
  return {f(a.low), f(a.high)};
}
template <typename F>
C10_ALWAYS_INLINE Pair map(F&& f, const Pair& a, const Pair& b) {
  return {f(a.low, b.low), f(a.high, b.high)};
}

C10_ALWAYS_INLINE Vec as_floats(const IntVec& v) { return at::vec::cast<float>(v); }
C10_ALWAYS_INLINE IntVec as_ints(const Vec& v) { return at::vec::cast<int32_t>(v); }

// a | (b & c)
C10_ALWAYS_INLINE IntVec or_and(const IntVec& a, const IntVec& b, const IntVec& c) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_ternarylogic_epi32(a, b, c, 0xf8);
#else
  return a | (b & c);
#endif
}

// `then` in the lanes where v is NaN.
C10_ALWAYS_INLINE Vec if_nan(const Vec& v, const Vec& then, const Vec& otherwise) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), then);
#else
  return Vec::blendv(otherwise, then, v != v);
#endif
}

// Whether any lane of the pair is NaN.
C10_ALWAYS_INLINE bool any_nan(const Pair& v) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cmp_ps_mask(v.low, v.high, _CMP_UNORD_Q) != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_movemask_ps(_mm256_cmp_ps(v.low, v.high, _CMP_UNORD_Q)) != 0;
#else
  return v.low.has_inf_nan() || v.high.has_inf_nan();
#endif
}

// Whether any |lane| of the pair is above `bound` or NaN.
C10_ALWAYS_INLINE bool any_beyond(const Pair& v, float bound) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512 limit = _mm512_set1_ps(bound);
  return (_mm512_cmp_ps_mask(_mm512_abs_ps(v.low), limit, _CMP_NLE_UQ) |
          _mm512_cmp_ps_mask(_mm512_abs_ps(v.high), limit, _CMP_NLE_UQ)) != 0;
#elif defined(CPU_CAPABILITY_AVX2)
  const __m256 limit = _mm256_set1_ps(bound);
  const __m256 low = _mm256_cmp_ps(v.low.abs(), limit, _CMP_NLE_UQ);
  const __m256 high = _mm256_cmp_ps(v.high.abs(), limit, _CMP_NLE_UQ);
  return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
#else
  float lanes[kUnit];
  v.low.store(lanes);
  v.high.store(lanes + kLanes);
  return !std::all_of(lanes, lanes + kUnit, [&](float x) { return std::abs(x) <= bound; });
#endif
}

// 1 / d to about 2^-22 or better; d is normal, finite and not huge.
C10_ALWAYS_INLINE Vec approximate_reciprocal(const Vec& d) {
#if defined(CPU_CAPABILITY_AVX512)
  const Vec r = _mm512_rcp14_ps(d);
#elif defined(CPU_CAPABILITY_AVX2)
  const Vec r = _mm256_rcp_ps(d);
#else
  const Vec r = Vec(1.0f) / d;
#endif
  if constexpr (kHasFma) return r * at::vec::fnmadd(d, r, Vec(2.0f));
  return r;
}

C10_ALWAYS_INLINE Pair load_pair(const float* p) { return {Vec::loadu(p), Vec::loadu(p + kLanes)}; }

C10_ALWAYS_INLINE void store_pair(float* p, const Pair& v) {
  v.low.store(p);
  v.high.store(p + kLanes);
}

// Loads and widens a whole unit. at::vec loads one vector and takes it apart; two loads are cheaper.
template <typename T>
C10_ALWAYS_INLINE Pair widen(const T* p) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kLanes));
  if constexpr (std::is_same_v<T, c10::Half>) {
    return {_mm512_cvtph_ps(low), _mm512_cvtph_ps(high)};
  } else {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(low), 16)),
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16))};
  }
#elif defined(CPU_CAPABILITY_AVX2)
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + kLanes));
  if constexpr (std::is_same_v<T, c10::Half>) {
    return {_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
  } else {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
  }
#else
  const auto [low, high] = at::vec::convert_to_float<T>(at::vec::Vectorized<T>::loadu(p));
  return {low, high};
#endif
}

// Loads `count` <= kUnit elements and widens them; missing ones are zero.
template <typename T>
C10_ALWAYS_INLINE Pair load_unit(const T* p, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    if (C10_LIKELY(count == kUnit)) return load_pair(p);
    alignas(64) float padded[kUnit] = {};
    std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(float));
    return load_pair(padded);
  } else {
    alignas(64) T padded[kUnit];
    if (C10_UNLIKELY(count != kUnit)) {
      std::memset(padded, 0, sizeof(padded));
      std::memcpy(padded, p, static_cast<size_t>(count) * sizeof(T));
      p = padded;
    }
    return widen(p);
  }
}

// Rounds to the values that T holds (nearest even).
template <typename T>
C10_ALWAYS_INLINE Vec round_to(const Vec& v) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const IntVec bits = as_ints(v);
    const IntVec odd = (bits >> IntVec(16)) & IntVec(1);
    const IntVec rounded = (bits + IntVec(0x7fff) + odd) & IntVec(-0x10000);
    return if_nan(v, as_floats(IntVec(0x7fc00000)), as_floats(rounded));
  } else if constexpr (std::is_same_v<T, c10::Half>) {
#if defined(CPU_CAPABILITY_AVX512)
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(CPU_CAPABILITY_AVX2)
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    const auto [low, high] = at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(v, v));
    return low;
#endif
  } else {
    return v;
  }
}

template <typename T>
C10_ALWAYS_INLINE Pair round_to(const Pair& v) {
  return {round_to<T>(v.low), round_to<T>(v.high)};
}

template <typename T>
inline float round_scalar(float v) {
  return static_cast<float>(static_cast<T>(v));
}

// Stores the first `count` elements of values that T holds exactly.
template <typename T>
C10_ALWAYS_INLINE void store_rounded(T* p, const Pair& v, int64_t count) {
  alignas(64) T padded[kUnit];
  T* to = C10_LIKELY(count == kUnit) ? p : padded;
  if constexpr (std::is_same_v<T, float>) {
    store_pair(to, v);
#if defined(CPU_CAPABILITY_AVX512)
  } else if constexpr (std::is_same_v<T, c10::BFloat16>) {
    // The upper words of both vectors, in order.
    const __m512i odd_words = _mm512_set_epi16(
        63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19,
        17, 15, 13, 11, 9, 7, 5, 3, 1);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi16(as_ints(v.low), odd_words, as_ints(v.high)));
#endif
  } else {
    at::vec::convert_from_float<T>(v.low, v.high).store(to);
  }
  if (C10_UNLIKELY(count != kUnit)) {
    std::memcpy(p, padded, static_cast<size_t>(count) * sizeof(T));
  }
}

// Rounds to T and stores the first `count` elements.
template <typename T>
C10_ALWAYS_INLINE void store_unit(T* p, const Pair& v, int64_t count) {
  store_rounded<T>(p, round_to<T>(v), count);
}

// Calls f with a value of the C++ type of a floating dtype; callers have checked the dtype.
template <typename F>
inline decltype(auto) with_float_type(c10::ScalarType dtype, F&& f) {
  switch (dtype) {
    case c10::ScalarType::BFloat16:
      return f(c10::BFloat16{});
    case c10::ScalarType::Half:
      return f(c10::Half{});
    default:
      return f(float{});
  }
}

// Calls f(offset, count) for each unit of n elements; inlined, so that whole units have no tails.
template <typename F>
C10_ALWAYS_INLINE void for_units(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kUnit <= n; i += kUnit) f(i, kUnit);
  if (i < n) f(i, n - i);
}

// Largest |p[i]|, NaN if there is one; 0 for n = 0. As integers, magnitudes order like floats and
// NaN is above all.
template <typename T>
inline float max_magnitude(const T* p, int64_t n) {
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int16_t>;
  using BitsVec = at::vec::Vectorized<Bits>;
  constexpr int64_t kStep = BitsVec::size();
  const BitsVec magnitude(std::numeric_limits<Bits>::max());
  BitsVec most(0);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    most = at::vec::maximum(most, BitsVec::loadu(p + i) & magnitude);
  }
  if (i < n) {
    Bits padded[kStep] = {};
    std::memcpy(padded, p + i, static_cast<size_t>(n - i) * sizeof(T));
    most = at::vec::maximum(most, BitsVec::loadu(padded) & magnitude);
  }
  Bits lanes[kStep];
  most.store(lanes);
  const Bits largest = *std::max_element(lanes, lanes + kStep);
  T value;
  std::memcpy(&value, &largest, sizeof(value));
  return static_cast<float>(value);
}

}  // namespace mi300
