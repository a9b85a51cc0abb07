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

  const void* gate;
  const void* up;
  void* q;
  bool is_inside;
  u32 y[kWords];

  // Piece `at` of a row's; clamped into the row, so that loads need no mask.
  static MI300_DEVICE SiluPiece of(const RowArgs& args, i64 row, u32 at) {
    const u32 count = args.hidden / (2 * kWords);
    const u32 bytes = (at < count ? at : count - 1) * (u32)sizeof(Words);
    return {(const char*)args.first + row * args.first_stride * 2 + bytes,
            (const char*)args.second + row * args.second_stride * 2 + bytes,
            (char*)args.q + row * args.hidden + bytes / 2, at < count, {}};
  }

  MI300_DEVICE void keep(Ahead& ahead) {
    gate = ahead.keep(gate);
    up = ahead.keep(up);
    q = ahead.keep(q);
  }

  struct Inputs {
    Words gate, up;
  };
  MI300_DEVICE Inputs load() const { return {load_row<Words>(gate, 0), load_row<Words>(up, 0)}; }

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
    return is_inside ? max_u32(abs_bits(magnitudes.x), abs_bits(magnitudes.y)) : 0;
  }

  MI300_DEVICE void store_y(void* row, u32 at) const {
    Words words;
#pragma unroll
    for (u32 i = 0; i < kWords; ++i) words[i] = y[i];
    if (is_inside) store_row_at(row, at * (u32)sizeof(Words), words);
  }
  MI300_DEVICE void store_codes(const Codes& codes) const {
    if (is_inside) store_row_at(q, 0, codes);
  }

  MI300_DEVICE void finish_static(const RowArgs& args, const Quantizer& quantizer) const {
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
  MI300_DEVICE void finish_dynamic(const RowArgs& args, const ScaleRule<kType>& rule, u32 amax,
                                   const Store& store) const {
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
// NOTE: the kernel behind one of few words is allowed first of all, which spares a short launch
// 0.06 us and costs a matmul behind it the early copy of its weights (runtime/launcher.h,
// follows_own()). In chains of both on an H200 that is 1 % faster at one row and slower at 16.
template <Dtype kType, u32 kWords, Quant kQuant>
MI300_DEVICE void silu_mul_usual(const RowArgs& args) {
  constexpr bool kIsEager = kWords == 2;
  if (kIsEager) allow_next_kernel();
  const i64 row = args.rows == 1 ? 0 : group_index() / args.workgroups;
  const u32 at = (group_index() - (u32)row * args.workgroups) * args.threads + thread_index();
  Ahead ahead;
  auto piece = SiluPiece<kType, kWords>::of(args, row, at);
  piece.keep(ahead);
  ScaleRule<kType> rule = {};
  float* scale = nullptr;
  u32 lanes = 0;
  if constexpr (kQuant == Quant::kPerGroup) {
    rule = ScaleRule<kType>::of(args);
    rule.keep(ahead);
    lanes = ahead.keep(args.group / (2 * kWords));
    const u32 shift = __builtin_ctz(args.group);
    scale = ahead.keep(args.scale + row * (args.hidden >> shift) + (at * 2 * kWords >> shift));
  }
  if (kQuant == Quant::kStatic && thread_index() == 0) prefetch(args.scales[0]);
  ahead.done();
  wait_for_previous_kernel();
  const float s = kQuant == Quant::kStatic ? load_here(args.scales[0]) : 1.0f;
  const auto inputs = piece.load();
  if (!kIsEager) allow_next_kernel();
  Quantizer quantizer = {};
  if constexpr (kQuant == Quant::kStatic) quantizer = Quantizer::native(args, s);
  piece.activate(inputs);
  if constexpr (kQuant == Quant::kNone) {
    piece.store_y((char*)args.y + row * args.hidden * 2, at);
  } else if constexpr (kQuant == Quant::kStatic) {
    piece.finish_static(args, quantizer);
  } else {
    u32 amax[1] = {piece.peak()};
    group_max<128 / (2 * kWords)>(amax, lanes);
    piece.finish_dynamic(args, rule, amax[0], [&](float s) {
      if (piece.is_inside && (at & (lanes - 1)) == 0) store<float>(scale, 0, s);
    });
  }
}

// Per token: a row over a cluster of workgroups.
template <Dtype kType>
MI300_DEVICE void silu_mul_usual_shared(const RowArgs& args) {
  static MI300_LDS RowPeak peak;
  const RowTeam team = RowTeam::shared(args);
  team.open(peak);
  team.announce();
  const PeerRoute route = team.route(peak);
  Ahead ahead;
  auto rule = ScaleRule<kType>::of(args);
  rule.keep(ahead);
  const u32 at = team.rank * team.threads + thread_index();
  auto piece = SiluPiece<kType, 4>::of(args, team.row(), at);
  piece.keep(ahead);
  float* scale = ahead.keep(args.scale + team.row());
  ahead.done();
  wait_for_previous_kernel();
  const auto inputs = piece.load();
  allow_next_kernel();
  team.wait_for_peers();
  piece.activate(inputs);
  team.send(peak, route, wave_max(piece.peak()));
  piece.finish_dynamic(args, rule, team.receive(peak), [&](float s) {
    if (at == 0) store<float>(scale, 0, s);
  });
}

// Per token, many rows: each a workgroup's, of which several share a multiprocessor, so that one loads
// while another waits for its largest element.
template <Dtype kType, u32 kVec>
MI300_DEVICE void silu_mul_usual_row(const RowArgs& args) {
  static MI300_LDS RowPeak peak;
  const RowTeam team = RowTeam::alone(args);
  const auto share = team_share<kVec>(args, team);
  const i64 row = team.row();
  team.open(peak);
  barrier();
  Ahead ahead;
  auto rule = ScaleRule<kType>::of(args);
  rule.keep(ahead);
  float* scale = ahead.keep(args.scale + row);
  ahead.done();
  wait_for_previous_kernel();
  U32x4 gate[kVec], up[kVec];
  share.load(args.first, args.first_stride * 2, row, gate);
  share.load(args.second, args.second_stride * 2, row, up);
  allow_next_kernel();
  u32 y[4 * kVec], amax = 0;
#pragma unroll
  for (u32 v = 0; v < kVec; ++v) {
    U32x4 own;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) y[4 * v + i] = own[i] = activate2<kType>(gate[v][i], up[v][i]);
    const u32 most = largest<kType>(own);
    amax = max_u32(amax, share.has(v) ? most : 0);
  }
  team.send(peak, {}, wave_max(amax));
  const u32 maxima[1] = {team.receive(peak)};
  rule.quantize(args, maxima, y, [&](u32 v, float s, const u32* codes) {
    share.store_row(args.q, row * args.hidden, v, U32x2{codes[0], codes[1]});
    if (v == 0 && thread_index() == 0) store<float>(scale, 0, s);
  });
}

}  // namespace mi300
