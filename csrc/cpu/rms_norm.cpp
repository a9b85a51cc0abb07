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
    if (add == nullptr) return;
    check_float(op, "sum_dtype", add->sum_dtype);
    check_float(op, "residual_dtype", add->residual_dtype);
    residual_ = as_rows(add->residual);
    sum_dtype_ = add->sum_dtype;
    residual_out_ = at::empty(x.sizes(), x.options().dtype(add->residual_dtype));
  }

  Shape shape() const { return shape_; }
  const at::Tensor& residual_out() const { return residual_out_; }

  // Writes the new residual and returns 1 / sqrt(mean(h * h) + eps).
  float prepare(int64_t row) const {
    c10::SmallVector<float, 64> partial((shape_.hidden + kChunk - 1) / kChunk);
    for_chunks(shape_.hidden, [&](int64_t begin, int64_t n) {
      alignas(64) float h[kChunk];
      load_h(row, begin, n, h);
      store_residual(row * shape_.hidden + begin, h, n);
      partial[begin / kChunk] = sum_of_squares(h, n);
    });
    double total = 0.0;
    for (float value : partial) total += value;
    const float mean = static_cast<float>(total) / static_cast<float>(shape_.hidden);
    return 1.0f / std::sqrt(mean + eps_);
  }

  void produce(int64_t row, float rstd, int64_t begin, int64_t n, float* y) const {
    load_h(row, begin, n, y);
    const Vec factor(rstd), offset(weight_offset_);
    with_float_type(norm_dtype_, [&](auto norm_zero) {
      with_float_type(y_dtype_, [&](auto y_zero) {
        using Norm = decltype(norm_zero);
        using Y = decltype(y_zero);
        const auto normalise = [&](int64_t i) {
          const Pair h = load_pair(y + i);
          return round_to<Norm>({h.low * factor, h.high * factor});
        };
        if (!weight_) {
          for_units(n, [&](int64_t i, int64_t) { store_pair(y + i, round_to<Y>(normalise(i))); });
          return;
        }
        with_float_type(weight_->dtype, [&](auto weight_zero) {
          const auto* weight = reinterpret_cast<const decltype(weight_zero)*>(weight_->data) + begin;
          for_units(n, [&](int64_t i, int64_t count) {
            const Pair v = normalise(i);
            const Pair w = load_unit(weight + i, count);
            store_pair(y + i, round_to<Y>({v.low * (w.low + offset), v.high * (w.high + offset)}));
          });
        });
      });
    });
  }

 private:
  // h of elements [begin, begin + n), whole units of it; the padding is zero.
  void load_h(int64_t row, int64_t begin, int64_t n, float* h) const {
    with_float_type(x_.dtype, [&](auto x_zero) {
      const auto* x = reinterpret_cast<const decltype(x_zero)*>(x_.row(row)) + begin;
      if (!residual_) {
        for_units(n, [&](int64_t i, int64_t count) { store_pair(h + i, load_unit(x + i, count)); });
        return;
      }
      with_float_type(residual_->dtype, [&](auto residual_zero) {
        const auto* residual =
            reinterpret_cast<const decltype(residual_zero)*>(residual_->row(row)) + begin;
        with_float_type(sum_dtype_, [&](auto sum_zero) {
          for_units(n, [&](int64_t i, int64_t count) {
            const Pair a = load_unit(x + i, count), b = load_unit(residual + i, count);
            store_pair(h + i, round_to<decltype(sum_zero)>({a.low + b.low, a.high + b.high}));
          });
        });
      });
    });
  }

  void store_residual(int64_t offset, const float* h, int64_t n) const {
    if (!residual_) return;
    with_float_type(residual_out_.scalar_type(), [&](auto zero) {
      auto* to = static_cast<decltype(zero)*>(residual_out_.data_ptr()) + offset;
      for_units(n, [&](int64_t i, int64_t count) { store_unit(to + i, load_pair(h + i), count); });
    });
  }

  static float sum_of_squares(const float* h, int64_t n) {
    Vec low(0.0f), high(0.0f);
    for_units(n, [&](int64_t i, int64_t) {
      const Pair v = load_pair(h + i);
      low = at::vec::fmadd(v.low, v.low, low);
      high = at::vec::fmadd(v.high, v.high, high);
    });
    float lanes[kLanes];
    (low + high).store(lanes);
    float sum = 0.0f;
    for (float lane : lanes) sum += lane;
    return sum;
  }

  Shape shape_;
  Rows x_;
  std::optional<Rows> residual_, weight_;
  float eps_, weight_offset_;
  at::ScalarType norm_dtype_, y_dtype_;
  at::ScalarType sum_dtype_ = at::kFloat;
  at::Tensor residual_out_;
};

using Tensor = at::Tensor;
using Dtype = at::ScalarType;
using MaybeTensor = std::optional<Tensor>;

Tensor rms_norm(const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset,
                Dtype norm_dtype, Dtype y_dtype) {
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  return run_rows(x, NormProducer("rms_norm", x, nullptr, norm), y_dtype).y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, Dtype sum_dtype,
                                        Dtype residual_dtype, const MaybeTensor& weight,
                                        double eps, double weight_offset, Dtype norm_dtype,
                                        Dtype y_dtype) {
  const AddArgs add{residual, sum_dtype, residual_dtype};
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  const NormProducer producer("add_rms_norm", x, &add, norm);
  return {run_rows(x, producer, y_dtype).y, producer.residual_out()};
}

std::tuple<Tensor, Tensor> rms_norm_quant(const Tensor& x, const MaybeTensor& weight, double eps,
                                          double weight_offset, Dtype norm_dtype, Dtype y_dtype,
                                          at::TensorList scales, Dtype q_dtype,
                                          std::string_view scaling, Dtype scaled_dtype,
                                          double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "rms_norm_quant";
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  const NormProducer producer(kOp, x, nullptr, norm);
  const Quantizer quantizer(kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max);
  RowOutputs out = run_rows(x, producer, y_dtype, StaticTarget(kOp, scales, quantizer, return_y));
  return {out.q, out.y};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_quant(
    const Tensor& x, const Tensor& residual, Dtype sum_dtype, Dtype residual_dtype,
    const MaybeTensor& weight, double eps, double weight_offset, Dtype norm_dtype, Dtype y_dtype,
    at::TensorList scales, Dtype q_dtype, std::string_view scaling, Dtype scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "add_rms_norm_quant";
  const AddArgs add{residual, sum_dtype, residual_dtype};
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  const NormProducer producer(kOp, x, &add, norm);
  const Quantizer quantizer(kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max);
  RowOutputs out = run_rows(x, producer, y_dtype, StaticTarget(kOp, scales, quantizer, return_y));
  return {out.q, producer.residual_out(), out.y};
}

std::tuple<Tensor, Tensor, Tensor> rms_norm_quant_dynamic(
    const Tensor& x, const MaybeTensor& weight, double eps, double weight_offset, Dtype norm_dtype,
    Dtype y_dtype, int64_t group_size, std::string_view scale_form, double scale_const,
    double amax_min, double scale_min, Dtype q_dtype, std::string_view scaling, Dtype scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "rms_norm_quant_dynamic";
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  const NormProducer producer(kOp, x, nullptr, norm);
  const DynamicTarget target{{kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max},
                             {kOp, scale_form, scale_const, amax_min, scale_min},
                             group_size,
                             return_y};
  RowOutputs out = run_rows(x, producer, y_dtype, kOp, target);
  return {out.q, out.scale, out.y};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_rms_norm_quant_dynamic(
    const Tensor& x, const Tensor& residual, Dtype sum_dtype, Dtype residual_dtype,
    const MaybeTensor& weight, double eps, double weight_offset, Dtype norm_dtype, Dtype y_dtype,
    int64_t group_size, std::string_view scale_form, double scale_const, double amax_min,
    double scale_min, Dtype q_dtype, std::string_view scaling, Dtype scaled_dtype,
    double clamp_min, double clamp_max, bool return_y) {
  constexpr const char* kOp = "add_rms_norm_quant_dynamic";
  const AddArgs add{residual, sum_dtype, residual_dtype};
  const NormArgs norm{weight, eps, weight_offset, norm_dtype, y_dtype};
  const NormProducer producer(kOp, x, &add, norm);
  const DynamicTarget target{{kOp, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max},
                             {kOp, scale_form, scale_const, amax_min, scale_min},
                             group_size,
                             return_y};
  RowOutputs out = run_rows(x, producer, y_dtype, kOp, target);
  return {out.q, out.scale, producer.residual_out(), out.y};
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
