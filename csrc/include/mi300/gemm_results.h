// The last steps of a skinny GEMM: scales, bias, addend, rounding and the output, four rows at a time.
#pragma once

#include <mi300/numeric.h>
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

// What four results of neighbouring weight rows are multiplied by, and what is added.
struct Terms {
  Float4 scale = {1, 1, 1, 1};
  Float4 bias = {0, 0, 0, 0};
};

MI300_DEVICE Terms load_terms(const SkinnyGemmArgs& args, float common, u32 column, u32 row) {
  Terms terms;
  terms.scale = Float4{common, common, common, common};
  const bool has_scales = args.scale_b_step != 0 || args.scale_a_step != 0;
  const float scale_a = has_scales ? load<float>(args.scale_a, column * args.scale_a_step) : common;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i >= args.n) continue;
    if (has_scales) {
      terms.scale[i] = scale_a * load<float>(args.scale_b, (row + i) * args.scale_b_step);
    }
    if (args.bias != nullptr) {
      terms.bias[i] = load_float((Dtype)args.bias_type, args.bias, row + i);
    }
  }
  return terms;
}

// Four results of neighbouring weight rows; those past the last row are dropped.
MI300_DEVICE void write_results(const SkinnyGemmArgs& args, const Terms& terms, u32 column, u32 row,
                                Float4 sums) {
  const Dtype type = (Dtype)args.out_type;
  const i64 first = (i64)column * args.n + row;
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i >= args.n) continue;
    float sum = sums[i] * terms.scale[i];
    if (args.bias != nullptr) sum += terms.bias[i];
    if (args.addend != nullptr) {
      sum = round_result(type, sum) + load_float((Dtype)args.addend_type, args.addend,
                                                 column * args.addend_stride + row + i);
    }
    sums[i] = sum;
  }
  if (args.n % 4 == 0 && type != Dtype::kF32) {
    U32x2 packed = type == Dtype::kBf16 ? pack4<Dtype::kBf16>(sums) : pack4<Dtype::kF16>(sums);
    store<U32x2>(args.out, first / 4, packed);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
    if (row + i < args.n) store_float(type, args.out, first + i, sums[i]);
  }
}

// value / divisor by its rounded-up inverse; exact while their product is below 2^32.
MI300_DEVICE u32 divide_by(u32 value, u32 inverse) { return (u32)(((u64)value * inverse) >> 32); }

// The product of two scales of one value each; 1 without scales. Others are read where they apply.
MI300_DEVICE float common_scale(const SkinnyGemmArgs& args) {
  const bool is_common = args.scale_a != nullptr && args.scale_a_step + args.scale_b_step == 0;
  return is_common ? load<float>(args.scale_a, 0) * load<float>(args.scale_b, 0) : 1.0f;
}

// Sums four results' parts of k in order; for targets whose workgroups share no LDS.
MI300_DEVICE void sum_parts(const SkinnyGemmArgs& args, u32 index) {
  const u32 quads = (args.n + 3) / 4;
  if (index >= args.m * quads) return;
  const u32 column = index / quads, row = (index - column * quads) * 4;
  Float4 sums = {};
  for (u32 part = 0; part < args.splits; ++part) {
    const i64 first = ((i64)part * args.m + column) * args.n + row;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if (row + i < args.n) sums[i] += load<float>(args.partial, first + i);
    }
  }
  write_results(args, load_terms(args, common_scale(args), column, row), column, row, sums);
}

}  // namespace mi300
