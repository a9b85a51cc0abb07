// SiLU(gate) * up with FP8 quantisation, flat, for the arguments that models have.
//
// The same results as silu_mul.h, for launches that the plan marks as usual: SiLU in one step, rounded,
// the native FP8 format in its full range and one scale. Bound by latency when rows are few: a lane
// then takes two words (four elements) instead of four, so that more multiprocessors share the
// exponentials. H200, 14336 x 1: 0.81 us, silu_mul.h 1.22.
#pragma once

#include <mi300/row_share.h>

namespace mi300 {

// Two elements of a row of SiLU(gate) * up.
template <Dtype kType>
MI300_DEVICE u32 activate2(u32 gate, u32 up) {
  const Float2 g = unpack2<kType>(gate);
  Float2 act;
  for (u32 i = 0; i < 2; ++i) {
    act[i] = kType == Dtype::kBf16 ? divide_by_one_plus_exp_fast(g[i], g[i])
                                   : divide_by_one_plus_exp(g[i], g[i]);
  }
  return mul2<kType>(pack2<kType>(act.x, act.y), up);
}

template <Dtype kType, u32 kWords, Quant kQuant>
MI300_DEVICE void silu_mul_usual(const RowArgs& args) {
  static_assert(kWords == 2 || kWords == 4);
  static_assert(kWords == 4 || kQuant != Quant::kPerGroup);
  using Words = u32 __attribute__((ext_vector_type(kWords)));
  if constexpr (kWords == 2) allow_next_kernel();
  const u32 row_index = args.rows == 1 ? 0 : group_index() / args.workgroups;
  const u32 chunk = group_index() - row_index * args.workgroups;
  const u32 at = chunk * args.threads + thread_index(), count = args.hidden / (2 * kWords);
  const u32 bytes = (at < count ? at : count - 1) * (u32)sizeof(Words);
  const i64 row = row_index;
  if (kQuant == Quant::kStatic && thread_index() == 0) prefetch(args.scales[0]);
  wait_for_previous_kernel();
  const Words gate = load_row<Words>((const char*)args.first + row * args.first_stride * 2, bytes);
  const Words up = load_row<Words>((const char*)args.second + row * args.second_stride * 2, bytes);
  const float s = kQuant == Quant::kStatic ? load_here(args.scales[0]) : 1.0f;
  if constexpr (kWords == 4) allow_next_kernel();
  Words y;
#pragma unroll
  for (u32 i = 0; i < kWords; ++i) y[i] = activate2<kType>(gate[i], up[i]);
  if constexpr (kQuant == Quant::kPerGroup) {
    quantize_groups<kType>(args, RowShare<1>{at, 0, count}, row, &y);
  } else if (at < count) {
    if constexpr (kQuant == Quant::kNone) {
      store_row_at((char*)args.y + row * args.hidden * 2, bytes, y);
    } else {
      u32 words[kWords];
      u32 __attribute__((ext_vector_type(kWords / 2))) codes;
#pragma unroll
      for (u32 i = 0; i < kWords; ++i) words[i] = y[i];
      Quantizer::native(args, s).template native_codes<kType, kWords>(
          args, words, [&](u32 i, u32 code) { codes[i] = code; });
      store_row_at((char*)args.q + row * args.hidden, bytes / 2, codes);
    }
  }
}

}  // namespace mi300
