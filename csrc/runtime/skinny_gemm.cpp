// skinny_gemm for GPU tensors: plans, launches, and hands what no kernel takes to torch.
#include <ATen/ops/empty.h>
#include <mi300/dtype_code.h>
#include <torch/library.h>

#include <vector>

#include "gemm_early.h"
#include "gemm_library.h"
#include "gemm_plans.h"
#include "kernel_dtype.h"
#include "torch_device.h"

namespace mi300 {
namespace {

// One to three products of the same m, k and dtypes in one plan.
class GemmCall {
 public:
  // `target` says how the result of one product is quantised; null for not at all.
  explicit GemmCall(c10::ArrayRef<Operands> products, const GemmTarget* target = nullptr)
      : products_(products), target_(target) {}

  // Empty if the library is to take the products; that is found out before anything is allocated.
  std::vector<Tensor> run() {
    const Tensor& first = products_[0].a;
    if (first.scalar_type() == at::kFloat) return {};
    GemmProblem problem{};
    problem.operand = static_cast<int32_t>(dtype_of(kGemmOp, first.scalar_type()));
    for (uint32_t i = 0; i < products_.size(); ++i) {
      const Operands& in = products_[i];
      if (in.a.scalar_type() != in.weight.scalar_type()) return {};
      const Tensor a = rows_of(in.a), weight = rows_of(in.weight);
      if (i > 0 && byte_stride(a) != problem.args.activation_stride) return {};
      set_product(problem.args, i, a, weight);
    }
    const int index = first.device().index();
    const c10::DeviceGuard guard(first.device());
    Device& device = Devices::instance().at(index);
    if (target_ != nullptr) {
      problem.args.quant = target_->quant;
      if (!settle_gemm_quant(problem.args.quant, target_->q_dtype, device.info())) return {};
      problem.args.quant.scale = target_->scale.const_data_ptr<float>();
    }
    GemmPlan plan = GemmPlans::instance().find(problem, index, device.info());
    if (plan.launch_count == 0) return {};
    bool is_known = true;  // that no kernel of ours has just written a weight
    std::vector<Tensor> outs;
    for (uint32_t i = 0; i < products_.size(); ++i) {
      const Operands& in = products_[i];
      const ScalarType type = target_ == nullptr ? in.out_type : target_->q_type;
      outs.push_back(at::empty({in.a.size(0), in.weight.size(0)}, in.a.options().dtype(type)));
      GemmSet& set = gemm_set(problem.args, i);
      set.out = outs[i].data_ptr();
      const bool is_copy = set.weight != in.weight.const_data_ptr();
      is_known = !is_copy && WeightHistory::instance().note(in.weight) && is_known;
    }
    Tensor workspace;  // the stream orders its reuse
    if (plan.workspace_bytes > 0) {
      const int64_t count = static_cast<int64_t>(plan.workspace_bytes / sizeof(float));
      workspace = at::empty({count}, first.options().dtype(at::kFloat));
      float* partial = workspace.data_ptr<float>();
      for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
        gemm_set(problem.args, i).partial = partial;
        partial += size_t{plan.shape.splits} * problem.args.m * gemm_set(problem.args, i).n;
      }
    }
    void* stream = current_stream(index);
    problem.args.is_early = is_known && plan.launches[0].is_dependent && device.follows_own(stream);
    for (uint32_t i = 0; i < plan.launch_count; ++i) {
      GemmLaunch& launch = plan.launches[i];
      take_call(launch.args, problem.args);
      const Launch what{launch.module,  launch.entry,     launch.grid,
                        launch.block,   launch.cluster,   launch.lds_bytes,
                        launch.is_dependent != 0};
      device.launch(what, &launch.args, stream, [this] { return products_[0].describe(); });
    }
    return outs;
  }

 private:
  // Rows of neighbouring elements, any stride apart; other layouts are copied.
  Tensor rows_of(const Tensor& tensor) {
    const bool has_rows = (tensor.stride(1) == 1 || tensor.size(1) == 1) &&
                          (tensor.stride(0) >= 0 || tensor.size(0) == 1);
    if (has_rows) return tensor;
    held_.push_back(tensor.contiguous());
    return held_.back();
  }

  const Tensor& held_contiguous(const Tensor& tensor) {
    held_.push_back(tensor.contiguous());
    return held_.back();
  }

  static int64_t byte_stride(const Tensor& tensor) {
    return tensor.stride(0) * static_cast<int64_t>(tensor.element_size());
  }

  static unsigned char code_of(ScalarType type) {
    return static_cast<unsigned char>(dtype_of(kGemmOp, type));
  }

  // What all products have in common is set with the first.
  void set_product(SkinnyGemmArgs& args, uint32_t i, const Tensor& a, const Tensor& weight) {
    const Operands& in = products_[i];
    GemmSet& set = gemm_set(args, i);
    set.weight = weight.const_data_ptr();
    set.activation = a.const_data_ptr();
    set.weight_stride = byte_stride(weight);
    set.n = static_cast<unsigned>(weight.size(0));
    if (in.scale_a) {
      set.scale_a = held_contiguous(*in.scale_a).const_data_ptr<float>();
      set.scale_b = held_contiguous(*in.scale_b).const_data_ptr<float>();
    }
    if (in.bias) set.bias = held_contiguous(*in.bias).const_data_ptr();
    if (i > 0) return;
    args.activation_stride = byte_stride(a);
    args.m = static_cast<unsigned>(std::min<int64_t>(a.size(0), kGemmMaxRows + 1));
    args.row_bytes = static_cast<unsigned>(a.size(1) * static_cast<int64_t>(a.element_size()));
    args.out_type = code_of(in.out_type);
    args.scale_a_step = in.scale_a && in.scale_a->numel() > 1;
    args.scale_b_step = in.scale_b && in.scale_b->numel() > 1;
    if (in.bias) args.bias_type = code_of(in.bias->scalar_type());
    if (in.addend) {
      args.addend = held_contiguous(*in.addend).const_data_ptr();
      args.addend_type = code_of(in.addend->scalar_type());
      args.addend_stride = in.addend->dim() == 2 ? weight.size(0) : 0;
    }
  }

  // Puts a call's operands in the place of those that a cached plan was made with.
  static void take_call(SkinnyGemmArgs& args, const SkinnyGemmArgs& call) {
    for (uint32_t i = 0; i < kGemmMaxSets; ++i) {
      GemmSet& set = gemm_set(args, i);
      const GemmSet planned = set;
      set = gemm_set(call, i);
      set.row_groups = planned.row_groups;
      set.first_team = planned.first_team;
      set.teams = planned.teams;
    }
    args.addend = call.addend;
    args.activation_stride = call.activation_stride;
    args.addend_stride = call.addend_stride;
    args.out_type = call.out_type;
    args.bias_type = call.bias_type;
    args.addend_type = call.addend_type;
    args.scale_a_step = call.scale_a_step;
    args.scale_b_step = call.scale_b_step;
    args.is_early = call.is_early;
    args.quant = call.quant;
  }

  const c10::ArrayRef<Operands> products_;
  const GemmTarget* target_;
  std::vector<Tensor> held_;  // copies; the stream orders their reuse
};

Tensor skinny_gemm(const Tensor& a, const Tensor& weight, const std::optional<Tensor>& scale_a,
                   const std::optional<Tensor>& scale_b, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& addend, ScalarType out_type) {
  const Operands in{a, weight, scale_a, scale_b, bias, addend, out_type};
  check_gemm(in);
  const bool is_empty = a.size(0) == 0 || weight.size(0) == 0;
  if (is_empty) return at::empty({a.size(0), weight.size(0)}, a.options().dtype(out_type));
  if (a.size(1) == 0) return run_library(in);
  if (a.size(0) <= kGemmMaxRows) {
    if (std::vector<Tensor> outs = GemmCall(in).run(); !outs.empty()) return outs[0];
  }
  return run_library(in);
}

Scaling scaling_of(std::string_view name) {
  if (name == "div") return Scaling::kDiv;
  if (name == "mul") return Scaling::kMul;
  TORCH_CHECK(name == "mul_reciprocal", "skinny_gemm_quant: unknown scaling; got '", name,
              "', expected div, mul or mul_reciprocal. Choose one of these.");
  return Scaling::kMulReciprocal;
}

Tensor skinny_gemm_quant(const Tensor& a, const Tensor& weight,
                         const std::optional<Tensor>& scale_a,
                         const std::optional<Tensor>& scale_b, const std::optional<Tensor>& bias,
                         const std::optional<Tensor>& addend, DtypeCode y_dtype,
                         const Tensor& scale, DtypeCode q_dtype, std::string_view scaling,
                         DtypeCode scaled_dtype, double clamp_min, double clamp_max) {
  const Operands in{a, weight, scale_a, scale_b, bias, addend, dtype_of_code(y_dtype)};
  check_gemm(in);
  GemmTarget target{scale, dtype_of_code(q_dtype), dtype_of_code(scaled_dtype), {}, {}};
  check_gemm_quant(in, scale, target.q_type);
  target.quant.clamp_min = static_cast<float>(clamp_min);
  target.quant.clamp_max = static_cast<float>(clamp_max);
  target.quant.scaling = scaling_of(scaling);
  target.q_dtype = dtype_of(kGemmOp, target.q_type);
  const bool has_work = a.numel() > 0 && weight.size(0) > 0;
  if (has_work && a.size(0) <= kGemmMaxRows && target.scaled_type == at::kFloat) {
    if (std::vector<Tensor> outs = GemmCall(in, &target).run(); !outs.empty()) return outs[0];
  }
  return quantize_result(target, skinny_gemm(a, weight, scale_a, scale_b, bias, addend, in.out_type));
}

// Whether a launch can take the products together: what it has once for all of them is equal.
bool is_one_launch(c10::ArrayRef<Operands> products) {
  if (products.size() < 2 || products.size() > kGemmMaxSets) return false;
  const Operands& first = products[0];
  const auto is_vector = [](const std::optional<Tensor>& scale) { return scale && scale->numel() > 1; };
  for (const Operands& in : products) {
    if (in.a.numel() == 0 || in.weight.size(0) == 0 || in.a.size(0) > kGemmMaxRows) return false;
    if (in.a.sizes() != first.a.sizes() || in.a.scalar_type() != first.a.scalar_type()) return false;
    if (is_vector(in.scale_a) != is_vector(first.scale_a)) return false;
    if (is_vector(in.scale_b) != is_vector(first.scale_b)) return false;
    if (in.bias.has_value() != first.bias.has_value()) return false;
    if (in.bias && in.bias->scalar_type() != first.bias->scalar_type()) return false;
  }
  return true;
}

std::vector<Tensor> skinny_gemm_list(at::TensorList a, at::TensorList weight,
                                     const MaybeTensors& scale_a, const MaybeTensors& scale_b,
                                     const MaybeTensors& bias, ScalarType out_type) {
  check_gemm_list(a, weight, scale_a, scale_b, bias);
  const auto entries = [&](const MaybeTensors& list) {
    std::vector<std::optional<Tensor>> each(a.size());
    for (size_t i = 0; list && i < a.size(); ++i) each[i] = (*list)[i];
    return each;
  };
  const auto scales_a = entries(scale_a), scales_b = entries(scale_b), biases = entries(bias);
  const std::optional<Tensor> none;
  std::vector<Operands> products;
  for (size_t i = 0; i < a.size(); ++i) {
    products.push_back({a[i], weight[i], scales_a[i], scales_b[i], biases[i], none, out_type});
    check_gemm(products[i]);
  }
  if (is_one_launch(products)) {
    if (std::vector<Tensor> outs = GemmCall(products).run(); !outs.empty()) return outs;
  }
  std::vector<Tensor> results;
  for (size_t i = 0; i < a.size(); ++i) {
    results.push_back(skinny_gemm(a[i], weight[i], scales_a[i], scales_b[i], biases[i], none,
                                  out_type));
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(mi300, CUDA, m) {
  m.impl("skinny_gemm", &skinny_gemm);
  m.impl("skinny_gemm_list", &skinny_gemm_list);
  m.impl("skinny_gemm_quant", &skinny_gemm_quant);
}

}  // namespace mi300
