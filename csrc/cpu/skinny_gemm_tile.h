// The register tile of the matmul and the sums over lanes that end it.
//
// An output's sum over k is kept in the lanes of one vector: lane l sums the k that are l modulo
// the vector's width, in rising order, and the lanes are added in a fixed tree at the end. No
// blocking enters this order, so an output's bits depend on its own row and column only: not on
// the number of rows, the tile it falls in, or the thread that computes it.
//
// Bound: fused multiply-adds on two ports. A tile of 4 activation rows by kPanel weight rows needs
// 4 + kPanel loads from L1 for 4 * kPanel of them.
#pragma once

#include "skinny_gemm_decode.h"

namespace mi300 {

#if defined(CPU_CAPABILITY_AVX512)
constexpr int kPanel = 6;  // 24 sums, 6 weights and 1 activation vector in 32 registers
#else
constexpr int kPanel = 3;  // 12 sums, 3 weights and 1 activation vector in 16 registers
#endif
constexpr int kTileRows = 4;

// Weight rows in scratch: kStride elements apart, or, with kStride 0, `stride`. Known strides leave
// the inner loop without spilled pointers.
template <typename T, int64_t kStride>
struct WeightRows {
  using Element = T;
  const T* data;
  int64_t stride = kStride;

  const T* row(int p) const { return data + p * (kStride == 0 ? stride : kStride); }
};

// sums[row][panel row] += the products over n (a multiple of kLanes) elements; one vector per sum,
// kSumsStride vectors between the rows' sums. Not inlined, so that it has all registers.
template <int kRows, int64_t kSumsStride, bool kIsFirst, typename Weights>
[[gnu::noinline]] void multiply_tile(const Weights weights, const float* rows,
                                     int64_t rows_stride, int64_t n, float* sums) {
  // Unrolled by decree: an array with a variable index lives in memory.
  Vec acc[kRows][kPanel];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (int p = 0; p < kPanel; ++p) {
      acc[r][p] = kIsFirst ? Vec(0.0f) : Vec::loadu(sums + (r * kSumsStride + p) * kLanes);
    }
  }
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec w[kPanel];
#pragma GCC unroll 6
    for (int p = 0; p < kPanel; ++p) w[p] = load_wide(weights.row(p) + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec a = Vec::loadu(rows + r * rows_stride + i);
#pragma GCC unroll 6
      for (int p = 0; p < kPanel; ++p) acc[r][p] = at::vec::fmadd(a, w[p], acc[r][p]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (int p = 0; p < kPanel; ++p) acc[r][p].store(sums + (r * kSumsStride + p) * kLanes);
  }
}

// multiply_tile for any number of rows.
template <int64_t kSumsStride, bool kIsFirst, typename Weights>
inline void multiply_panel(const Weights& weights, const float* rows, int64_t rows_stride,
                           int64_t row_count, int64_t n, float* sums) {
  int64_t row = 0;
  const auto tile = [&](auto count) {
    multiply_tile<count(), kSumsStride, kIsFirst>(weights, rows + row * rows_stride, rows_stride,
                                                  n, sums + row * kSumsStride * kLanes);
    row += count();
  };
  while (row + kTileRows <= row_count) tile(std::integral_constant<int, kTileRows>{});
  switch (row_count - row) {
    case 3:
      return tile(std::integral_constant<int, 3>{});
    case 2:
      return tile(std::integral_constant<int, 2>{});
    case 1:
      return tile(std::integral_constant<int, 1>{});
  }
}

// Adds up the lanes of kLanes vectors; lane i of the result is the sum of vector i.
inline Vec sum_lanes(const float* vectors) {
#if defined(CPU_CAPABILITY_AVX512)
  __m512 quads[4];
  for (int q = 0; q < 4; ++q) {
    const float* p = vectors + q * 4 * kLanes;
    const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + kLanes);
    const __m512 c = _mm512_loadu_ps(p + 2 * kLanes), d = _mm512_loadu_ps(p + 3 * kLanes);
    const __m512d ab = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d cd = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    quads[q] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  }
  const auto fold = [](__m512 x, __m512 y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
  };
  return fold(fold(quads[0], quads[1]), fold(quads[2], quads[3]));
#elif defined(CPU_CAPABILITY_AVX2)
  __m256 quads[2];
  for (int q = 0; q < 2; ++q) {
    const float* p = vectors + q * 4 * kLanes;
    const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + kLanes);
    const __m256 c = _mm256_loadu_ps(p + 2 * kLanes), d = _mm256_loadu_ps(p + 3 * kLanes);
    const __m256d ab = _mm256_castps_pd(
        _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)));
    const __m256d cd = _mm256_castps_pd(
        _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)));
    quads[q] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
  }
  return _mm256_add_ps(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                       _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
#else
  float sums[kLanes];
  for (int64_t v = 0; v < kLanes; ++v) {
    float lanes[kLanes];
    std::memcpy(lanes, vectors + v * kLanes, sizeof(lanes));
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    sums[v] = lanes[0];
  }
  return Vec::loadu(sums);
#endif
}

}  // namespace mi300
