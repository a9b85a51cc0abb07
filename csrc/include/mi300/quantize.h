// FP8 quantisation as the operators define it: scale, round, clamp, convert; scales from amax.
#pragma once

#include <mi300/fp8.h>

namespace mi300 {

constexpr u32 kVector = 8;  // elements a lane handles at once: 16 bytes of bf16 or fp16

// ---- a vector of eight bf16 or fp16 ----

template <Dtype kType>
MI300_DEVICE void unpack8(U32x4 packed, float* values) {
  for (u32 i = 0; i < 4; ++i) {
    Float2 pair = unpack2<kType>(packed[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

template <Dtype kType>
MI300_DEVICE U32x4 pack8(const float* values) {
  U32x4 packed;
  for (u32 i = 0; i < 4; ++i) packed[i] = pack2<kType>(values[2 * i], values[2 * i + 1]);
  return packed;
}

template <Dtype kType>
MI300_DEVICE void round8(float* values) {
  unpack8<kType>(pack8<kType>(values), values);
}

// A scale made ready for many values.
struct Quantizer {
  Divisor by;  // for kMul and kMulReciprocal only `reciprocal` counts: the factor

  MI300_DEVICE static Quantizer of(const RowArgs& args, float s) {
    s = round_to(args.scaled_dtype, s);
    if (args.scaling == Scaling::kDiv) return {Divisor::of(s)};
    return {{1.0f, 1.0f, args.scaling == Scaling::kMul ? s : reciprocal(s)}};
  }

  // The same where the plan found a target path.
  MI300_DEVICE static Quantizer native(const RowArgs& args, float s) {
    if (args.target_path == TargetPath::kDivide) return {Divisor::of(s)};
    return {{1.0f, 1.0f, args.scaling == Scaling::kMul ? s : reciprocal(s)}};
  }

  // One value, any format.
  MI300_DEVICE u8 code(const RowArgs& args, float y) const {
    float v = args.scaling == Scaling::kDiv ? by(y) : y * by.reciprocal;
    v = clamp(round_to(args.scaled_dtype, v), args.clamp_min, args.clamp_max);
    return (u8)fp8_code(args.q_dtype, v, args.overflow);
  }

  // Four values in an e4m3 format that saturates, first in the lowest byte.
  MI300_DEVICE u32 codes4(const RowArgs& args, const float* y) const {
    float v[4];
    if (args.scaling == Scaling::kDiv) {
      for (u32 i = 0; i < 4; ++i) v[i] = by(y[i]);
    } else {
      for (u32 i = 0; i < 4; ++i) v[i] = y[i] * by.reciprocal;
    }
    if (args.scaled_dtype != Dtype::kF32) {
      for (u32 i = 0; i < 4; ++i) v[i] = round_to(args.scaled_dtype, v[i]);
    }
    for (u32 i = 0; i < 4; ++i) v[i] = clamp(v[i], args.clamp_min, args.clamp_max);
    return e4m3_code4(args.q_dtype, v);
  }

  // Whether division needs no scaling, and bounded numerators still reach the format's maximum: fp16
  // has fewer exponents.
  template <Dtype kType>
  MI300_DEVICE bool is_moderate() const {
    const float largest = kType == Dtype::kBf16 ? 0x1p40f : 0x1p7f;
    return by.prescale == 1.0f && by.divisor >= 0x1p-40f && by.divisor <= largest;
  }

  // Four packed values divided, in the native format and its full range; is_moderate() holds.
  template <Dtype kType>
  MI300_DEVICE u32 quotient_codes4(u32 low, u32 high) const {
    const u32 bound = kType == Dtype::kBf16 ? 0x67806780u : 0x7bff7bffu;  // 2^80, 65504
    const u32 pairs[2] = {bound2<kType>(low, bound), bound2<kType>(high, bound)};
    float v[4];
    for (u32 i = 0; i < 4; ++i) {
      const float y = unpack2<kType>(pairs[i / 2])[i % 2];
      const float guess = y * by.reciprocal;
      v[i] = fma(fma(guess, by.divisor, -y), -by.reciprocal, guess);
    }
    return native_fp8_code4(v);
  }

  // Four packed values multiplied, likewise.
  template <Dtype kType>
  MI300_DEVICE u32 product_codes4(u32 low, u32 high) const {
    const u32 pairs[2] = {low, high};
    float v[4];
    for (u32 i = 0; i < 4; ++i) {
      v[i] = unpack2<kType>(pairs[i / 2])[i % 2] * by.reciprocal;
    }
    return native_fp8_code4(v);
  }

  // Four packed values divided by any scale, in the native format and its full range, to which the
  // conversion itself saturates.
  template <Dtype kType>
  MI300_DEVICE u32 any_quotient_codes4(u32 low, u32 high) const {
    const Float2 pairs[2] = {unpack2<kType>(low), unpack2<kType>(high)};
    const float v[4] = {by(pairs[0].x), by(pairs[0].y), by(pairs[1].x), by(pairs[1].y)};
    return native_fp8_code4(v);
  }

  // Codes of words of packed values where the plan found a target path; the path is chosen once.
  // `put(i, code)` takes the code of words 2i and 2i + 1.
  template <Dtype kType, u32 kWords, class Put>
  MI300_DEVICE void native_codes(const RowArgs& args, const u32* words, const Put& put) const {
    if (args.target_path == TargetPath::kMultiply) {
#pragma unroll
      for (u32 i = 0; i < kWords / 2; ++i) {
        put(i, product_codes4<kType>(words[2 * i], words[2 * i + 1]));
      }
    } else if (is_moderate<kType>()) {
#pragma unroll
      for (u32 i = 0; i < kWords / 2; ++i) {
        put(i, quotient_codes4<kType>(words[2 * i], words[2 * i + 1]));
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < kWords / 2; ++i) {
        put(i, any_quotient_codes4<kType>(words[2 * i], words[2 * i + 1]));
      }
    }
  }

  // Of eight packed values.
  template <Dtype kType>
  MI300_DEVICE U32x2 native_codes(const RowArgs& args, U32x4 y) const {
    const u32 words[4] = {y.x, y.y, y.z, y.w};
    U32x2 codes;
    native_codes<kType, 4>(args, words, [&](u32 i, u32 code) { codes[i] = code; });
    return codes;
  }

  // Eight packed values in an e4m3 format that saturates, in two steps that need the registers of one.
  template <Dtype kType>
  MI300_DEVICE U32x2 codes(const RowArgs& args, U32x4 y) const {
    if (kHasPackedMath && args.target_path != TargetPath::kAny) return native_codes<kType>(args, y);
    U32x2 result;
    float values[kVector];
    unpack8<kType>(y, values);
    result.x = codes4(args, values);
    schedule_fence();
    result.y = codes4(args, values + 4);
    return result;
  }
};

// The same quantizer, equal in all lanes, in scalar registers where there are any.
MI300_DEVICE Quantizer uniform(const Quantizer& quantizer) {
  const Divisor& by = quantizer.by;
  return {{wave_uniform(by.prescale), wave_uniform(by.divisor), wave_uniform(by.reciprocal)}};
}

// The same quantizer, worked out here and not where it is first needed.
MI300_DEVICE Quantizer here(const Quantizer& quantizer) {
  const Divisor& by = quantizer.by;
  return {{made_here(by.prescale), made_here(by.divisor), made_here(by.reciprocal)}};
}

// The quantizer that lane `lane` of this wave holds.
MI300_DEVICE Quantizer of_lane(const Quantizer& quantizer, u32 lane) {
  auto read = [lane](float value) { return bit_cast<float>(shuffle(bit_cast<u32>(value), lane)); };
  const Divisor& by = quantizer.by;
  return {{read(by.prescale), read(by.divisor), read(by.reciprocal)}};
}

// The pointer to static scale `index`, without indexing the arguments at run time.
MI300_DEVICE const float* static_scale(const RowArgs& args, u32 index) {
  const float* pointer = args.scales[0];
  if (index == 1) pointer = args.scales[1];
  if (index == 2) pointer = args.scales[2];
  if (index == 3) pointer = args.scales[3];
  return pointer;
}

// Scale of a group whose largest |y| is given; NaN goes through. `in_y` rounds to y's dtype, for the
// forms that round on the way.
template <class InY>
MI300_DEVICE float dynamic_scale(const RowArgs& args, float amax, const InY& in_y) {
  const auto rounded = [&](float value) { return args.is_scale_rounded ? in_y(value) : value; };
  float a = amax < args.amax_min ? args.amax_min : amax;
  float s = args.scale_form == ScaleForm::kAmaxDiv   ? divide(a, args.scale_const)
            : args.scale_form == ScaleForm::kAmaxMul ? a * args.scale_const
            : args.scale_form == ScaleForm::kDivAmax ? divide(args.scale_const, a)
                                                     : rounded(divide(1.0f, a)) * args.scale_const;
  s = rounded(s);
  return s < args.scale_min ? args.scale_min : s;
}

// The same for y of one dtype.
template <Dtype kType>
MI300_DEVICE float dynamic_scale(const RowArgs& args, float amax) {
  return dynamic_scale(args, amax, [](float value) { return round_to<kType>(value); });
}

// The same for the short kernels, which take no form that rounds.
MI300_DEVICE float exact_dynamic_scale(const RowArgs& args, float amax) {
  return dynamic_scale(args, amax, [](float value) { return value; });
}

// Largest |y| of eight packed values, as the bits of a float: NaN is the largest.
template <Dtype kType>
MI300_DEVICE u32 largest(U32x4 y) {
  u32 pair = 0;
  for (u32 i = 0; i < 4; ++i) pair = max_magnitude2(pair, y[i]);
  const Float2 magnitudes = unpack2<kType>(pair);
  return max_u32(abs_bits(magnitudes.x), abs_bits(magnitudes.y));
}

}  // namespace mi300
