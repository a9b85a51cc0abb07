// Arguments of the norm and SiLU kernels: the one by-value struct of every entry point, for the
// launcher and the device alike. `mi300_inductor/plan.py` mirrors it field by field.
#pragma once

namespace mi300 {

// Element types, as the launcher passes them.
enum class Dtype : unsigned { kNone, kF32, kBf16, kF16, kE4m3fn, kE4m3fnuz, kE5m2 };

enum class Quant : unsigned { kNone, kStatic, kPerToken, kPerGroup };
enum class Scaling : unsigned { kDiv, kMul, kMulReciprocal };
enum class ScaleForm : unsigned { kAmaxDiv, kAmaxMul, kDivAmax, kReciprocalMul };

// What a finite value beyond an FP8 format's range becomes; without meaning when the clamp keeps
// values in range. kSpecial: NaN, for e5m2 infinity.
enum class Overflow : unsigned { kSaturate, kSpecial };

constexpr int kMaxScales = 4;

// How the vector kernels get to y, and from y to codes; settled by the launch plan.
enum class NormPath : unsigned {
  kAny,
  kRoundedTwice,  // a weight without offset, both roundings
  kRoundedOnce,   // a weight, one rounding
};
enum class TargetPath : unsigned { kAny, kDivide, kMultiply };  // native format, its full range

// NOTE: the order is that of need. Each line of the constant cache that a kernel touches costs a short
// launch a miss, and where launches come from a graph of many the miss goes to DRAM: on an H200 half a
// microsecond, if it comes behind the data. Arguments begin 16 bytes into a line of 64: the first 48
// bytes and the next 64 serve all kernels, the 64 behind them those with scales. Small numbers share
// words, since gfx942 has no scalar loads of bytes.
struct RowArgs {
  // [rows, hidden] each, strides in elements; outputs are contiguous and null if not wanted.
  const void* first;   // x or gate
  const void* second;  // residual (null without) or up
  const void* weight;  // [hidden], null without
  long long rows;
  long long first_stride;
  long long second_stride;
  unsigned hidden;
  unsigned threads;     // of a workgroup
  unsigned workgroups;  // of the launch, those of a cluster as one; flat kernels: on one row
  unsigned cluster;     // workgroups on one row, a power of two

  void* residual_out;
  void* y;
  void* q;  // [scale_count, rows, hidden], one byte an element
  Dtype inner_dtype : 8;    // of h * rstd (norm_dtype), or of SiLU (act_dtype)
  Dtype sigmoid_dtype : 8;  // kNone: SiLU in one step
  Dtype y_dtype : 8;
  Dtype q_dtype : 8;
  Dtype scaled_dtype : 8;
  Quant quant : 8;
  Scaling scaling : 8;
  ScaleForm scale_form : 8;
  Overflow overflow : 8;
  NormPath norm_path : 8;
  TargetPath target_path : 8;
  unsigned scale_count : 8;
  unsigned group;  // elements that share a scale (per-group)
  float inverse_hidden;
  float eps;
  float* scale;  // computed scales: [rows], [rows, hidden / group] or [1]

  float scale_const;
  float scale_reciprocal;  // of scale_const where scales may be had in short; else 0
  float amax_min;
  float scale_min;
  const float* scales[kMaxScales];
  long long scale_stride;  // elements of q between two static scales' results

  float* amax;             // [rows]: written instead of q when the scale is per tensor
  float weight_offset;     // -0.0 for none, which changes no weight
  float clamp_min;         // both within q_dtype's range where overflow is kSaturate
  float clamp_max;
  unsigned is_scale_rounded : 8;  // to y_dtype, after each operation of scale_form
  Dtype first_dtype : 8;
  Dtype second_dtype : 8;
  Dtype weight_dtype : 8;
  Dtype sum_dtype : 8;       // of x + residual
  Dtype residual_dtype : 8;  // of residual_out
  unsigned unused : 16;      // no byte of this is padding: plans are found by comparing bytes
  unsigned unused_word;
};

static_assert(sizeof(RowArgs) == 208);

}  // namespace mi300
