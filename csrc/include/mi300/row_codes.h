// From y to FP8 codes in the short kernels (sm_90), for the spelling that models have: a scale that is
// the largest magnitude over a constant, y over that scale, the native format in its full range.
//
// Kernels of a few rows take a microsecond, and a jump over code that is not needed or a late read of
// an argument costs a twentieth of it. So what is known ahead of the data is worked out there, one
// condition stands between the short way and the general one, and the short way comes first.
#pragma once

#include <mi300/row_share.h>

namespace mi300 {

MI300_DEVICE bool likely(bool condition) { return __builtin_expect(condition, true); }

// The first lane's value, for all lanes.
MI300_DEVICE float of_first_lane(float value) {
  return bit_cast<float>(shuffle(bit_cast<u32>(value), 0));
}

// What a kernel works out ahead of its data, and then has in registers. Else the compiler does such
// work where it is needed, behind the wait for the kernel ahead: loads go out later, and an argument
// that is read late can miss the constant cache.
class Ahead {
 public:
  MI300_DEVICE Ahead() {
    asm volatile("mov.u32 %0, %%smid;" : "=r"(zero_));
    zero_ >>= 24;  // which the compiler does not know, and so cannot make the value anew
  }

  MI300_DEVICE u32 keep(u32 value) {
    value ^= zero_;
    seen_ |= value;
    return value;
  }
  MI300_DEVICE float keep(float value) { return bit_cast<float>(keep(bit_cast<u32>(value))); }
  template <class T>
  MI300_DEVICE T* keep(T* address) {
    const u64 bits = (u64)address;
    return (T*)((u64)keep((u32)bits) | ((u64)keep((u32)(bits >> 32)) << 32));
  }

  // All is in registers by here: it depends on it whether the kernel goes on. It always does, since an
  // address is not zero.
  MI300_DEVICE void done() const {
    asm volatile("{ .reg .pred p;\n setp.eq.u32 p, %0, 0;\n @p exit; }" ::"r"(seen_) : "memory");
  }

 private:
  u32 zero_, seen_ = 0;
};

// A scale by which values are divided, moderate: no quotient needs scaling on the way.
template <Dtype kType>
struct ShortDivisor {
  float scale, reciprocal;

  static MI300_DEVICE bool takes(float scale) {
    return scale >= 0x1p-40f && scale <= (kType == Dtype::kBf16 ? 0x1p40f : 0x1p7f);
  }

  // The reciprocal is correctly rounded, as reciprocal() is.
  static MI300_DEVICE ShortDivisor of(float scale) {
    const float guess = rcp_approx(scale);
    return {scale, fma(guess, fma(-guess, scale, 1.0f), guess)};
  }

  // Codes of four packed values that are at most a moderate multiple of the scale.
  MI300_DEVICE u32 codes4(u32 low, u32 high) const {
    const Float2 pairs[2] = {unpack2<kType>(low), unpack2<kType>(high)};
    float v[4];
    for (u32 i = 0; i < 4; ++i) {
      const float y = pairs[i / 2][i % 2], guess = y * reciprocal;
      v[i] = fma(fma(guess, scale, -y), -reciprocal, guess);
    }
    return native_fp8_code4(v);
  }
};

// How scales follow from largest magnitudes.
template <Dtype kType>
struct ScaleRule {
  float amax_min, scale_min, constant;
  float reciprocal;  // of the constant where scales are short; else 0, and exact_dynamic_scale() and
                     // Quantizer do it

  static MI300_DEVICE ScaleRule of(const RowArgs& args) {
    return {args.amax_min, args.scale_min, args.scale_const, args.scale_reciprocal};
  }

  MI300_DEVICE void keep(Ahead& ahead) {
    amax_min = ahead.keep(amax_min);
    scale_min = ahead.keep(scale_min);
    constant = ahead.keep(constant);
    reciprocal = ahead.keep(reciprocal);
  }

  // Where scales are short. The quotient is correctly rounded; NaN and infinity go through.
  MI300_DEVICE float scale(float amax) const {
    const float a = amax < amax_min ? amax_min : amax;
    const float guess = a * reciprocal;
    const float exact = fma(fma(guess, constant, -a), -reciprocal, guess);
    const float s = abs_bits(guess) == kInfBits ? guess : exact;
    return s < scale_min ? scale_min : s;
  }

  // Scales of groups by their largest magnitudes, and the codes of each group's words, by pieces of four
  // words at most: `store(i, scale, codes)` keeps piece i and perhaps its group's scale. The short way is
  // taken first, whatever the scales, and what the general one makes of rare scales is stored behind it:
  // between the data and the usual end of a kernel no jump leads over code that is not needed.
  template <u32 kGroups, u32 kWords, class Store>
  MI300_DEVICE void quantize(const RowArgs& args, const u32 (&amax)[kGroups],
                             const u32 (&words)[kWords], const Store& store) const {
    constexpr u32 kEach = kWords / kGroups, kPiece = kEach < 4 ? kEach : 4;
    bool takes_all = reciprocal != 0.0f;
    if (likely(takes_all)) {
#pragma unroll
      for (u32 g = 0; g < kGroups; ++g) {
        const float s = scale(bit_cast<float>(amax[g]));
        takes_all = takes_all && ShortDivisor<kType>::takes(s);
        const auto by = ShortDivisor<kType>::of(s);
#pragma unroll
        for (u32 start = g * kEach; start < (g + 1) * kEach; start += kPiece) {
          u32 codes[kPiece / 2];
#pragma unroll
          for (u32 i = 0; i < kPiece / 2; ++i) {
            codes[i] = by.codes4(words[start + 2 * i], words[start + 2 * i + 1]);
          }
          store(start / kPiece, s, codes);
        }
      }
    }
    if (likely(takes_all)) return;
#pragma unroll
    for (u32 g = 0; g < kGroups; ++g) {
      const float s = exact_dynamic_scale(args, bit_cast<float>(amax[g]));
      const auto by = Quantizer::native(args, s);
#pragma unroll
      for (u32 start = g * kEach; start < (g + 1) * kEach; start += kPiece) {
        u32 piece[kPiece], codes[kPiece / 2];
#pragma unroll
        for (u32 i = 0; i < kPiece; ++i) piece[i] = made_here(words[start + i]);
        by.template native_codes<kType, kPiece>(args, piece,
                                                [&](u32 i, u32 code) { codes[i] = code; });
        store(start / kPiece, s, codes);
      }
    }
  }
};

// Largest values over each half of a wave: two instructions, where lanes_max takes eight.
template <u32 kCount>
MI300_DEVICE void half_wave_max(u32 (&values)[kCount]) {
  static_assert(kHasPackedMath, "for waves of 32 lanes");
  const bool is_low = lane_index() < 16;
#pragma unroll
  for (u32 i = 0; i < kCount; ++i) {
    const u32 low = wave_max(is_low ? values[i] : 0), high = wave_max(is_low ? 0 : values[i]);
    values[i] = is_low ? low : high;
  }
}

// Largest values over each run of `lanes` neighbouring lanes, of which kUsual first.
template <u32 kUsual, u32 kCount>
MI300_DEVICE void group_max(u32 (&values)[kCount], u32 lanes) {
  static_assert(kUsual == kWaveSize || kUsual == kWaveSize / 2);
  if (likely(lanes == kUsual)) {
    if constexpr (kUsual == kWaveSize) {
#pragma unroll
      for (u32 i = 0; i < kCount; ++i) values[i] = wave_max(values[i]);
    } else {
      half_wave_max(values);
    }
  } else {
    lanes_max(values, lanes);
  }
}

// Quantises all vectors of a lane, each with the scale of its group: a power of two of neighbouring
// lanes.
template <Dtype kType, u32 kVec>
MI300_DEVICE void quantize_groups(const RowArgs& args, const RowShare<kVec>& share, void* q,
                                  float* scale, const U32x4* y, const ScaleRule<kType>& rule) {
  const u32 lanes = args.group / kVector;
  u32 amax[kVec], words[4 * kVec];
#pragma unroll
  for (u32 v = 0; v < kVec; ++v) {
    const u32 peak = largest<kType>(y[v]);
    amax[v] = share.has(v) ? peak : 0;
  }
#pragma unroll
  for (u32 i = 0; i < 4 * kVec; ++i) words[i] = y[i / 4][i % 4];
  group_max<128 / kVector>(amax, lanes);
  const u32 shift = __builtin_ctz(lanes);
  rule.quantize(args, amax, words, [&](u32 v, float s, const u32* codes) {
    share.store_row(q, 0, v, U32x2{codes[0], codes[1]});
    if (share.has(v) && (share.index(v) & (lanes - 1)) == 0) {
      store<float>(scale, share.index(v) >> shift, s);
    }
  });
}

}  // namespace mi300
