// Operands as the matrix unit takes them: bf16, with two k of a row side by side.
//
// FP8 codes come to bf16 by a table (skinny_gemm_gather.h), divided by kFp16Scale, 64 of a row at a
// time; the interleaving of a code's two bytes leaves each half of every 16 codes in a tile of its
// own. Activations and weights are dealt to tiles alike, so the order of k does not matter to a
// product; it is the same for all rows and columns.
#pragma once

#include "skinny_gemm_gather.h"

#if defined(__AVX512VBMI__)
namespace mi300 {

// Bytes of a tile, 16 rows of 64, and how much of k two of them hold.
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kTileRowBytes = 64;
constexpr int64_t kGroupDepth = 64;

template <typename T>
constexpr bool kHasPairs = Decoded<T>::kIsFp8 || std::is_same_v<T, c10::BFloat16>;

// Two tiles from kGroupDepth elements of 16 rows: line i has pair i of every row.
template <typename T>
class PairPacker {
 public:
  void pack(const char* const* rows, char* out) const {
    for (int64_t piece = 0; piece < kGroupDepth / 8; ++piece) {
      const Quad dwords = transpose_dwords(load_pieces(rows, piece * kPieceBytes));
      for (int64_t i = 0; i < 4; ++i) {
        store_bytes_of(out + (4 * piece + i) * kTileRowBytes, dwords.v[i]);
      }
    }
  }
};

template <typename T>
  requires(Decoded<T>::kIsFp8)
class PairPacker<T> {
 public:
  void pack(const char* const* rows, char* out) const {
    for (int64_t piece = 0; piece < kGroupDepth / 16; ++piece) {
      const Quad words = transpose_words(load_pieces(rows, piece * kPieceBytes));
      for (int64_t i = 0; i < 4; ++i) {
        const auto [even, odd] = widener_.widen(words.v[i]);
        char* to = out + i / 2 * kTileBytes + (4 * piece + i % 2 * 2) * kTileRowBytes;
        store_bytes_of(to, even);
        store_bytes_of(to + kTileRowBytes, odd);
      }
    }
  }

 private:
  CodeWidener<T> widener_;
};

// One row of both tiles from kGroupDepth elements of a row.
template <typename T>
class RowWidener {
 public:
  void widen(const char* in, char* first, char* second) const {
    std::memcpy(first, in, kTileRowBytes);
    std::memcpy(second, in + kTileRowBytes, kTileRowBytes);
  }
};

template <typename T>
  requires(Decoded<T>::kIsFp8)
class RowWidener<T> {
 public:
  void widen(const char* in, char* first, char* second) const {
    const auto [low, high] = widener_.widen(load_bytes(in));
    store_bytes_of(first, low);
    store_bytes_of(second, high);
  }

 private:
  CodeWidener<T> widener_;
};

}  // namespace mi300
#endif
