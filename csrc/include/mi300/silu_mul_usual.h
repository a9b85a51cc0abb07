// SiLU(gate) * up with FP8 quantisation for the arguments that models have.
//
// The same results as silu_mul.h, for launches that the plan marks as usual: SiLU in one step, rounded,
// the native FP8 format in its full range and one scale. Bound by latency when rows are few: a lane
// then takes two words (four elements) instead of four, so that more multiprocessors share the
// exponentials. H200, 14336 x 1: 0.81 us, silu_mul.h 1.22.
#pragma once

#include <mi300/row_codes.h>

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

// A lane's kWords neighbouring words of a row.
template <Dtype kType, u32 kWords>
struct SiluPiece {
  static_assert(kWords == 2 || kWords == 4);
  using Words = u32 __attribute__((ext_vector_type(kWords)));
  using Codes = u32 __attribute__((ext_vector_type(kWords / 2)));

  const RowArgs& args;
  const i64 row;
  const u32 at, count;  // which piece of how many in a row
  u32 y[kWords];

  static MI300_DEVICE SiluPiece of(const RowArgs& args, i64 row, u32 at) {
    return {args, row, at, args.hidden / (2 * kWords), {}};
  }

  MI300_DEVICE bool is_inside() const { return at < count; }
  // Clamped into the row, so that loads need no mask.
  MI300_DEVICE u32 bytes() const {
    return (is_inside() ? at : count - 1) * (u32)sizeof(Words);
  }

  struct Inputs {
    Words gate, up;
  };
  MI300_DEVICE Inputs load() const {
    return {load_row<Words>((const char*)args.first + row * args.first_stride * 2, bytes()),
            load_row<Words>((const char*)args.second + row * args.second_stride * 2, bytes())};
  }

  MI300_DEVICE void activate(const Inputs& in) {
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) y[i] = activate2<kType>(in.gate[i], in.up[i]);
  }

  // Largest |y|, as the bits of a float.
  MI300_DEVICE u32 peak() const {
    u32 pair = 0;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) pair = max_magnitude2(pair, y[i]);
    const Float2 magnitudes = unpack2<kType>(pair);
    return is_inside() ? max_u32(abs_bits(magnitudes.x), abs_bits(magnitudes.y)) : 0;
  }

  MI300_DEVICE void store_y() const {
    Words words;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) words[i] = y[i];
    if (is_inside()) store_row_at((char*)args.y + row * args.hidden * 2, bytes(), words);
  }
  MI300_DEVICE void store_codes(const Codes& codes) const {
    if (is_inside()) store_row_at((char*)args.q + row * args.hidden, bytes() / 2, codes);
  }

  MI300_DEVICE void finish_static(const Quantizer& quantizer) const {
    Codes codes;
    if (likely(args.target_path == TargetPath::kDivide && quantizer.is_moderate<kType>())) {
#pragma unroll
      for (u32 i = 0; i < kWords; i += 2) {
        codes[i / 2] = quantizer.quotient_codes4<kType>(y[i], y[i + 1]);
      }
    } else {
      quantizer.native_codes<kType, kWords>(args, y, [&](u32 i, u32 code) { codes[i] = code; });
    }
    store_codes(codes);
  }

  // Codes by the scale that the largest magnitude of the row or group gives; `store(scale)` keeps it.
  template <class Store>
  MI300_DEVICE void finish_dynamic(const ScaleRule<kType>& rule, u32 amax, const Store& store) const {
    const u32 maxima[1] = {amax};
    rule.quantize(args, maxima, y, [&](u32, float scale, const u32* packed) {
      Codes codes;
#pragma unroll
      for (u32 i = 0; i < kWords / 2; ++i) codes[i] = packed[i];
      store_codes(codes);
      store(scale);
    });
  }
};

// Flat: a lane needs nobody else, or per group a few neighbours.
//
// NOTE: the kernel behind one of few words is allowed ahead of the wait, which spares a short launch
// 0.06 us and costs a matmul behind it the early copy of its weights (runtime/launcher.h,
// follows_own()). In chains of both on an H200 that is 1 % faster at one row and slower at 16.
template <Dtype kType, u32 kWords, Quant kQuant>
MI300_DEVICE void silu_mul_usual(const RowArgs& args) {
  constexpr bool kIsEager = kWords == 2;
  const u32 row_index = args.rows == 1 ? 0 : group_index() / args.workgroups;
  const u32 chunk = group_index() - row_index * args.workgroups;
  const u32 at = chunk * args.threads + thread_index();
  auto piece = SiluPiece<kType, kWords>::of(args, row_index, at);
  ScaleRule<kType> rule = {};
  if constexpr (kQuant == Quant::kPerGroup) rule = ScaleRule<kType>::of(args);
  if (kIsEager) allow_next_kernel();
  if (kQuant == Quant::kStatic && thread_index() == 0) prefetch(args.scales[0]);
  wait_for_previous_kernel();
  const float s = kQuant == Quant::kStatic ? load_here(args.scales[0]) : 1.0f;
  const auto inputs = piece.load();
  if (!kIsEager) allow_next_kernel();
  Quantizer quantizer = {};
  if constexpr (kQuant == Quant::kStatic) quantizer = Quantizer::native(args, s);
  piece.activate(inputs);
  if constexpr (kQuant == Quant::kNone) {
    piece.store_y();
  } else if constexpr (kQuant == Quant::kStatic) {
    piece.finish_static(quantizer);
  } else {
    const u32 lanes = args.group / (2 * kWords), shift = __builtin_ctz(lanes);
    u32 amax[1] = {piece.peak()};
    group_max<128 / (2 * kWords)>(amax, lanes);
    piece.finish_dynamic(rule, amax[0], [&](float scale) {
      if (!piece.is_inside() || (at & (lanes - 1)) != 0) return;
      store<float>(args.scale, piece.row * (piece.count >> shift) + (at >> shift), scale);
    });
  }
}

// Per token: a row over a cluster of workgroups.
template <Dtype kType, u32 kWords>
MI300_DEVICE void silu_mul_usual_per_token(const RowArgs& args) {
  static MI300_LDS RowPeak peak;
  const RowTeam team = RowTeam::shared(args);
  team.open(peak);
  team.announce();
  const PeerRoute route = team.route(peak);
  const auto rule = ScaleRule<kType>::of(args);
  const u32 at = team.rank * team.threads + thread_index();
  auto piece = SiluPiece<kType, kWords>::of(args, team.row(), at);
  wait_for_previous_kernel();
  const auto inputs = piece.load();
  allow_next_kernel();
  team.wait_for_peers();
  piece.activate(inputs);
  team.send(peak, route, wave_max(piece.peak()));
  piece.finish_dynamic(rule, team.receive(peak), [&](float scale) {
    if (at == 0) store<float>(args.scale, piece.row, scale);
  });
}

}  // namespace mi300
