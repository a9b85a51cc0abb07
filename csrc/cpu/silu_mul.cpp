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
        is_uniform_(gate_.dtype == up_.dtype && act_dtype == y_dtype && !sigmoid_dtype) {
    if (sigmoid_dtype_) check_float(op, "sigmoid_dtype", *sigmoid_dtype_);
    check_float(op, "act_dtype", act_dtype_);
    check_float(op, "y_dtype", y_dtype_);
  }

  Shape shape() const { return shape_; }
  Dtype y_dtype() const { return y_dtype_; }

  struct Nothing {};
  Nothing prepare(int64_t) const { return {}; }

  void produce(int64_t row, Nothing, int64_t begin, int64_t n, float* y) const {
    if (is_uniform_) return produce_uniform(row, begin, n, y);
    with_float_type(gate_.dtype, [&](auto zero) {
      const auto* gate = gate_.at<decltype(zero)>(row) + begin;
      with_float_type(act_dtype_, [&](auto act_zero) {
        using Act = decltype(act_zero);
        if (!sigmoid_dtype_) {
          return for_units(n, [&](int64_t i, int64_t count) {
            store_pair(y + i, round_to<Act>(silu(load_unit(gate + i, count))));
          });
        }
        with_float_type(*sigmoid_dtype_, [&](auto sigmoid_zero) {
          for_units(n, [&](int64_t i, int64_t count) {
            const Pair g = load_unit(gate + i, count);
            const Pair s = round_to<decltype(sigmoid_zero)>(sigmoid(g));
            store_pair(y + i, round_to<Act>(map(product, g, s)));
          });
        });
      });
    });
    multiply_up(row, begin, n, y);
  }

 private:
  // The usual case in one loop: gate and up of one dtype, both roundings to one dtype.
  void produce_uniform(int64_t row, int64_t begin, int64_t n, float* y) const {
    with_float_type(gate_.dtype, [&](auto zero) {
      const auto* gate = gate_.at<decltype(zero)>(row) + begin;
      const auto* up = up_.at<decltype(zero)>(row) + begin;
      with_float_type(y_dtype_, [&](auto y_zero) {
        using Y = decltype(y_zero);
        for_units(n, [&](int64_t i, int64_t count) {
          const Pair act = round_to<Y>(silu(load_unit(gate + i, count)));
          store_pair(y + i, round_to<Y>(map(product, act, load_unit(up + i, count))));
        });
      });
    });
  }

  static Vec product(const Vec& a, const Vec& b) { return a * b; }

  void multiply_up(int64_t row, int64_t begin, int64_t n, float* y) const {
    with_float_type(up_.dtype, [&](auto zero) {
      const auto* up = up_.at<decltype(zero)>(row) + begin;
      with_float_type(y_dtype_, [&](auto y_zero) {
        for_units(n, [&](int64_t i, int64_t count) {
          const Pair v = map(product, load_pair(y + i), load_unit(up + i, count));
          store_pair(y + i, round_to<decltype(y_zero)>(v));
        });
      });
    });
  }

  Shape shape_;
  Rows gate_, up_;
  std::optional<Dtype> sigmoid_dtype_;
  Dtype act_dtype_, y_dtype_;
  bool is_uniform_;
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
  return {out.q, out.y};
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
  return {out.q, out.scale, out.y};
}

TORCH_LIBRARY_IMPL(mi300, CPU, m) {
  m.impl("silu_mul", TORCH_FN(silu_mul));
  m.impl("silu_mul_quant", TORCH_FN(silu_mul_quant));
  m.impl("silu_mul_quant_dynamic", TORCH_FN(silu_mul_quant_dynamic));
}

}  // namespace
}  // namespace mi300
