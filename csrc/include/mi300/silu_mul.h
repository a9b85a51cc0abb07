// SiLU(gate) * up with FP8 quantisation: flat for static and per-group scales, by rows per token.
//
// Bound: memory. 4 bytes read and 1 written an element per static scale (2 more for y). Flat: a lane
// takes kVec vectors of eight elements and needs nobody else (per group: a few neighbours). Rows: a
// team holds y, finds its largest element with one barrier and converts.
#pragma once

#include <mi300/row_share.h>

namespace mi300 {

// y of eight elements, packed; roundings on the way where the arguments say. bf16 takes the short
// exponential: its error cannot be seen behind the rounding to bf16.
template <Dtype kType>
MI300_DEVICE U32x4 activate(const RowArgs& args, U32x4 gate, U32x4 up) {
  auto over_one_plus_exp = [](float numerator, float g) {
    return kType == Dtype::kBf16 ? divide_by_one_plus_exp_fast(numerator, g)
                                 : divide_by_one_plus_exp(numerator, g);
  };
  float g[kVector], y[kVector];
  unpack8<kType>(gate, g);
  if (args.sigmoid_dtype == Dtype::kNone) {
    for (u32 i = 0; i < kVector; ++i) y[i] = over_one_plus_exp(g[i], g[i]);
  } else {
    for (u32 i = 0; i < kVector; ++i) y[i] = over_one_plus_exp(1.0f, g[i]);
    if (args.sigmoid_dtype != Dtype::kF32) round8<kType>(y);
    for (u32 i = 0; i < kVector; ++i) y[i] *= g[i];
  }
  if (args.inner_dtype != Dtype::kF32) {
    U32x4 rounded = pack8<kType>(y);
    for (u32 i = 0; i < 4; ++i) rounded[i] = mul2<kType>(rounded[i], up[i]);
    return rounded;
  }
  unpack8<kType>(up, g);
  for (u32 i = 0; i < kVector; ++i) y[i] *= g[i];
  return pack8<kType>(y);
}

template <Dtype kType, u32 kVec, Quant kQuant>
MI300_DEVICE void silu_mul_flat(const RowArgs& args) {
  wait_for_previous_kernel();
  const u32 row_index = args.rows == 1 ? 0 : group_index() / args.workgroups;
  const u32 chunk = group_index() - row_index * args.workgroups;
  const i64 row = row_index;
  const RowShare<kVec> share = RowShare<kVec>::of(args, chunk * args.threads * kVec, args.threads);
  U32x4 gate[kVec], up[kVec];
  share.load(args.first, args.first_stride * 2, row, gate);
  share.load(args.second, args.second_stride * 2, row, up);
  allow_next_kernel();
  const bool is_static = kQuant == Quant::kStatic && args.q != nullptr;
  Quantizer quantizer = {};
  if (is_static) quantizer = Quantizer::of(args, load<float>(args.scales[0], 0));
#pragma unroll
  for (u32 v = 0; v < kVec; ++v) {
    const U32x4 y = activate<kType>(args, gate[v], up[v]);
    if (args.y != nullptr) share.store_row(args.y, row * args.hidden * 2, v, y);
    if constexpr (kQuant == Quant::kPerGroup) {
      quantize_group<kType>(args, share, row, v, y);
    } else if (is_static) {
      share.store_row(args.q, row * args.hidden, v, quantizer.codes<kType>(args, y));
#pragma clang loop unroll(disable)
      for (u32 i = 1; i < args.scale_count; ++i) {
        Quantizer other = Quantizer::of(args, load<float>(static_scale(args, i), 0));
        share.store_row(args.q, i * args.scale_stride + row * args.hidden, v, other.codes<kType>(args, y));
      }
    }
  }
}

template <Dtype kType, u32 kVec>
MI300_DEVICE void silu_mul_per_token(const RowArgs& args) {
  static MI300_LDS RowSlots slots;
  wait_for_previous_kernel();
  const RowTeam team = RowTeam::of(args);
  const RowShare<kVec> share = team_share<kVec>(args, team);
  const i64 row = team.row();
  team.open(slots);
  team.announce();
  U32x4 gate[kVec], up[kVec], rounded[kVec];
  share.load(args.first, args.first_stride * 2, row, gate);
  share.load(args.second, args.second_stride * 2, row, up);
  u32 amax = 0;
#pragma unroll
  for (u32 v = 0; v < kVec; ++v) {
    schedule_fence();
    rounded[v] = activate<kType>(args, gate[v], up[v]);
    if (args.y != nullptr) share.store_row(args.y, row * args.hidden * 2, v, rounded[v]);
    amax = max_u32(amax, share.has(v) ? largest<kType>(rounded[v]) : 0);
  }
  allow_next_kernel();
  team.wait_for_peers();
  const float row_amax = bit_cast<float>(team.max(slots, amax));
  const bool is_writer = thread_index() == 0 && team.rank == 0;
  if (args.amax != nullptr) {
    if (is_writer) store<float>(args.amax, row, row_amax);
    return;
  }
  const float s = dynamic_scale<kType>(args, row_amax);
  if (is_writer) store<float>(args.scale, row, s);
  const Quantizer quantizer = Quantizer::of(args, s);
#pragma unroll
  for (u32 v = 0; v < kVec; ++v) {
    schedule_fence();
    const U32x2 codes = quantizer.codes<kType>(args, packed(rounded[v]));
    share.store_row(args.q, row * args.hidden, v, codes);
  }
}

}  // namespace mi300
