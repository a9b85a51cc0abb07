// One call of a norm or SiLU operator: checks its tensors, collects the problem and the outputs, and
// makes the launches of its plan.
#pragma once

#include <mi300/dtype_code.h>

#include <optional>
#include <sstream>

#include "kernel_dtype.h"
#include "row_outputs.h"
#include "row_plans.h"
#include "torch_device.h"

namespace mi300 {

using at::ScalarType;
using at::Tensor;

inline Dtype float_dtype_of(const char* op, ScalarType type) {
  const Dtype dtype = dtype_of(op, type);
  TORCH_CHECK(dtype <= Dtype::kF16, op, ": unsupported dtype; got ", type,
              ", expected float32, bfloat16 or float16. Convert it first.");
  return dtype;
}

inline Dtype float_dtype_of(const char* op, DtypeCode code) {
  return float_dtype_of(op, dtype_of_code(code));
}

// Whether all rows are one stride apart and their elements next to each other.
inline bool has_row_stride(const Tensor& tensor, int64_t& stride) {
  const int64_t last = tensor.dim() - 1;
  if (tensor.size(last) != 1 && tensor.stride(last) != 1) return false;
  stride = tensor.size(last);
  int64_t expected = -1;
  for (int64_t dim = last - 1; dim >= 0; --dim) {
    if (tensor.size(dim) == 1) continue;
    if (expected >= 0 && tensor.stride(dim) != expected) return false;
    if (expected < 0) stride = tensor.stride(dim);
    expected = tensor.stride(dim) * tensor.size(dim);
  }
  return true;
}

// One operator call: collects the problem and the outputs, then launches.
class RowCall {
 public:
  RowCall(const char* op, bool is_norm, const Tensor& first, const Tensor* second)
      : op_(op), like_(first), outputs_(first) {
    TORCH_CHECK(first.dim() > 0, op, ": the input has no last dimension; got a 0-D tensor, expected [..., hidden]. Add one.");
    TORCH_CHECK(first.size(-1) <= 0x7fffffff, op, ": a row is too long; got ", first.size(-1),
                " elements, expected fewer than 2^31. Split it.");
    RowArgs& args = problem_.args;
    problem_.is_norm = is_norm;
    args.hidden = static_cast<unsigned>(first.size(-1));
    args.rows = args.hidden == 0 ? 0 : first.numel() / args.hidden;
    args.first = take_rows(first, args.first_stride);
    args.first_dtype = float_dtype_of(op, first.scalar_type());
    if (second == nullptr) return;
    TORCH_CHECK(second->sizes() == first.sizes(), op, ": the two inputs differ in shape; got ",
                first.sizes(), " and ", second->sizes(),
                ", expected equal shapes. Expand the smaller one first.");
    args.second = take_rows(*second, args.second_stride);
    args.second_dtype = float_dtype_of(op, second->scalar_type());
  }

  void set_weight(const std::optional<Tensor>& weight, double eps, double offset) {
    RowArgs& args = problem_.args;
    args.eps = static_cast<float>(eps);
    args.weight_offset = offset == 0.0 ? -0.0f : static_cast<float>(offset);
    if (!weight.has_value()) return;
    TORCH_CHECK(weight->dim() == 1 && weight->size(0) == args.hidden, op_,
                ": the weight does not fit the last dimension; got ", weight->sizes(), ", expected (",
                args.hidden, ",). Pass one weight per element of a row.");
    long long stride = 0;
    args.weight = take_rows(*weight, stride);
    args.weight_dtype = float_dtype_of(op_, weight->scalar_type());
  }

  void set_rounding(DtypeCode inner, DtypeCode y) {
    problem_.args.inner_dtype = float_dtype_of(op_, inner);
    problem_.args.y_dtype = float_dtype_of(op_, y);
    y_type_ = dtype_of_code(y);
  }

  void set_sigmoid(std::optional<DtypeCode> sigmoid) {
    if (sigmoid.has_value()) problem_.args.sigmoid_dtype = float_dtype_of(op_, *sigmoid);
  }

  Tensor add_residual_out(DtypeCode sum, DtypeCode residual) {
    problem_.args.sum_dtype = float_dtype_of(op_, sum);
    problem_.args.residual_dtype = float_dtype_of(op_, residual);
    Tensor out = outputs_.make(like_.sizes(), dtype_of_code(residual));
    problem_.args.residual_out = out.data_ptr();
    return out;
  }

  Tensor add_y(bool is_wanted) {
    Tensor out = is_wanted ? outputs_.make(like_.sizes(), y_type_) : outputs_.make_none(y_type_);
    if (is_wanted) problem_.args.y = out.data_ptr();
    return out;
  }

  void set_target(c10::string_view scaling, DtypeCode scaled, double low, double high) {
    RowArgs& args = problem_.args;
    args.scaling = choose<Scaling>("scaling", scaling, {"div", "mul", "mul_reciprocal"});
    args.scaled_dtype = float_dtype_of(op_, scaled);
    args.clamp_min = static_cast<float>(low);
    args.clamp_max = static_cast<float>(high);
  }

  Tensor add_static(at::TensorList scales, DtypeCode q) {
    RowArgs& args = problem_.args;
    TORCH_CHECK(scales.size() >= 1 && scales.size() <= kMaxScales, op_,
                ": wrong number of scales; got ", scales.size(), ", expected 1 to ", kMaxScales,
                ". Pass one per consumer, and split longer lists.");
    args.quant = Quant::kStatic;
    args.scale_count = static_cast<unsigned char>(scales.size());
    args.scale_stride = like_.numel();
    for (size_t i = 0; i < scales.size(); ++i) {
      TORCH_CHECK(scales[i].numel() == 1 && scales[i].scalar_type() == at::kFloat, op_,
                  ": a static scale is one fp32 value; got ", scales[i].sizes(), " ",
                  scales[i].scalar_type(), ", expected (1,) float32. Use the _dynamic operator.");
      check_device(scales[i]);
      args.scales[i] = scales[i].const_data_ptr<float>();
    }
    if (scales.size() == 1) return add_q(like_.sizes(), dtype_of_code(q));
    std::vector<int64_t> shape = like_.sizes().vec();
    shape.insert(shape.begin(), static_cast<int64_t>(scales.size()));
    return add_q(shape, dtype_of_code(q));
  }

  // Returns q and the scale.
  std::pair<Tensor, Tensor> add_dynamic(int64_t group, c10::string_view form, double constant,
                                        double amax_min, double scale_min, DtypeCode q) {
    RowArgs& args = problem_.args;
    const int64_t hidden = args.hidden;
    TORCH_CHECK(group == -1 || group == 0 || (group > 0 && hidden % group == 0), op_,
                ": the last dimension is not a whole number of groups; got hidden ", hidden,
                " and group_size ", group, ", expected a divisor of hidden, -1 (per token) or 0 ",
                "(per tensor). Change group_size or pad the input.");
    args.quant = group > 0 ? Quant::kPerGroup : Quant::kPerToken;
    args.group = static_cast<unsigned>(std::max<int64_t>(group, 0));
    const auto index = choose<unsigned>(
        "scale_form", form,
        {"amax_div", "amax_mul", "div_amax", "reciprocal_mul", "amax_div_rounded",
         "amax_mul_rounded", "div_amax_rounded", "reciprocal_mul_rounded"});
    args.scale_form = static_cast<ScaleForm>(index % 4);
    args.is_scale_rounded = index / 4;
    args.scale_const = static_cast<float>(constant);
    args.amax_min = static_cast<float>(amax_min);
    args.scale_min = static_cast<float>(scale_min);
    std::vector<int64_t> shape = like_.sizes().vec();
    shape.back() = group > 0 ? hidden / group : 1;
    if (group == 0) shape.clear();
    Tensor scale = outputs_.make(shape, at::kFloat);
    args.scale = scale.data_ptr<float>();
    problem_.is_per_tensor = group == 0;
    return {add_q(like_.sizes(), dtype_of_code(q)), scale};
  }

  void run() {
    RowArgs& args = problem_.args;
    if (problem_.is_per_tensor) {
      held_.push_back(outputs_.make({std::max<long long>(args.rows, 1)}, at::kFloat));
      args.amax = held_.back().data_ptr<float>();
      if (args.y == nullptr) {
        held_.push_back(outputs_.make(like_.sizes(), y_type_));
        args.y = held_.back().data_ptr();
      }
    }
    const int index = like_.device().index();
    Device& device = Devices::instance().at(index);
    KnownRows& plan = find_row_plan(problem_, device.info());
    void* stream = plan.count > 0 ? current_stream(index) : nullptr;
    for (int i = 0; i < plan.count; ++i) {
      RowLaunch& launch = plan.launches[i];
      const Launch what{launch.module,  launch.entry,     launch.grid, launch.block,
                        launch.cluster, launch.lds_bytes, launch.is_dependent != 0};
      device.launch(what, &launch.args, stream, [this] { return describe(); });
    }
  }

 private:
  Tensor add_q(at::IntArrayRef shape, ScalarType type) {
    problem_.args.q_dtype = dtype_of(op_, type);
    TORCH_CHECK(problem_.args.q_dtype >= Dtype::kE4m3fn, op_, ": unsupported q_dtype; got ", type,
                ", expected float8_e4m3fn, float8_e4m3fnuz or float8_e5m2. Choose one of these.");
    Tensor q = outputs_.make(shape, type);
    problem_.args.q = q.data_ptr();
    return q;
  }

  void check_device(const Tensor& tensor) const {
    TORCH_CHECK(tensor.device() == like_.device(), op_, ": inputs on several devices; got ",
                like_.device(), " and ", tensor.device(),
                ", expected one. Move them to the same device.");
  }

  // The first element; copies first if the layout is not one of rows.
  const void* take_rows(const Tensor& tensor, long long& stride) {
    check_device(tensor);
    int64_t row_stride = 0;
    if (has_row_stride(tensor, row_stride)) {
      stride = row_stride;
      return tensor.const_data_ptr();
    }
    held_.push_back(tensor.contiguous());
    stride = tensor.size(-1);
    return held_.back().const_data_ptr();
  }

  template <class Choice>
  Choice choose(const char* argument, c10::string_view got,
                std::initializer_list<const char*> names) const {
    int index = 0;
    for (const char* name : names) {
      if (got == name) return static_cast<Choice>(index);
      ++index;
    }
    std::ostringstream expected;
    for (const char* name : names) expected << " " << name;
    TORCH_CHECK(false, op_, ": unknown ", argument, "; got ", got, ", expected one of",
                expected.str(), ". Choose one of these.");
  }

  std::string describe() const {
    std::ostringstream text;
    text << op_ << " of " << like_.sizes() << " " << like_.scalar_type();
    return text.str();
  }

  const char* op_;
  const Tensor& like_;
  const Outputs outputs_;
  RowProblem problem_{};
  ScalarType y_type_ = at::kFloat;
  std::vector<Tensor> held_;  // copies and workspaces; the stream orders their reuse
};

}  // namespace mi300
