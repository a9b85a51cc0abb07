// RMSNorm for the CPU, with an optional residual add before and an optional FP8 quantisation after.
//
// One producer serves all six operators. A row is read twice, the second time from cache: once for
// the sum of squares (writing the new residual), once to normalise. Bound: memory traffic for many
// rows; bf16 add + norm + quantisation moves 7 bytes per element (2 + 2 read, 2 + 1 written).
#include <torch/library.h>

#include <cmath>
#include <tuple>

#include "row_ops.h"

namespace mi300 {
namespace {

struct NormArgs {
  const std::optional<at::Tensor>& weight;
  double eps;
  double weight_offset;
  at::ScalarType norm_dtype;
  at::ScalarType y_dtype;
};

struct AddArgs {
  const at::Tensor& residual;
  at::ScalarType sum_dtype;
  at::ScalarType residual_dtype;
};

class NormProducer {
 public:
  NormProducer(const char* op, const at::Tensor& x, const AddArgs* add, const NormArgs& norm)
      : shape_(check_rows(op, x, add ? &add->residual : nullptr,
                          norm.weight ? &*norm.weight : nullptr)),
        x_(as_rows(x)),
        eps_(static_cast<float>(norm.eps)),
        weight_offset_(static_cast<float>(norm.weight_offset)),
        norm_dtype_(norm.norm_dtype),
        y_dtype_(norm.y_dtype) {
    check_float(op, "norm_dtype", norm_dtype_);
    check_float(op, "y_dtype", y_dtype_);
    if (norm.weight) weight_ = as_rows(*norm.weight);
    is_bf16_ = norm.weight && weight_offset_ == 0.0f && weight_->dtype == at::kBFloat16 &&
               y_dtype_ == at::kBFloat16 && norm_dtype_ != at::kHalf &&
               (add == nullptr ? x_.dtype == at::kBFloat16
                               : add->sum_dtype == at::kBFloat16 &&
                                     add->residual_dtype == at::kBFloat16);
    if (add == nullptr) return;
    check_float(op, "sum_dtype", add->sum_dtype);
    check_float(op, "residual_dtype", add->residual_dtype);
    residual_ = as_rows(add->residual);
    sum_dtype_ = add->sum_dtype;
    residual_out_ = empty_rows(x.sizes(), x.options().dtype(add->residual_dtype));
    residual_is_h_ = add->residual_dtype == sum_dtype_ || add->residual_dtype == at::kFloat;
    is_uniform_ = x_.dtype == residual_->dtype && x_.dtype == sum_dtype_ &&
                  x_.dtype == add->residual_dtype;
  }

  Shape shape() const { return shape_; }
  // Its last use: the new residual, which is written by `prepare`.
  at::Tensor take_residual_out() { return std::move(residual_out_); }

  // Writes the new residual and returns 1 / sqrt(mean(h * h) + eps).
  float prepare(int64_t row) const {
    c10::SmallVector<float, 64> partial((shape_.hidden + kChunk - 1) / kChunk);
    for_chunks(shape_.hidden, [&](int64_t begin, int64_t n) {
      partial[begin / kChunk] = add_and_sum_squares(row, begin, n);
    });
    double total = 0.0;
    for (float value : partial) total += value;
    const float mean = static_cast<float>(total) / static_cast<float>(shape_.hidden);
    return 1.0f / std::sqrt(mean + eps_);
  }

  // y = round_to(y_dtype, round_to(norm_dtype, h * rstd) * (weight + offset))
  void produce(int64_t row, float rstd, int64_t begin, int64_t n, char* y) const {
    if (is_bf16_) {
      auto* words = reinterpret_cast<c10::BFloat16*>(y);
      if (norm_dtype_ == at::kFloat) return produce_words<float>(row, rstd, begin, n, words);
      return produce_words<c10::BFloat16>(row, rstd, begin, n, words);
    }
    alignas(64) float h[kChunk];
    load_h(row, begin, n, h);
    with_float_type(norm_dtype_, [&](auto norm_zero) {
      using Norm = decltype(norm_zero);
      const Vec factor(rstd);
      const auto normalise = [factor](const Vec& v) { return round_to<Norm>(v * factor); };
      for_units(n, [&](int64_t i, int64_t) {
        store_pair(h + i, map(normalise, load_pair(h + i)));
      });
    });
    if (weight_) multiply_weight(begin, n, h);
    with_float_type(y_dtype_, [&](auto zero) {
      auto* to = reinterpret_cast<decltype(zero)*>(y);
      for_units(n, [&](int64_t i, int64_t count) { store_unit(to + i, load_pair(h + i), count); });
    });
  }

 private:
  void multiply_weight(int64_t begin, int64_t n, float* h) const {
    with_float_type(weight_->dtype, [&](auto zero) {
      const auto* weight = weight_->at<decltype(zero)>(0) + begin;
      const Vec offset(weight_offset_);
      const bool has_offset = weight_offset_ != 0.0f;
      for_units(n, [&](int64_t i, int64_t count) {
        Pair w = load_unit(weight + i, count);
        if (has_offset) w = {w.low + offset, w.high + offset};
        const Pair v = load_pair(h + i);
        store_pair(h + i, {v.low * w.low, v.high * w.high});
      });
    });
  }

  // The usual case: everything bfloat16, a weight without offset.
  template <typename Norm>
  void produce_words(int64_t row, float rstd, int64_t begin, int64_t n, c10::BFloat16* y) const {
    const Vec factor(rstd);
    const auto* from = stored_h<c10::BFloat16>(row) + begin;
    const auto* weight = weight_->at<c10::BFloat16>(0) + begin;
    for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
      const Pair h = widen_words(load_words(from + i, count));
      const Pair w = widen_words(load_words(weight + i, count));
      const Pair normed = round_between<Norm>({h.low * factor, h.high * factor});
      const Pair weighed = {normed.low * w.low, normed.high * w.high};
      store_words(y + i, round_pair(weighed).words(), count);
    });
  }

  // Row of the tensor that holds h exactly: the new residual, or x without an addition.
  template <typename T>
  const T* stored_h(int64_t row) const {
    if (!residual_) return x_.at<T>(row);
    return static_cast<const T*>(residual_out_.const_data_ptr()) + row * shape_.hidden;
  }

  // Sum of squares of h over a chunk; stores the new residual on the way.
  float add_and_sum_squares(int64_t row, int64_t begin, int64_t n) const {
    Pair sum = {Vec(0.0f), Vec(0.0f)};
    const auto add_square = [](const Vec& v, const Vec& s) { return at::vec::fmadd(v, v, s); };
    with_float_type(x_.dtype, [&](auto x_zero) {
      using X = decltype(x_zero);
      const X* x = x_.at<X>(row) + begin;
      if (!residual_) {
        return for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
          if constexpr (std::is_same_v<X, c10::BFloat16>) {
            sum = map(add_square, widen_words(load_words(x + i, count)), sum);
          } else {
            sum = map(add_square, load_unit(x + i, count), sum);
          }
        });
      }
      const int64_t offset = row * shape_.hidden + begin;
      if constexpr (std::is_same_v<X, c10::BFloat16>) {
        if (is_uniform_) {
          const X* residual = residual_->at<X>(row) + begin;
          X* to = static_cast<X*>(residual_out_.data_ptr()) + offset;
          return for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
            const Pair a = widen_words(load_words(x + i, count));
            const Pair b = widen_words(load_words(residual + i, count));
            const RoundedPair h = round_pair({a.low + b.low, a.high + b.high});
            store_words(to + i, h.words(), count);
            sum = map(add_square, h.floats(), sum);
          });
        }
      }
      if (is_uniform_) {
        const X* residual = residual_->at<X>(row) + begin;
        X* to = static_cast<X*>(residual_out_.data_ptr()) + offset;
        return for_units(n, [&](int64_t i, int64_t count) C10_ALWAYS_INLINE_ATTRIBUTE {
          const Pair h = map([](const Vec& a, const Vec& b) { return round_to<X>(a + b); },
                             load_unit(x + i, count), load_unit(residual + i, count));
          store_rounded<X>(to + i, h, count);
          sum = map(add_square, h, sum);
        });
      }
      alignas(64) float h[kChunk];
      add_residual(row, begin, n, h);
      for_units(n, [&](int64_t i, int64_t) { sum = map(add_square, load_pair(h + i), sum); });
      with_float_type(residual_out_.scalar_type(), [&](auto zero) {
        auto* to = static_cast<decltype(zero)*>(residual_out_.data_ptr()) + offset;
        for_units(n, [&](int64_t i, int64_t count) {
          store_unit(to + i, load_pair(h + i), count);
        });
      });
    });
    float lanes[kLanes];
    (sum.low + sum.high).store(lanes);
    float total = 0.0f;
    for (float lane : lanes) total += lane;
    return total;
  }

  // h of elements [begin, begin + n), from the new residual if that holds it exactly.
  void load_h(int64_t row, int64_t begin, int64_t n, float* h) const {
    if (residual_ && !residual_is_h_) return add_residual(row, begin, n, h);
    with_float_type(residual_ ? residual_out_.scalar_type() : x_.dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* from = stored_h<T>(row) + begin;
      for_units(n, [&](int64_t i, int64_t count) { store_pair(h + i, load_unit(from + i, count)); });
    });
  }

  // x + residual, rounded to the sum's dtype, for any dtypes.
  void add_residual(int64_t row, int64_t begin, int64_t n, float* h) const {
    with_float_type(x_.dtype, [&](auto zero) {
      const auto* x = x_.at<decltype(zero)>(row) + begin;
      for_units(n, [&](int64_t i, int64_t count) { store_pair(h + i, load_unit(x + i, count)); });
    });
    with_float_type(residual_->dtype, [&](auto zero) {
      const auto* residual = residual_->at<decltype(zero)>(row) + begin;
      with_float_type(sum_dtype_, [&](auto sum_zero) {
        for_units(n, [&](int64_t i, int64_t count) {
          const auto add = [](const Vec& a, const Vec& b) {
            return round_to<decltype(sum_zero)>(a + b);
          };
          store_pair(h + i, map(add, load_pair(h + i), load_unit(residual + i, count)));
        });
      });
    });
  }

  Shape shape_;
  Rows x_;
  std::optional<Rows> residual_, weight_;
  float eps_, weight_offset_;
  at::ScalarType norm_dtype_, y_dtype_;
  at::ScalarType sum_dtype_ = at::kFloat;
  at::Tensor residual_out_;
  bool is_bf16_ = false;        // the case of produce_words
  bool is_uniform_ = false;     // x, residual, their sum and the new residual have one dtype
  bool residual_is_h_ = false;  // the new residual holds h without another rounding
};

using Tensor = at::Tensor;
using Code = DtypeCode;
using MaybeTensor = std::optional<Tensor>;

Tensor rms_norm(const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset,
                Code norm_dtype, Code y_dtype) {
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  return run_rows(x, NormProducer("rms_norm", x, nullptr, norm), norm.y_dtype).y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, Code sum_dtype,
                                        Code residual_dtype, const MaybeTensor& weight,
                                        double eps, double weight_offset, Code norm_dtype,
                                        Code y_dtype) {
  const AddArgs add{residual, dtype_of_code(sum_dtype), dtype_of_code(residual_dtype)};
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  NormProducer producer("add_rms_norm", x, &add, norm);
  at::Tensor y = run_rows(x, producer, norm.y_dtype).y;
  return {std::move(y), producer.take_residual_out()};
}

std::tuple<Tensor, Tensor> rms_norm_quant(const Tensor& x, const MaybeTensor& weight, double eps,
                                          double weight_offset, Code norm_dtype, Code y_dtype,
                                          at::TensorList scales, Code q_dtype,
                                          std::string_view scaling, Code scaled_dtype,
                                          double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "rms_norm_quant";
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  const NormProducer producer(kOp, x, nullptr, norm);
  const Quantizer quantizer(kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max);
  const StaticTarget target(kOp, scales, quantizer, return_y);
  RowOutputs out = run_rows(x, producer, norm.y_dtype, target);
  return {std::move(out.q), std::move(out.y)};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_quant(
    const Tensor& x, const Tensor& residual, Code sum_dtype, Code residual_dtype,
    const MaybeTensor& weight, double eps, double weight_offset, Code norm_dtype, Code y_dtype,
    at::TensorList scales, Code q_dtype, std::string_view scaling, Code scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "add_rms_norm_quant";
  const AddArgs add{residual, dtype_of_code(sum_dtype), dtype_of_code(residual_dtype)};
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  NormProducer producer(kOp, x, &add, norm);
  const Quantizer quantizer(kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max);
  const StaticTarget target(kOp, scales, quantizer, return_y);
  RowOutputs out = run_rows(x, producer, norm.y_dtype, target);
  return {std::move(out.q), producer.take_residual_out(), std::move(out.y)};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_quant_dynamic(
    const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset, Code norm_dtype,
    Code y_dtype, int64_t group_size, std::string_view scale_form, double scale_const,
    double amax_min, double scale_min, Code q_dtype, std::string_view scaling, Code scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "rms_norm_quant_dynamic";
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  const NormProducer producer(kOp, x, nullptr, norm);
  const DynamicTarget target{{kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max},
                             {kOp, scale_form, scale_const, amax_min, scale_min},
                             group_size,
                             return_y};
  RowOutputs out = run_rows(x, producer, norm.y_dtype, kOp, target);
  return {std::move(out.q), std::move(out.scale), std::move(out.y)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_rms_norm_quant_dynamic(
    const Tensor& x, const Tensor& residual, Code sum_dtype, Code residual_dtype,
    const MaybeTensor& weight, double eps, double weight_offset, Code norm_dtype, Code y_dtype,
    int64_t group_size, std::string_view scale_form, double scale_const, double amax_min,
    double scale_min, Code q_dtype, std::string_view scaling, Code scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "add_rms_norm_quant_dynamic";
  const AddArgs add{residual, dtype_of_code(sum_dtype), dtype_of_code(residual_dtype)};
  const NormArgs norm{weight, eps, weight_offset, dtype_of_code(norm_dtype),
                      dtype_of_code(y_dtype)};
  NormProducer producer(kOp, x, &add, norm);
  const DynamicTarget target{{kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max},
                             {kOp, scale_form, scale_const, amax_min, scale_min},
                             group_size,
                             return_y};
  RowOutputs out = run_rows(x, producer, norm.y_dtype, kOp, target);
  return {std::move(out.q), std::move(out.scale), producer.take_residual_out(), std::move(out.y)};
}

TORCH_LIBRARY_IMPL(mi300, CPU, m) {
  m.impl("rms_norm", TORCH_FN(rms_norm));
  m.impl("add_rms_norm", TORCH_FN(add_rms_norm));
  m.impl("rms_norm_quant", TORCH_FN(rms_norm_quant));
  m.impl("add_rms_norm_quant", TORCH_FN(add_rms_norm_quant));
  m.impl("rms_norm_quant_dynamic", TORCH_FN(rms_norm_quant_dynamic));
  m.impl("add_rms_norm_quant_dynamic", TORCH_FN(add_rms_norm_quant_dynamic));
}

}  // namespace
}  // namespace mi300
