// The last steps of a skinny GEMM: scales, bias, addend, rounding, quantisation and the output, four
// rows at a time.
#pragma once

#include <mi300/fp8.h>
#include <mi300/skinny_gemm_args.h>

namespace mi300 {

MI300_DEVICE float round_result(Dtype type, float value) {
  if (type == Dtype::kBf16) return round_to<Dtype::kBf16>(value);
  if (type == Dtype::kF16) return round_to<Dtype::kF16>(value);
  return value;
}

template <Dtype kType>
MI300_DEVICE U32x2 pack4(Float4 values) {
  return U32x2{pack2<kType>(values.x, values.y), pack2<kType>(values.z, values.w)};
}

// What four results of neighbouring weight rows are multiplied by, and what is added: as loaded, for
// whatever is computed of a load waits for it.
struct Terms {
  float scale_a = 1;
  Float4 scale_b = {1, 1, 1, 1};
  U32x4 bias = {0, 0, 0, 0};  // bits of args.bias_type
};

MI300_DEVICE u32 load_bits(Dtype type, const void* base, u32 index) {
  return type == Dtype::kF32 ? load<u32>(base, index) : load<u16>(base, index);
}

MI300_DEVICE float bits_to_float(Dtype type, u32 bits) {
  if (type == Dtype::kBf16) return bit_cast<float>(bits << 16);
  if (type == Dtype::kF16) return (float)bit_cast<_Float16>((u16)bits);
  return bit_cast<float>(bits);
}

// The product that a team works on: 0, 1 or 2.
MI300_DEVICE u32 set_of_team(const SkinnyGemmArgs& args, u32 team) {
  return team < args.more[0].first_team ? 0 : team < args.more[1].first_team ? 1 : 2;
}

MI300_DEVICE GemmSet pick_set(const SkinnyGemmArgs& args, u32 index) {
#if defined(__AMDGCN__)
  // By its address: a choice of values would hold those of all sets in scalar registers.
  const SkinnyGemmArgs* all = read_again(&args);
  return index == 0 ? *(const GemmSet*)all : all->more[index - 1];
#else
  GemmSet set = args;
  if (index == 1) set = args.more[0];
  if (index == 2) set = args.more[1];
  return set;
#endif
}

MI300_DEVICE Terms load_terms(const SkinnyGemmArgs& args, const GemmSet& set, u32 column, u32 row) {
  Terms terms;
  if (set.scale_a != nullptr) {
    terms.scale_a = load<float>(set.scale_a, column * args.scale_a_step);
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i >= set.n) continue;
    if (set.scale_b != nullptr) {
      terms.scale_b[i] = load<float>(set.scale_b, (row + i) * args.scale_b_step);
    }
    if (set.bias != nullptr) {
      terms.bias[i] = load_bits((Dtype)args.bias_type, set.bias, row + i);
    }
  }
  return terms;
}

// Quantises four results of neighbouring weight rows.
MI300_DEVICE void write_codes(const SkinnyGemmArgs& args, const GemmSet& set, i64 first, u32 row,
                              Float4 sums) {
  const GemmQuant& quant = read_again(&args)->quant;
  const float scale = load<float>(quant.scale, 0);
  // One formula for all scalings, so that it needs no branches: either number is 1.
  const bool is_division = quant.scaling == Scaling::kDiv;
  const Divisor by = Divisor::of(is_division ? scale : 1.0f);
  const float other = quant.scaling == Scaling::kMul ? scale : reciprocal(scale);
  const float factor = is_division ? 1.0f : other;
  float values[4];
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    const float y = round_result((Dtype)args.out_type, sums[i]);
    values[i] = clamp(by(y * factor), quant.clamp_min, quant.clamp_max);
  }
  const u32 codes = native_fp8_code4(values);
  if (set.n % 4 == 0) return store<u32>(set.out, first / 4, codes);
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i < set.n) store<u8>(set.out, first + i, (u8)(codes >> (8 * i)));
  }
}

// Four results of neighbouring weight rows; those past the last row are dropped.
MI300_DEVICE void write_results(const SkinnyGemmArgs& args, const GemmSet& set, const Terms& terms,
                                u32 column, u32 row, Float4 sums) {
  const Dtype type = (Dtype)args.out_type;
  const i64 first = (i64)column * set.n + row;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i >= set.n) continue;
    float sum = sums[i] * (terms.scale_a * terms.scale_b[i]);
    if (set.bias != nullptr) sum += bits_to_float((Dtype)args.bias_type, terms.bias[i]);
    if (args.addend != nullptr) {
      sum = round_result(type, sum) + load_float((Dtype)args.addend_type, args.addend,
                                                 column * args.addend_stride + row + i);
    }
    sums[i] = sum;
  }
  if (args.quant.scale != nullptr) return write_codes(args, set, first, row, sums);
  if (set.n % 4 == 0 && type != Dtype::kF32) {
    U32x2 packed = type == Dtype::kBf16 ? pack4<Dtype::kBf16>(sums) : pack4<Dtype::kF16>(sums);
    store<U32x2>(set.out, first / 4, packed);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i < set.n) store_float(type, set.out, first + i, sums[i]);
  }
}

// value / divisor by its rounded-up inverse; exact while their product is below 2^32.
MI300_DEVICE u32 divide_by(u32 value, u32 inverse) { return (u32)(((u64)value * inverse) >> 32); }

// Sums four results' parts of k in order; for targets whose workgroups share no LDS. The quads of
// all products follow one another.
MI300_DEVICE void sum_parts(const SkinnyGemmArgs& args, u32 index) {
  GemmSet set = pick_set(args, 0);
  for (u32 next = 1; next <= 2 && index >= args.m * ((set.n + 3) / 4); ++next) {
    index -= args.m * ((set.n + 3) / 4);
    set = pick_set(args, next);
  }
  const u32 quads = (set.n + 3) / 4;
  if (index >= args.m * quads) return;
  const u32 column = index / quads, row = (index - column * quads) * 4;
  Float4 sums = {};
  for (u32 part = 0; part < args.splits; ++part) {
    const i64 first = ((i64)part * args.m + column) * set.n + row;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if (row + i < set.n) sums[i] += load<float>(set.partial, first + i);
    }
  }
  write_results(args, set, load_terms(args, set, column, row), column, row, sums);
}

}  // namespace mi300
