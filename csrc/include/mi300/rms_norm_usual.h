// Residual add, RMSNorm and FP8 quantisation of one row a team, for the arguments that models have.
//
// The same results as rms_norm.h, for launches that the plan marks as usual: a weight, one of the two
// roundings that models spell, the native FP8 format in its full range, no other copy of y. What is
// known needs no branches and few registers, and the order is that of need:
//   ahead of the kernel before: mailboxes, and what it does not write comes to the L2;
//   then all loads; while the sums of squares travel, residual_out is stored and the scales are made
//   ready; then y and the codes. H200, 16384 x 1: 1.3 us, rms_norm.h with the same clusters 2.3.
#pragma once

#include <mi300/row_codes.h>

namespace mi300 {

// What a row's arguments come to.
struct NormPlaces {
  const char* first;
  const char* second;
  char* residual_out;
  char* q;
  float* scale;
  float inverse_hidden, eps;

  static MI300_DEVICE NormPlaces of(const RowArgs& args, i64 row, Quant quant) {
    const u32 scales = quant == Quant::kPerGroup ? args.hidden >> __builtin_ctz(args.group) : 1;
    return {(const char*)args.first + row * args.first_stride * 2,
            (const char*)args.second + row * args.second_stride * 2,
            (char*)args.residual_out + row * args.hidden * 2,
            (char*)args.q + row * args.hidden,
            args.scale + row * scales,
            args.inverse_hidden,
            args.eps};
  }

  MI300_DEVICE void keep(Ahead& ahead) {
    first = ahead.keep(first);
    second = ahead.keep(second);
    residual_out = ahead.keep(residual_out);
    q = ahead.keep(q);
    scale = ahead.keep(scale);
    inverse_hidden = ahead.keep(inverse_hidden);
    eps = ahead.keep(eps);
  }
};

// kIsShared: a row over a cluster of workgroups, else one each.
template <Dtype kType, u32 kVec, Quant kQuant, bool kIsShared>
struct UsualNorm {
  // Many long rows: the weight, which the L1 has, and the rule of the scales wait until registers are
  // free, so that two workgroups share a multiprocessor.
  static constexpr bool kIsLate = kVec == 4 && !kIsShared;
  static constexpr bool kHasRule = kQuant == Quant::kPerToken || kQuant == Quant::kPerGroup;

  const RowArgs& args;
  const RowTeam team;
  RowShare<kVec> share;
  const i64 row;
  NormPlaces kept;  // worked out ahead of the data if rows are few
  U32x4 h[kVec];  // x, then the sum, then y
  U32x4 other[kVec];
  U32x4 weight[kVec];

  static MI300_DEVICE RowTeam team_of(const RowArgs& args) {
    return kIsShared ? RowTeam::shared(args) : RowTeam::alone(args);
  }

  MI300_DEVICE NormPlaces places() const {
    if (kIsShared) return kept;
    return NormPlaces::of(args, row, kQuant);
  }

  // What a long model has pushed out of the L2 by now. x is the work of the kernel ahead.
  MI300_DEVICE void prefetch_constants(const float* scale) const {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      prefetch((const char*)args.weight + share.offset(v));
      if (args.second != nullptr) prefetch(places().second + share.offset(v));
    }
    if (kQuant == Quant::kStatic && wave_index() == 0) prefetch(scale);
  }

  // Issues all loads; returns this lane's static scale: lane i has that of result i.
  MI300_DEVICE float load_all(const float* scale) {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      h[v] = load_row<U32x4>(places().first, share.offset(v));
      if (args.second != nullptr) other[v] = load_row<U32x4>(places().second, share.offset(v));
    }
    const float s = kQuant == Quant::kStatic ? load_here(scale) : 1.0f;
    if (!kIsLate) load_weight();
    return s;
  }

  MI300_DEVICE void load_weight() {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) weight[v] = load_at<U32x4>(args.weight, share.offset(v));
  }

  // h becomes the sum; returns this lane's sum of squares.
  MI300_DEVICE float add_and_square() {
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      float part[2] = {0.0f, 0.0f};
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        if (args.second != nullptr) h[v][i] = add2<kType>(h[v][i], other[v][i]);
        const Float2 pair = unpack2<kType>(h[v][i]);
        part[0] = fma(pair.x, pair.x, part[0]);
        part[1] = fma(pair.y, pair.y, part[1]);
      }
      for (u32 i = 0; i < 2; ++i) squares[i] += share.has(v) ? part[i] : 0.0f;
    }
    return squares[0] + squares[1];
  }

  // h becomes y.
  MI300_DEVICE void normalise(float rstd) {
    if (likely(args.norm_path == NormPath::kRoundedTwice)) {
#pragma unroll
      for (u32 i = 0; i < 4 * kVec; ++i) {
        const Float2 pair = unpack2<kType>(h[i / 4][i % 4]) * rstd;
        h[i / 4][i % 4] = mul2<kType>(pack2<kType>(pair.x, pair.y), weight[i / 4][i % 4]);
      }
    } else {
#pragma unroll
      for (u32 i = 0; i < 4 * kVec; ++i) {
        Float2 pair = unpack2<kType>(h[i / 4][i % 4]) * rstd;
        pair *= unpack2<kType>(weight[i / 4][i % 4]) + args.weight_offset;
        h[i / 4][i % 4] = pack2<kType>(pair.x, pair.y);
      }
    }
  }

  // `code4(low, high)` gives the codes of two words of y.
  template <class Code4>
  MI300_DEVICE void store_codes(i64 start, const Code4& code4) const {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const U32x2 codes = {code4(h[v].x, h[v].y), code4(h[v].z, h[v].w)};
      share.store_row(places().q, start, v, codes);
    }
  }

  MI300_DEVICE void store_codes(i64 start, const Quantizer& quantizer) const {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      share.store_row(places().q, start, v, quantizer.native_codes<kType>(args, h[v]));
    }
  }

  // `first`: of the first result's scale; `s`: this lane's scale.
  MI300_DEVICE void finish_static(const Quantizer& first, float s) const {
    if (likely(args.target_path == TargetPath::kDivide && first.is_moderate<kType>())) {
      store_codes(0, [&](u32 low, u32 high) { return first.quotient_codes4<kType>(low, high); });
      if (likely(args.scale_count == 1)) return;
    } else {
      store_codes(0, first);
    }
    const Quantizer own = Quantizer::native(args, s);
#pragma clang loop unroll(disable)
    for (u32 i = 1; i < args.scale_count; ++i) {
      store_codes(i * args.scale_stride, of_lane(own, i));
    }
  }

  MI300_DEVICE void finish_per_token(const ScaleRule<kType>& rule, RowPeak& peak,
                                     const PeerRoute& route) const {
    u32 amax = 0;
    u32 words[4 * kVec];
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const u32 own = largest<kType>(h[v]);
      amax = max_u32(amax, share.has(v) ? own : 0);
    }
#pragma unroll
    for (u32 i = 0; i < 4 * kVec; ++i) words[i] = h[i / 4][i % 4];
    team.send(peak, route, wave_max(amax));
    const u32 maxima[1] = {team.receive(peak)};
    const bool is_writer = thread_index() == 0 && team.rank == 0;
    rule.quantize(args, maxima, words, [&](u32 v, float scale, const u32* codes) {
      share.store_row(places().q, 0, v, U32x2{codes[0], codes[1]});
      if (v == 0 && is_writer) store<float>(places().scale, 0, scale);
    });
  }

  MI300_DEVICE void run(RowSlots& slots, [[maybe_unused]] RowPeak& peak) {
    team.open(slots);
    if constexpr (kQuant == Quant::kPerToken) team.open(peak);
    team.announce();
    const PeerRoute route = team.route(slots);
    PeerRoute peak_route = {};
    if constexpr (kQuant == Quant::kPerToken) peak_route = team.route(peak);
    const u32 lane = lane_index();
    const float* scale = static_scale(args, lane < args.scale_count ? lane : 0);
    ScaleRule<kType> rule = {};
    Ahead ahead;
    if (kIsShared) {
      kept = NormPlaces::of(args, row, kQuant);
      kept.keep(ahead);
    }
    if (kHasRule && !kIsLate) {
      rule = ScaleRule<kType>::of(args);
      rule.keep(ahead);
    }
    if (kIsShared) prefetch_constants(scale);
    if (kIsShared) ahead.done();
    wait_for_previous_kernel();
    const float s = load_all(scale);
    allow_next_kernel();
    team.wait_for_peers();
    team.send(slots, route, bit_cast<u32>(wave_sum(add_and_square())));
    if (args.second != nullptr) {
#pragma unroll
      for (u32 v = 0; v < kVec; ++v) {
        share.store_row(places().residual_out, 0, v, h[v]);
      }
    }
    if (kIsLate) {
      share = share.made_again();
      load_weight();
      if (kHasRule) rule = ScaleRule<kType>::of(args);
    }
    Quantizer first = {};
    if constexpr (kQuant == Quant::kStatic) first = here(Quantizer::native(args, of_first_lane(s)));
    const float sum = bit_cast<float>(team.receive(slots, add_bits));
    normalise(rsqrt(sum * places().inverse_hidden + places().eps));
    if constexpr (kQuant == Quant::kStatic) {
      finish_static(first, s);
    } else if constexpr (kQuant == Quant::kPerToken) {
      finish_per_token(rule, peak, peak_route);
    } else if constexpr (kQuant == Quant::kPerGroup) {
      quantize_groups<kType>(args, share, places().q, places().scale, h, rule);
    } else {
#pragma unroll
      for (u32 v = 0; v < kVec; ++v) share.store_row(args.y, row * args.hidden * 2, v, h[v]);
    }
  }
};

template <Dtype kType, u32 kVec, Quant kQuant, bool kIsShared>
MI300_DEVICE void rms_norm_usual(const RowArgs& args) {
  using Norm = UsualNorm<kType, kVec, kQuant, kIsShared>;
  static MI300_LDS RowSlots slots;
  static MI300_LDS RowPeak peak;
  const RowTeam team = Norm::team_of(args);
  Norm norm{args, team, team_share<kVec>(args, team), team.row(), {}, {}, {}, {}};
  norm.run(slots, peak);
}

}  // namespace mi300
