// 16 weight rows to vectors of one k each, for AVX-512: 16 bytes of every row at a time.
//
// Rows l, 4 + l, 8 + l and 12 + l meet in one vector by loads, so that only two steps of the
// transposition cross registers and none crosses 128-bit lanes. Elements are then widened in place.
// With AVX512-VBMI an FP8 code becomes bf16 by looking up both bytes, NaN and subnormals included;
// without it by way of fp16 (skinny_gemm_decode.h), NaN found afterwards.
#pragma once

#include "skinny_gemm_decode.h"

#if defined(CPU_CAPABILITY_AVX512)
namespace mi300 {

constexpr int64_t kPieceBytes = 16;

struct Quad {
  __m512i v[4];
};

// Lane l of vector i holds a piece of row 4 l + i.
inline Quad load_pieces(const char* const* rows, int64_t offset) {
  Quad quad;
  for (int i = 0; i < 4; ++i) {
    const auto piece = [&](int row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset));
    };
    __m512i v = _mm512_castsi128_si512(piece(i));
    v = _mm512_inserti32x4(v, piece(4 + i), 1);
    v = _mm512_inserti32x4(v, piece(8 + i), 2);
    quad.v[i] = _mm512_inserti32x4(v, piece(12 + i), 3);
  }
  return quad;
}

// Vector j has dword j of every row, rows in order.
inline Quad transpose_dwords(const Quad& q) {
  const __m512i a = _mm512_unpacklo_epi32(q.v[0], q.v[1]);
  const __m512i b = _mm512_unpacklo_epi32(q.v[2], q.v[3]);
  const __m512i c = _mm512_unpackhi_epi32(q.v[0], q.v[1]);
  const __m512i d = _mm512_unpackhi_epi32(q.v[2], q.v[3]);
  return {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), _mm512_unpacklo_epi64(c, d),
          _mm512_unpackhi_epi64(c, d)};
}

// Vector j has words 2 j of four rows in each lane's lower half, and words 2 j + 1 in the upper.
inline Quad transpose_words(const Quad& q) {
  const __m512i a = _mm512_unpacklo_epi16(q.v[0], q.v[1]);
  const __m512i b = _mm512_unpacklo_epi16(q.v[2], q.v[3]);
  const __m512i c = _mm512_unpackhi_epi16(q.v[0], q.v[1]);
  const __m512i d = _mm512_unpackhi_epi16(q.v[2], q.v[3]);
  return {_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b), _mm512_unpacklo_epi32(c, d),
          _mm512_unpackhi_epi32(c, d)};
}

inline void store_ints(float* p, __m512i v) { _mm512_storeu_ps(p, _mm512_castsi512_ps(v)); }

// Two k of bf16, one in each word of a row's dword.
template <int64_t kStep>
inline void store_bf16_pairs(__m512i pairs, float* out) {
  store_ints(out, _mm512_slli_epi32(pairs, 16));
  store_ints(out + kStep, _mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
}

// Two k of fp16, one in the lanes' lower halves and one in the upper.
inline void store_fp16_halves(__m512i halves, float* low, float* high) {
  const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
  const __m512i v = _mm512_permutexvar_epi64(order, halves);
  _mm512_storeu_ps(low, _mm512_cvtph_ps(_mm512_castsi512_si256(v)));
  _mm512_storeu_ps(high, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)));
}

template <typename T, int64_t kStep>
struct Widener {
  void store(const Quad& pieces, float* out) {
    if constexpr (std::is_same_v<T, c10::Half>) {
      const Quad words = transpose_words(pieces);
      for (int i = 0; i < 4; ++i) {
        store_fp16_halves(words.v[i], out + 2 * i * kStep, out + (2 * i + 1) * kStep);
      }
    } else {
      const Quad dwords = transpose_dwords(pieces);
      for (int i = 0; i < 4; ++i) {
        if constexpr (std::is_same_v<T, float>) {
          store_ints(out + i * kStep, dwords.v[i]);
        } else {
          store_bf16_pairs<kStep>(dwords.v[i], out + 2 * i * kStep);
        }
      }
    }
  }

  void finish(const char* const*, int64_t, float*) {}
};

#if defined(__AVX512VBMI__)

// The bytes of every code's bf16 value, divided by kFp16Scale, without the sign.
struct CodeTable {
  alignas(64) uint8_t low[128], high[128];
};

template <typename T>
CodeTable make_code_table() {
  CodeTable table;
  for (int code = 0; code < 128; ++code) {
    const float value = static_cast<float>(T(static_cast<uint8_t>(code), T::from_bits()));
    const uint16_t bits = c10::BFloat16(value / Decoded<T>::kFp16Scale).x;
    table.low[code] = static_cast<uint8_t>(bits);
    table.high[code] = static_cast<uint8_t>(bits >> 8);
  }
  return table;
}

// The codes of the lower and of the upper half of each 128-bit lane, as bf16.
struct BothHalves {
  __m512i low, high;
};

// Looks up 64 codes' bf16 values, divided by kFp16Scale.
template <typename T>
class CodeWidener {
 public:
  BothHalves widen(__m512i codes) const {
    __m512i low = _mm512_permutex2var_epi8(low_0_, codes, low_1_);
    __m512i high = _mm512_permutex2var_epi8(high_0_, codes, high_1_);
    // high | (codes & 0x80)
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);
    if constexpr (std::is_same_v<T, c10::Float8_e4m3fnuz>) {
      const __mmask64 is_nan = _mm512_cmpeq_epi8_mask(codes, _mm512_set1_epi8(-128));
      low = _mm512_mask_blend_epi8(is_nan, low, _mm512_set1_epi8(-64));
      high = _mm512_mask_blend_epi8(is_nan, high, _mm512_set1_epi8(0x7f));
    }
    return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
  }

 private:
  static const CodeTable& table() {
    static const CodeTable made = make_code_table<T>();
    return made;
  }
  const CodeTable& table_ = table();
  __m512i low_0_ = load_bytes(table_.low), low_1_ = load_bytes(table_.low + 64);
  __m512i high_0_ = load_bytes(table_.high), high_1_ = load_bytes(table_.high + 64);
};

template <typename T, int64_t kStep>
  requires(Decoded<T>::kIsFp8)
struct Widener<T, kStep> {
  void store(const Quad& pieces, float* out) {
    const Quad words = transpose_words(pieces);
    for (int i = 0; i < 4; ++i) {
      const BothHalves pairs = codes_.widen(words.v[i]);
      store_bf16_pairs<kStep>(pairs.low, out + 4 * i * kStep);
      store_bf16_pairs<kStep>(pairs.high, out + (4 * i + 2) * kStep);
    }
  }

  void finish(const char* const*, int64_t, float*) {}

 private:
  CodeWidener<T> codes_;
};

#else

template <typename T, int64_t kStep>
  requires(Decoded<T>::kIsFp8)
struct Widener<T, kStep> {
  void store(const Quad& pieces, float* out) {
    const Quad words = transpose_words(pieces);
    for (int i = 0; i < 4; ++i) {
      const __m512i codes = words.v[i];
      float* to = out + 4 * i * kStep;
      largest_ = max_bytes(largest_, map_nan<T>(codes));
      store_fp16_halves(codes_to_fp16<T>(_mm512_slli_epi16(codes, 8)), to, to + 2 * kStep);
      store_fp16_halves(codes_to_fp16<T>(codes), to + kStep, to + 3 * kStep);
    }
  }

  // Puts NaN into the first k of each row that has a NaN code.
  void finish(const char* const* rows, int64_t count, float* out) {
    if (!Decoded<T>::kHasFiniteNan || !has_ff(largest_)) return;
    for (int64_t row = 0; row < kLanes; ++row) {
      const T* codes = reinterpret_cast<const T*>(rows[row]);
      const auto is_nan = [](T code) { return std::isnan(static_cast<float>(code)); };
      if (std::any_of(codes, codes + count, is_nan)) {
        out[row] = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

 private:
  // The codes in the upper bytes of the words.
  template <typename U>
  static __m512i codes_to_fp16(__m512i codes) {
    if constexpr (Decoded<U>::kHasFiniteNan) {
      return and_bits(_mm512_srai_epi16(codes, 1), all_words(Decoded<U>::kKeep));
    } else {
      return and_bits(codes, all_words(-0x100));
    }
  }

  Bytes largest_ = all_bytes(0);
};

#endif

// Widens `count` elements of kLanes rows, missing ones (null) as zeros, into out[k * kStep + row].
// Writes up to a whole piece.
template <typename T, int64_t kStep>
void gather_group(const T* const* rows, int64_t count, float* out) {
  constexpr int64_t kPiece = kPieceBytes / static_cast<int64_t>(sizeof(T));
  alignas(64) static constexpr char kZeros[512] = {};
  const char* from[kLanes];
  for (int64_t row = 0; row < kLanes; ++row) {
    from[row] = rows[row] == nullptr ? kZeros : reinterpret_cast<const char*>(rows[row]);
  }
  Widener<T, kStep> widener;
  const int64_t whole = count / kPiece * kPiece;
  for (int64_t k = 0; k < whole; k += kPiece) {
    widener.store(load_pieces(from, k * static_cast<int64_t>(sizeof(T))), out + k * kStep);
  }
  if (whole < count) {
    char rest[kLanes][kPieceBytes] = {};
    const char* ends[kLanes];
    for (int64_t row = 0; row < kLanes; ++row) {
      std::memcpy(rest[row], from[row] + whole * static_cast<int64_t>(sizeof(T)),
                  static_cast<size_t>(count - whole) * sizeof(T));
      ends[row] = rest[row];
    }
    widener.store(load_pieces(ends, 0), out + whole * kStep);
  }
  widener.finish(from, count, out);
}

}  // namespace mi300
#endif
