// Residual add, RMSNorm and FP8 quantisation of rows that a team of lanes holds in registers.
//
// Bound: memory. 2 bytes read and 2 written an element for the residual, 2 read for x, 1 written per
// static scale; the weight stays in the caches. A lane owns kVec vectors of eight elements; every
// load of a row is issued before its first use; one barrier a row (two per token). While a row is
// reduced the next one of the same team is on its way: in registers (kStages = 0), or in a ring of
// kStages rows in LDS that is filled without registers.
#pragma once

#include <mi300/row_share.h>

namespace mi300 {

// Prefetch into registers costs 8 of them a vector. A target with copies to LDS goes without: there,
// launches with more rows than teams use those.
constexpr bool kPrefetches = !kHasAsyncCopy;

template <Dtype kType, u32 kVec, Quant kQuant, u32 kStages>
struct RmsNormRows {
  const RowArgs* args;
  const RowTeam team;
  RowShare<kVec> share;
  U32x4 next_first[kVec];
  U32x4 next_second[kVec];
  U32x4 h[kVec];
  U32x4 weight[kVec];

  MI300_DEVICE i64 first_bytes() const { return args->first_stride * 2; }
  MI300_DEVICE i64 second_bytes() const { return args->second_stride * 2; }

  // This lane's slot in the ring of the asynchronous copies.
  MI300_DEVICE U32x4* slot(U32x4* ring, u32 stage, u32 tensor, u32 v) const {
    u32 tensors = args->second != nullptr ? 2 : 1;
    return ring + ((stage * tensors + tensor) * kVec + v) * team.threads + thread_index();
  }

  // Starts the loads of a row, if there is one.
  MI300_DEVICE void fetch(U32x4* ring, u32 stage, i64 row) {
    if constexpr (kStages > 0) {
      if (row < args->rows) {
        const char* first = (const char*)args->first + row * first_bytes();
        const char* second = (const char*)args->second + row * second_bytes();
#pragma unroll
        for (u32 v = 0; v < kVec; ++v) {
          copy_async(slot(ring, stage, 0, v), first, share.offset(v));
          if (args->second) copy_async(slot(ring, stage, 1, v), second, share.offset(v));
        }
      }
      commit_copies();
    } else if (row < args->rows) {
      share.load(args->first, first_bytes(), row, next_first);
      if (args->second) share.load(args->second, second_bytes(), row, next_second);
    }
  }

  MI300_DEVICE void add_residual(i64 row) {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      schedule_fence();
      const U32x4 x = packed(h[v]), residual = packed(next_second[v]);
      for (u32 i = 0; i < 4; ++i) h[v][i] = add2<kType>(x[i], residual[i]);
      share.store_row(args->residual_out, row * args->hidden * 2, v, h[v]);
    }
  }

  // Takes the fetched row: h, and residual_out written. Returns this lane's sum of squares.
  MI300_DEVICE float take(U32x4* ring, u32 stage, i64 row) {
    if constexpr (kStages > 0) {
      wait_copies<kStages - 2>();
#pragma unroll
      for (u32 v = 0; v < kVec; ++v) {
        next_first[v] = *slot(ring, stage, 0, v);
        if (args->second) next_second[v] = *slot(ring, stage, 1, v);
      }
    }
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) h[v] = next_first[v];
    if (args->second) add_residual(row);
    float squares[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      schedule_fence();
      float values[kVector];
      unpack8<kType>(packed(h[v]), values);
      float part[2] = {0.0f, 0.0f};
      for (u32 i = 0; i < kVector; ++i) part[i % 2] = fma(values[i], values[i], part[i % 2]);
      for (u32 i = 0; i < 2; ++i) squares[i] += share.has(v) ? part[i] : 0.0f;
    }
    return squares[0] + squares[1];
  }

  // y of this lane's vector v, both roundings where the arguments say; stored if it is wanted.
  MI300_DEVICE U32x4 normalise(i64 row, u32 v, float rstd, bool is_first) const {
    schedule_fence();
    float y[kVector];
    unpack8<kType>(packed(h[v]), y);
    for (u32 i = 0; i < kVector; ++i) y[i] *= rstd;
    U32x4 rounded;
    const U32x4 w_packed = packed(weight[v]);
    if (kHasPackedMath && args->norm_path == NormPath::kRoundedTwice) {
      rounded = pack8<kType>(y);
      for (u32 i = 0; i < 4; ++i) rounded[i] = mul2<kType>(rounded[i], w_packed[i]);
    } else {
      if (args->inner_dtype != Dtype::kF32) round8<kType>(y);
      if (args->weight != nullptr) {
        float w[kVector];
        unpack8<kType>(w_packed, w);
        for (u32 i = 0; i < kVector; ++i) y[i] *= w[i] + args->weight_offset;
      }
      rounded = pack8<kType>(y);
    }
    if (is_first && args->y != nullptr) share.store_row(args->y, row * args->hidden * 2, v, rounded);
    return packed(rounded);
  }

  MI300_DEVICE void finish_static(i64 row, float rstd, const Quantizer& quantizer,
                                  const Quantizer* others) const {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const U32x4 y = normalise(row, v, rstd, true);
      if constexpr (kQuant == Quant::kStatic) {
        share.store_row(args->q, row * args->hidden, v, quantizer.codes<kType>(*args, y));
      }
    }
    if constexpr (kQuant == Quant::kStatic) {
#pragma clang loop unroll(disable)
      for (u32 i = 1; i < args->scale_count; ++i) {
        const RowArgs* again = read_again(args);
        const i64 start = i * again->scale_stride + row * again->hidden;
#pragma unroll
        for (u32 v = 0; v < kVec; ++v) {
          const U32x4 y = normalise(row, v, rstd, false);
          share.store_row(again->q, start, v, others[i].codes<kType>(*again, y));
        }
      }
    }
  }

  MI300_DEVICE void finish_per_group(i64 row, float rstd) const {
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const U32x4 y = normalise(row, v, rstd, true);
      quantize_group<kType>(*read_again(args), share, row, v, y);
    }
  }

  MI300_DEVICE void finish_per_token(i64 row, float rstd, RowSlots& slots) const {
    u32 amax = 0;
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const U32x4 y = normalise(row, v, rstd, true);
      amax = max_u32(amax, share.has(v) ? largest<kType>(y) : 0);
    }
    const float row_amax = bit_cast<float>(team.made_again().max(slots, amax));
    const bool is_writer = thread_index() == 0 && team.rank == 0;
    if (args->amax != nullptr) {
      if (is_writer) store<float>(args->amax, row, row_amax);
      return;
    }
    const float s = dynamic_scale<kType>(*args, row_amax);
    if (is_writer) store<float>(args->scale, row, s);
    const Quantizer quantizer = Quantizer::of(*args, s);
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) {
      const U32x4 y = normalise(row, v, rstd, false);
      share.store_row(args->q, row * args->hidden, v, quantizer.codes<kType>(*args, y));
    }
  }

  MI300_DEVICE void run(U32x4* ring) {
    constexpr u32 kExchanges = kQuant == Quant::kPerToken ? 2 : 1;
    static MI300_LDS RowSlots slots[2][kExchanges];  // rows alternate: one barrier is enough
    static MI300_LDS Quantizer quantizers[kMaxScales];
    for (u32 i = 0; i < 2 * kExchanges; ++i) team.open(slots[i / kExchanges][i % kExchanges]);
    team.announce();
    const i64 first_row = team.row();
    constexpr u32 kAhead = kStages > 0 ? kStages - 1 : 1;
    for (u32 i = 0; i < kAhead; ++i) fetch(ring, i, first_row + i * (i64)args->workgroups);
    if (args->weight != nullptr) {
#pragma unroll
      for (u32 v = 0; v < kVec; ++v) weight[v] = load_at<U32x4>(args->weight, share.offset(v));
    }
    // The usual one scale stays in registers; the others go through LDS, made ready by one lane each.
    Quantizer quantizer = {};
    if constexpr (kQuant == Quant::kStatic) {
      quantizer = uniform(Quantizer::of(*args, load<float>(args->scales[0], 0)));
      if (const u32 i = thread_index(); i > 0 && i < args->scale_count) {
        quantizers[i] = Quantizer::of(*args, load<float>(static_scale(*args, i), 0));
      }
    }
    team.wait_for_peers();
    if (kQuant == Quant::kStatic && team.is_cluster()) barrier();  // a mailbox orders no LDS of ours
    u32 turn = 0, stage = 0;
    for (i64 row = first_row; row < args->rows; row += args->workgroups, turn ^= 1) {
      args = read_again(args);
      share = share.made_again();
      const float squares = take(ring, stage, row);
      const u32 free_stage = stage == 0 ? kAhead : stage - 1;
      if constexpr (kStages > 0 || kPrefetches) {
        fetch(ring, free_stage, row + kAhead * (i64)args->workgroups);
      }
      const float sum = team.made_again().sum(slots[turn][0], squares);
      const float mean = sum * args->inverse_hidden;
      const float rstd = rsqrt(mean + args->eps);
      if (row + args->workgroups >= args->rows) allow_next_kernel();
      if constexpr (kQuant == Quant::kPerToken) {
        finish_per_token(row, rstd, slots[turn][kExchanges - 1]);
      } else if constexpr (kQuant == Quant::kPerGroup) {
        finish_per_group(row, rstd);
      } else {
        finish_static(row, rstd, quantizer, quantizers);
      }
      if constexpr (kStages == 0 && !kPrefetches) {
        fetch(ring, 0, row + args->workgroups);
      }
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }
};

template <Dtype kType, u32 kVec, Quant kQuant, u32 kStages = 0>
MI300_DEVICE void rms_norm_rows(const RowArgs& args, U32x4* ring = nullptr) {
  wait_for_previous_kernel();
  const RowTeam team = RowTeam::of(args);
  RmsNormRows<kType, kVec, kQuant, kStages> rows{
      &args, team, team_share<kVec>(args, team), {}, {}, {}, {}};
  rows.run(ring);
}

// Waves a SIMD that registers must leave room for: two full workgroups a CU up to hidden 16384.
template <u32 kVec>
constexpr u32 kWaves = kVec <= 2 ? 8 : 4;

}  // namespace mi300
