// FP8 quantisation as the operators define it: scale, round, clamp, convert; scales from amax.
#pragma once

#include <mi300/fp8.h>

namespace mi300 {

constexpr u32 kVector = 8;  // elements a lane handles at once: 16 bytes of bf16 or fp16

// A scale made ready for many values.
struct Quantizer {
  Divisor by;  // for kMul and kMulReciprocal only `reciprocal` counts: the factor

  MI300_DEVICE static Quantizer of(const RowArgs& args, float s) {
    s = round_to(args.scaled_dtype, s);
    if (args.scaling == Scaling::kDiv) return {Divisor::of(s)};
    return {{1.0f, 1.0f, args.scaling == Scaling::kMul ? s : divide(1.0f, s)}};
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

  // Eight of them, in two steps that need the registers of one.
  MI300_DEVICE U32x2 codes(const RowArgs& args, const float* y) const {
    u32 low = codes4(args, y);
    schedule_fence();
    return {low, codes4(args, y + 4)};
  }
};

// The pointer to static scale `index`, without indexing the arguments at run time.
MI300_DEVICE const float* static_scale(const RowArgs& args, u32 index) {
  const float* pointer = args.scales[0];
  if (index == 1) pointer = args.scales[1];
  if (index == 2) pointer = args.scales[2];
  if (index == 3) pointer = args.scales[3];
  return pointer;
}

// Scale of a group whose largest |y| is given; NaN goes through.
MI300_DEVICE float dynamic_scale(const RowArgs& args, float amax) {
  float a = amax < args.amax_min ? args.amax_min : amax;
  float s = args.scale_form == ScaleForm::kAmaxDiv   ? divide(a, args.scale_const)
            : args.scale_form == ScaleForm::kAmaxMul ? a * args.scale_const
                                                     : divide(args.scale_const, a);
  return s < args.scale_min ? args.scale_min : s;
}

// Largest |y| of eight values, as the bits of a float: NaN is the largest.
MI300_DEVICE u32 largest(const float* y) {
  u32 result = 0;
  for (u32 i = 0; i < kVector; ++i) result = max_u32(result, abs_bits(y[i]));
  return result;
}

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

}  // namespace mi300
