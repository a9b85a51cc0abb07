// The norm and SiLU kernels for whatever the fast ones do not take: any dtypes, any alignment, any row
// length, any group, e5m2, casts that do not saturate; and the two steps behind a per-tensor scale.
//
// Nothing is kept in registers: a row is read once per pass (two or three), from the caches after the
// first. One workgroup a row, rows in turns.
#include <mi300/row_reduce.h>

namespace mi300 {

MI300_DEVICE float any_dynamic_scale(const RowArgs& args, float amax) {
  return dynamic_scale(args, amax, [&](float value) { return round_to(args.y_dtype, value); });
}

// The codes of one row by its static scales or, per token, by the one that its largest element gives;
// `amax` is this lane's largest.
template <class YOf>
MI300_DEVICE void finish_whole(const RowArgs& args, i64 row, const RowTeam& team, RowSlots& slots,
                               u32 amax, const YOf& y_of) {
  const bool is_static = args.quant == Quant::kStatic;
  float s = 1.0f;
  if (!is_static) {
    const float row_amax = bit_cast<float>(team.made_again().max(slots, amax));
    const bool is_writer = offset_here(thread_index()) == 0;  // here: no mask kept from row to row
    if (args.amax != nullptr) {
      if (is_writer) store<float>(args.amax, row, row_amax);
      return;
    }
    s = any_dynamic_scale(args, row_amax);
    if (is_writer) store<float>(args.scale, row, s);
  }
#pragma clang loop unroll(disable)
  for (u32 j = 0; j < (is_static ? args.scale_count : 1); ++j) {
    if (is_static) s = load<float>(static_scale(args, j), 0);
    const Quantizer quantizer = Quantizer::of(args, s);
    const i64 start = j * args.scale_stride + row * args.hidden;
    for (u32 i = thread_index(); i < args.hidden; i += team.threads) {
      store<u8>(args.q, start + i, quantizer.code(args, y_of(i)));
    }
  }
}

// The codes of one row by a scale for each group, which a wave finds.
template <class YOf>
MI300_DEVICE void finish_groups(const RowArgs& args, i64 row, const RowTeam& team, const YOf& y_of) {
  const u32 groups = args.hidden / args.group;
  for (u32 g = wave_index(); g < groups; g += team.waves) {
    u32 amax = 0;
    for (u32 i = lane_index(); i < args.group; i += kWaveSize) {
      amax = max_u32(amax, abs_bits(y_of(g * args.group + i)));
    }
    const float s = any_dynamic_scale(args, bit_cast<float>(wave_max(amax)));
    if (lane_index() == 0) store<float>(args.scale, row * groups + g, s);
    const Quantizer quantizer = Quantizer::of(args, s);
    for (u32 i = lane_index(); i < args.group; i += kWaveSize) {
      const u32 element = g * args.group + i;
      store<u8>(args.q, row * args.hidden + element, quantizer.code(args, y_of(element)));
    }
  }
}

// Writes y and q of one row. `y_of(i)` computes an element; it may do so more than once.
template <class YOf>
MI300_DEVICE void finish_row(const RowArgs& args, i64 row, const RowTeam& team, RowSlots& slots,
                             const YOf& y_of) {
  u32 amax = 0;
  if (args.y != nullptr || args.quant == Quant::kPerToken) {
#pragma clang loop unroll(disable)
    for (u32 i = thread_index(); i < args.hidden; i += team.threads) {
      const float y = y_of(i);
      if (args.y != nullptr) store_float(args.y_dtype, args.y, row * args.hidden + i, y);
      amax = max_u32(amax, abs_bits(y));
    }
  }
  const RowArgs& again = *read_again(&args);
  if (again.quant == Quant::kPerGroup) {
    finish_groups(again, row, team, y_of);
  } else if (again.quant != Quant::kNone) {
    finish_whole(again, row, team, slots, amax, y_of);
  }
}

MI300_DEVICE void rms_norm_any_row(const RowArgs& args, i64 row, const RowTeam& team,
                                   RowSlots* slots) {
  auto h_of = [&](u32 i) {
    const float x = load_float(args.first_dtype, args.first, row * args.first_stride + i);
    if (args.second == nullptr) return x;
    const float r = load_float(args.second_dtype, args.second, row * args.second_stride + i);
    return round_to(args.sum_dtype, x + r);
  };
  float squares = 0.0f;
  for (u32 i = thread_index(); i < args.hidden; i += team.threads) {
    const float h = h_of(i);
    squares = fma(h, h, squares);
    if (args.second != nullptr) {
      store_float(args.residual_dtype, args.residual_out, row * args.hidden + i, h);
    }
  }
  const float rstd = rsqrt(team.sum(slots[0], squares) * args.inverse_hidden + args.eps);
  finish_row(*read_again(&args), row, team, slots[1], [&](u32 i) {
    float y = round_to(args.inner_dtype, h_of(i) * rstd);
    if (args.weight != nullptr) {
      y *= load_float(args.weight_dtype, args.weight, i) + args.weight_offset;
    }
    return round_to(args.y_dtype, y);
  });
}

MI300_DEVICE void silu_mul_any_row(const RowArgs& args, i64 row, const RowTeam& team,
                                   RowSlots& slots) {
  finish_row(args, row, team, slots, [&](u32 i) {
    const float gate = load_float(args.first_dtype, args.first, row * args.first_stride + i);
    const float up = load_float(args.second_dtype, args.second, row * args.second_stride + i);
    float act;
    if (args.sigmoid_dtype == Dtype::kNone) {
      act = divide_by_one_plus_exp(gate, gate);
    } else {
      act = gate * round_to(args.sigmoid_dtype, divide_by_one_plus_exp(1.0f, gate));
    }
    return round_to(args.y_dtype, round_to(args.inner_dtype, act) * up);
  });
}

MI300_KERNEL(256, 4) rms_norm_any(RowArgs args) {
  static MI300_LDS RowSlots slots[2][2];  // rows alternate, as in rms_norm.h
  wait_for_previous_kernel();
  const RowTeam team = RowTeam::of(args);
  for (u32 i = 0; i < 4; ++i) team.open(slots[i / 2][i % 2]);
  u32 turn = 0;
  for (i64 row = group_index(); row < args.rows; row += args.workgroups, turn ^= 1) {
    rms_norm_any_row(*read_again(&args), row, team, slots[turn]);
  }
}

MI300_KERNEL_GROUPS(256, 4, 4) silu_mul_any(RowArgs args) {
  static MI300_LDS RowSlots slots[2];
  wait_for_previous_kernel();
  const RowTeam team = RowTeam::of(args);
  for (u32 i = 0; i < 2; ++i) team.open(slots[i]);
  u32 turn = 0;
  for (i64 row = group_index(); row < args.rows; row += args.workgroups, turn ^= 1) {
    silu_mul_any_row(*read_again(&args), row, team, slots[turn]);
  }
}

// Per tensor, second step: the one scale from every row's largest element. One workgroup.
MI300_KERNEL(1024, 4) tensor_scale(RowArgs args) {
  static MI300_LDS RowSlots slots;
  wait_for_previous_kernel();
  const RowTeam team = RowTeam::of(args);
  team.open(slots);
  u32 amax = 0;
  for (i64 row = thread_index(); row < args.rows; row += team.threads) {
    amax = max_u32(amax, load<u32>(args.amax, row));
  }
  const float tensor_amax = bit_cast<float>(team.max(slots, amax));
  if (thread_index() == 0) store<float>(args.scale, 0, any_dynamic_scale(args, tensor_amax));
}

// Per tensor, third step: y, already rounded, to codes.
MI300_KERNEL(256, 4) tensor_quantize(RowArgs args) {
  wait_for_previous_kernel();
  const Quantizer quantizer = Quantizer::of(args, load<float>(args.scale, 0));
  const i64 elements = args.rows * args.hidden, step = (i64)args.workgroups * args.threads;
  for (i64 i = (i64)group_index() * args.threads + thread_index(); i < elements; i += step) {
    store<u8>(args.q, i, quantizer.code(args, load_float(args.y_dtype, args.y, i)));
  }
}

}  // namespace mi300
