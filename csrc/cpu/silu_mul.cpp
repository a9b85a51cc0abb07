// SiLU(gate) * up for the CPU, with an optional FP8 quantisation after.
//
// Bound: memory traffic for many rows; bf16 SiLU * mul + quantisation moves 5 bytes per element
// (2 + 2 read, 1 written). gate and up may be halves of one packed tensor; nothing is copied.
#include <torch/library.h>

#include <tuple>

#include "row_ops.h"
#include "silu.h"

namespace mi300 {
namespace {

using Tensor = at::Tensor;
using Dtype = at::ScalarType;
using Code = DtypeCode;
using MaybeCode = std::optional<Code>;

class SiluProducer {
 public:
  SiluProducer(const char* op, const Tensor& gate, const Tensor& up, MaybeCode sigmoid_dtype,
               Code act_dtype, Code y_dtype)
      : shape_(check_rows(op, gate, &up, nullptr)),
        gate_(as_rows(gate)),
        up_(as_rows(up)),
        sigmoid_dtype_(dtype_of_code(sigmoid_dtype)),
        act_dtype_(dtype_of_code(act_dtype)),
        y_dtype_(dtype_of_code(y_dtype)),
        is_bf16_(gate_.dtype == at::kBFloat16 && up_.dtype == at::kBFloat16 &&
                 act_dtype_ == at::kBFloat16 && y_dtype_ == at::kBFloat16 && !sigmoid_dtype) {
    if (sigmoid_dtype_) check_float(op, "sigmoid_dtype", *sigmoid_dtype_);
    check_float(op, "act_dtype", act_dtype_);
    check_float(op, "y_dtype", y_dtype_);
  }

  Shape shape() const { return shape_; }
  Dtype y_dtype() const { return y_dtype_; }

  struct Nothing {};
  Nothing prepare(int64_t) const { return {}; }

  void produce(int64_t row, Nothing, int64_t begin, int64_t n, char* y) const {
    if (is_bf16_) return produce_words(row, begin, n, reinterpret_cast<c10::BFloat16*>(y));
    alignas(64) float act[kChunk];
    with_float_type(gate_.dtype, [&](auto zero) {
      const auto* gate = gate_.at<decltype(zero)>(row) + begin;
      with_float_type(act_dtype_, [&](auto act_zero) {
        activate<decltype(act_zero)>(gate, n, act);
      });
    });
    with_float_type(up_.dtype, [&](auto zero) {
      const auto* up = up_.at<decltype(zero)>(row) + begin;
      with_float_type(y_dtype_, [&](auto y_zero) {
        auto* to = reinterpret_cast<decltype(y_zero)*>(y);
        for_units(n, [&](int64_t i, int64_t count) {
          store_unit(to + i, map(product, load_pair(act + i), load_unit(up + i, count)), count);
        });
      });
    });
  }

 private:
  static Vec product(const Vec& a, const Vec& b) { return a * b; }

  // silu(gate), rounded to Act.
  template <typename Act, typename Gate>
  void activate(const Gate* gate, int64_t n, float* act) const {
    if (!sigmoid_dtype_) {
      return for_units(n, [&](int64_t i, int64_t count) {
        store_pair(act + i, round_to<Act>(silu(load_unit(gate + i, count))));
      });
    }
    with_float_type(*sigmoid_dtype_, [&](auto sigmoid_zero) {
      for_units(n, [&](int64_t i, int64_t count) {
        const Pair g = load_unit(gate + i, count);
        const Pair s = round_to<decltype(sigmoid_zero)>(sigmoid(g));
        store_pair(act + i, round_to<Act>(map(product, g, s)));
      });
    });
  }

  // The usual case: everything bfloat16, silu in one piece.
  void produce_words(int64_t row, int64_t begin, int64_t n, c10::BFloat16* y) const {
    using T = c10::BFloat16;
    const T* gate = gate_.at<T>(row) + begin;
    const T* up = up_.at<T>(row) + begin;
    const auto quick = [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
      const Pair wide = widen_words(load_words(gate + i, count));
      const Pair act = round_pair(map(short_silu, wide)).floats();
      const Pair other = widen_words(load_words(up + i, count));
      store_words(y + i, round_pair(map(product, act, other)).words(), count);
    };
    if (C10_LIKELY(kHasFma && !any_beyond<kFastGateWord>(gate, n))) return for_units(n, quick);
    for_units(n, [&](int64_t i, int64_t count) {
      const bool is_quick = kHasFma && !any_word_beyond<kFastGateWord>(load_words(gate + i, count));
      if (is_quick) return quick(i, count);
      const Pair act = round_to<T>(silu(load_unit(gate + i, count)));
      store_unit(y + i, map(product, act, load_unit(up + i, count)), count);
    });
  }

  Shape shape_;
  Rows gate_, up_;
  std::optional<Dtype> sigmoid_dtype_;
  Dtype act_dtype_, y_dtype_;
  bool is_bf16_;  // gate, up, and both roundings; silu in one piece
};

Tensor silu_mul(const Tensor& gate, const Tensor& up, MaybeCode sigmoid_dtype, Code act_dtype,
                Code y_dtype) {
  const SiluProducer producer("silu_mul", gate, up, sigmoid_dtype, act_dtype, y_dtype);
  return run_rows(gate, producer, producer.y_dtype()).y;
}

std::tuple<Tensor, Tensor> silu_mul_quant(const Tensor& gate, const Tensor& up,
                                          MaybeCode sigmoid_dtype, Code act_dtype, Code y_dtype,
                                          at::TensorList scales, Code q_dtype,
                                          std::string_view scaling, Code scaled_dtype,
                                          double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "silu_mul_quant";
  const SiluProducer producer(kOp, gate, up, sigmoid_dtype, act_dtype, y_dtype);
  const Quantizer quantizer(kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max);
  const StaticTarget target(kOp, scales, quantizer, return_y);
  RowOutputs out = run_rows(gate, producer, producer.y_dtype(), target);
  return {std::move(out.q), std::move(out.y)};
}

std::tuple<Tensor, Tensor, Tensor> silu_mul_quant_dynamic(
    const Tensor& gate, const Tensor& up, MaybeCode sigmoid_dtype, Code act_dtype, Code y_dtype,
    int64_t group_size, std::string_view scale_form, double scale_const, double amax_min,
    double scale_min, Code q_dtype, std::string_view scaling, Code scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "silu_mul_quant_dynamic";
  const SiluProducer producer(kOp, gate, up, sigmoid_dtype, act_dtype, y_dtype);
  const DynamicTarget target{{kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max},
                             {kOp, scale_form, scale_const, amax_min, scale_min},
                             group_size,
                             return_y};
  RowOutputs out = run_rows(gate, producer, producer.y_dtype(), kOp, target);
  return {std::move(out.q), std::move(out.scale), std::move(out.y)};
}

TORCH_LIBRARY_IMPL(mi300, CPU, m) {
  m.impl("silu_mul", TORCH_FN(silu_mul));
  m.impl("silu_mul_quant", TORCH_FN(silu_mul_quant));
  m.impl("silu_mul_quant_dynamic", TORCH_FN(silu_mul_quant_dynamic));
}

}  // namespace
}  // namespace mi300
