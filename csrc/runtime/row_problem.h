// A norm or SiLU call as data, and which kernels can take it.
#pragma once

#include <mi300/row_args.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "launcher.h"

namespace mi300 {

constexpr uint32_t kVectorElements = 8;  // 16 bytes of bf16 or fp16

// What an operator asks for. Of `args` the launch geometry and the clipped bounds are still to do.
struct RowProblem {
  RowArgs args;
  int32_t is_norm;        // else SiLU * mul
  int32_t is_per_tensor;  // quant is kPerToken then, `amax` and `y` are given
};

inline float fp8_max(Dtype type) {
  return type == Dtype::kE4m3fn ? 448.0f : type == Dtype::kE4m3fnuz ? 240.0f : 57344.0f;
}

// Brings the clamp inside the format's range wherever that changes nothing, so that kernels need
// not look for overflow.
inline void settle_overflow(RowArgs& args, const DeviceInfo& device) {
  if (args.quant == Quant::kNone) return;
  const float limit = fp8_max(args.q_dtype);
  const bool saturates = (device.cast_saturates >> static_cast<int>(args.q_dtype)) & 1;
  const bool is_inside = args.clamp_min >= -limit && args.clamp_max <= limit;
  args.overflow = saturates || is_inside ? Overflow::kSaturate : Overflow::kSpecial;
  if (args.overflow == Overflow::kSpecial) return;
  args.clamp_min = std::clamp(args.clamp_min, -limit, limit);
  args.clamp_max = std::clamp(args.clamp_max, -limit, limit);
}

inline bool is_aligned(const void* pointer, long long stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % kVectorElements == 0;
}

// Whether rows have the layout and dtypes of the vector kernels.
inline bool is_vector_problem(const RowProblem& problem) {
  const RowArgs& args = problem.args;
  const Dtype type = args.first_dtype;
  const auto is_type_or_exact = [type](Dtype dtype) {
    return dtype == type || dtype == Dtype::kF32 || dtype == Dtype::kNone;
  };
  if (type != Dtype::kBf16 && type != Dtype::kF16) return false;
  if (args.hidden % kVectorElements != 0) return false;
  if (!is_aligned(args.first, args.first_stride)) return false;
  if (args.second != nullptr) {
    if (args.second_dtype != type || !is_aligned(args.second, args.second_stride)) return false;
    const bool rounds = args.sum_dtype == type && args.residual_dtype == type;
    if (problem.is_norm && !rounds) return false;
  }
  if (args.weight != nullptr && (args.weight_dtype != type || !is_aligned(args.weight, 0))) {
    return false;
  }
  if (!is_type_or_exact(args.inner_dtype) || !is_type_or_exact(args.sigmoid_dtype)) return false;
  return args.y_dtype == type;
}

// Marks what the vector kernels have shorter code for.
inline void settle_paths(RowArgs& args, const DeviceInfo& device) {
  const bool has_no_offset = args.weight_offset == 0.0f && std::signbit(args.weight_offset);
  if (args.weight != nullptr && args.inner_dtype == Dtype::kF32) {
    args.norm_path = NormPath::kRoundedOnce;
  } else if (args.weight != nullptr && args.inner_dtype == args.y_dtype && has_no_offset) {
    args.norm_path = NormPath::kRoundedTwice;
  }
  if (args.quant == Quant::kNone || static_cast<int>(args.q_dtype) != device.native_fp8) return;
  const float limit = fp8_max(args.q_dtype);
  const bool is_full_range = args.clamp_min == -limit && args.clamp_max == limit;
  if (args.overflow != Overflow::kSaturate || !is_full_range) return;
  if (args.scaled_dtype != Dtype::kF32) return;
  args.target_path =
      args.scaling == Scaling::kDiv ? TargetPath::kDivide : TargetPath::kMultiply;
  // One bound is enough: a quotient that is not exact is below the other.
  const bool is_moderate = args.scale_const >= 1.0f && args.scale_const <= 0x1p40f &&
                           std::max(args.amax_min, args.scale_min) >= 0x1p-60f;
  if (args.target_path == TargetPath::kDivide && args.scale_form == ScaleForm::kAmaxDiv && is_moderate) {
    args.scale_reciprocal = 1.0f / args.scale_const;
  }
}

// Whether the short kernels take it (sm_90: rms_norm_usual.h, silu_mul_usual.h). The vector kernels do.
inline bool is_usual(const RowArgs& args, bool is_norm, const DeviceInfo& device) {
  if (device.max_cluster == 1 || args.amax != nullptr || args.is_scale_rounded) return false;
  const bool has_target = args.target_path != TargetPath::kAny && args.y == nullptr;
  if (args.quant != Quant::kNone && !has_target) return false;
  if (is_norm) return args.norm_path != NormPath::kAny;
  if (args.quant == Quant::kStatic && args.scale_count > 1) return false;
  return args.sigmoid_dtype == Dtype::kNone && args.inner_dtype == args.y_dtype;
}

// Whether the quantisation is one of the vector kernels'.
inline bool is_vector_quant(const RowArgs& args, const DeviceInfo& device) {
  if (args.quant == Quant::kNone) return true;
  if (args.q_dtype == Dtype::kE5m2 || args.overflow == Overflow::kSpecial) return false;
  if (args.quant != Quant::kPerGroup) return true;
  const uint32_t lanes = args.group / kVectorElements;
  return args.group % kVectorElements == 0 && std::has_single_bit(lanes) &&
         lanes <= static_cast<uint32_t>(device.wave_size);
}

}  // namespace mi300
