// Vector building blocks of the CPU kernels: loads, stores and roundings between float32 and the
// 16-bit types on at::vec, and FP8 encoders in integer registers.
//
// Kernels work on chunks of float32 in L1. A chunk buffer is padded to whole units, so only reads
// from and writes to tensors have tails; padding holds finite zeros after a load.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <cstring>

namespace mi300 {

using Vec = at::vec::Vectorized<float>;
using IntVec = at::vec::Vectorized<int32_t>;

// One unit is what one 16-bit vector holds: two float vectors.
constexpr int64_t kLanes = Vec::size();
constexpr int64_t kUnit = 2 * kLanes;

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

struct Pair {
  Vec low, high;
};

inline Pair load_pair(const float* p) { return {Vec::loadu(p), Vec::loadu(p + kLanes)}; }

inline void store_pair(float* p, const Pair& v) {
  v.low.store(p);
  v.high.store(p + kLanes);
}

// Loads `count` <= kUnit elements and widens them; missing ones are zero.
template <typename T>
inline Pair load_unit(const T* p, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    if (count == kUnit) return load_pair(p);
    const int64_t low = std::min(count, kLanes);
    return {Vec::loadu(p, low), Vec::loadu(p + low, count - low)};
  } else {
    using TVec = at::vec::Vectorized<T>;
    const TVec v = count == kUnit ? TVec::loadu(p) : TVec::loadu(p, count);
    const auto [low, high] = at::vec::convert_to_float<T>(v);
    return {low, high};
  }
}

// Rounds to T (nearest even) and stores the first `count` elements.
template <typename T>
inline void store_unit(T* p, const Pair& v, int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    if (count == kUnit) return store_pair(p, v);
    const int64_t low = std::min(count, kLanes);
    v.low.store(p, static_cast<int>(low));
    if (count > low) v.high.store(p + low, static_cast<int>(count - low));
  } else {
    at::vec::convert_from_float<T>(v.low, v.high).store(p, static_cast<int>(count));
  }
}

// Rounds to the values that T holds.
template <typename T>
inline Pair round_to(const Pair& v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    const auto [low, high] =
        at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(v.low, v.high));
    return {low, high};
  }
}

template <typename T>
inline float round_scalar(float v) {
  return static_cast<float>(static_cast<T>(v));
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

// Calls f(offset, count) for each unit of n elements.
template <typename F>
inline void for_units(int64_t n, F&& f) {
  int64_t i = 0;
  for (; i + kUnit <= n; i += kUnit) f(i, kUnit);
  if (i < n) f(i, n - i);
}

// An FP8 format as a float32 sees it. kMaxCode is the code of the largest finite value.
template <int kMantissaBits, int kExponentBias, int kLargest, bool kNegativeZero>
struct Fp8Format {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = kExponentBias;
  static constexpr int kMaxCode = kLargest;
  static constexpr bool kHasNegativeZero = kNegativeZero;
};
using E4m3fn = Fp8Format<3, 7, 0x7e, true>;
using E4m3fnuz = Fp8Format<3, 8, 0x7f, false>;
using E5m2 = Fp8Format<2, 15, 0x7b, true>;

// Codes for values without a finite code: PyTorch's casts differ between formats and versions.
struct Fp8Specials {
  int32_t overflow, infinity, nan;
};

inline IntVec select(const IntVec& if_zero, const IntVec& if_ones, const IntVec& mask) {
  return IntVec::blendv(if_zero, if_ones, mask);
}

// Converts to codes, one per 32-bit lane: nearest even, subnormals included.
template <typename Format>
inline IntVec encode(const Vec& v, const Fp8Specials& specials) {
  constexpr int kShift = 23 - Format::kMantissa;
  constexpr int32_t kMinNormal = (128 - Format::kBias) << 23;
  constexpr int32_t kRebias = (127 - Format::kBias) << 23;
  // Adding 2^(23 - subnormal exponent) makes the FPU round a subnormal's code into the low bits.
  constexpr int32_t kMagic = (128 - Format::kBias + kShift) << 23;
  const IntVec shift(kShift);
  const IntVec bits = at::vec::cast<int32_t>(v);
  const IntVec magnitude = bits & IntVec(0x7fffffff);
  const IntVec sign = (bits >> IntVec(24)) & IntVec(0x80);
  const IntVec odd = (magnitude >> shift) & IntVec(1);
  const IntVec normal =
      (magnitude + odd + IntVec((1 << (kShift - 1)) - 1 - kRebias)) >> shift;
  const Vec magic = at::vec::cast<float>(IntVec(kMagic));
  const IntVec subnormal =
      at::vec::cast<int32_t>(at::vec::cast<float>(magnitude) + magic) - IntVec(kMagic);
  IntVec code = select(normal, subnormal, magnitude < IntVec(kMinNormal));
  code = select(code, IntVec(specials.overflow), code > IntVec(Format::kMaxCode));
  code = select(code, IntVec(specials.infinity), magnitude == IntVec(0x7f800000));
  code = select(code, IntVec(specials.nan), magnitude > IntVec(0x7f800000));
  if constexpr (Format::kHasNegativeZero) return code | sign;
  return select(code | sign, IntVec(0), code == IntVec(0));
}

// Writes the low byte of each lane.
inline void store_bytes(uint8_t* p, const IntVec& low, const IntVec& high) {
#if defined(CPU_CAPABILITY_AVX512)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + kLanes), _mm512_cvtepi32_epi8(high));
#elif defined(CPU_CAPABILITY_AVX2)
  // The packs work within 128-bit halves: [l0 h0 | l1 h1] in dwords, put back in order.
  const __m256i words = _mm256_packus_epi32(low, high);
  const __m256i bytes = _mm256_packus_epi16(words, words);
  const __m256i ordered =
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 3, 6, 7));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(ordered));
#else
  int32_t lanes[kUnit];
  low.store(lanes);
  high.store(lanes + kLanes);
  for (int64_t i = 0; i < kUnit; ++i) p[i] = static_cast<uint8_t>(lanes[i]);
#endif
}

template <typename Format>
inline void store_codes(uint8_t* p, const Pair& v, const Fp8Specials& specials, int64_t count) {
  const IntVec low = encode<Format>(v.low, specials);
  const IntVec high = encode<Format>(v.high, specials);
  if (count == kUnit) return store_bytes(p, low, high);
  uint8_t bytes[kUnit];
  store_bytes(bytes, low, high);
  std::memcpy(p, bytes, static_cast<size_t>(count));
}

// Largest lane, NaN if any lane is NaN.
inline float reduce_max(const Vec& v) {
  float lanes[kLanes];
  v.store(lanes);
  float largest = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) {
    if (!(lanes[i] <= largest) && largest == largest) largest = lanes[i];
  }
  return largest;
}

}  // namespace mi300
