// skinny_gemm for GPU tensors: plans, launches, and hands what no kernel takes to torch.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <shared_mutex>

#include "gemm_library.h"
#include "gemm_plan.h"
#include "torch_device.h"

namespace mi300 {
namespace {

class GemmCall {
 public:
  explicit GemmCall(const Operands& in)
      : in_(in), out_(at::empty({in.a.size(0), in.weight.size(0)},
                                in.a.options().dtype(in.out_type))) {}

  // Null if the library is to take the problem.
  std::optional<Tensor> run() {
    if (in_.a.scalar_type() != in_.weight.scalar_type() || in_.a.scalar_type() == at::kFloat) {
      return std::nullopt;
    }
    const Tensor a = rows_of(in_.a), weight = rows_of(in_.weight);
    GemmProblem problem{};
    problem.operand = static_cast<int32_t>(gemm_dtype(a.scalar_type()));
    set_args(problem.args, a, weight);
    const int index = a.device().index();
    const c10::DeviceGuard guard(a.device());
    Device& device = Devices::instance().at(index);
    GemmPlan plan = plan_gemm_cached(problem, index, device.info());
    if (plan.launch_count == 0) return std::nullopt;
    Tensor workspace;  // the stream orders its reuse
    if (plan.workspace_bytes > 0) {
      workspace = at::empty({static_cast<int64_t>(plan.workspace_bytes / sizeof(float))},
                            a.options().dtype(at::kFloat));
      problem.args.partial = workspace.data_ptr<float>();
    }
    void* stream = current_stream(index);
    for (uint32_t i = 0; i < plan.launch_count; ++i) {
      GemmLaunch& launch = plan.launches[i];
      take_pointers(launch.args, problem.args);
      const Launch what{launch.module,  launch.entry,     launch.grid,
                        launch.block,   launch.cluster,   launch.lds_bytes,
                        launch.is_dependent != 0};
      device.launch(what, &launch.args, stream, [this] { return in_.describe(); });
    }
    return out_;
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

  void set_args(SkinnyGemmArgs& args, const Tensor& a, const Tensor& weight) {
    const int64_t size = static_cast<int64_t>(a.element_size());
    args.weight = weight.const_data_ptr();
    args.activation = a.const_data_ptr();
    args.out = out_.data_ptr();
    args.weight_stride = weight.stride(0) * size;
    args.activation_stride = a.stride(0) * size;
    args.n = static_cast<unsigned>(weight.size(0));
    args.m = static_cast<unsigned>(std::min<int64_t>(a.size(0), kGemmMaxRows + 1));
    args.row_bytes = static_cast<unsigned>(a.size(1) * size);
    args.out_type = static_cast<unsigned char>(gemm_dtype(in_.out_type));
    if (in_.scale_a) {
      args.scale_a = held_contiguous(*in_.scale_a).const_data_ptr<float>();
      args.scale_b = held_contiguous(*in_.scale_b).const_data_ptr<float>();
      args.scale_a_step = in_.scale_a->numel() > 1;
      args.scale_b_step = in_.scale_b->numel() > 1;
    }
    if (in_.bias) {
      args.bias = held_contiguous(*in_.bias).const_data_ptr();
      args.bias_type = static_cast<unsigned char>(gemm_dtype(in_.bias->scalar_type()));
    }
    if (in_.addend) {
      args.addend = held_contiguous(*in_.addend).const_data_ptr();
      args.addend_type = static_cast<unsigned char>(gemm_dtype(in_.addend->scalar_type()));
      args.addend_stride = in_.addend->dim() == 2 ? weight.size(0) : 0;
    }
  }

  // Plans differ by what plan_gemm reads of a problem, and a decode step asks for the same few.
  static GemmPlan plan_gemm_cached(const GemmProblem& problem, int index, const DeviceInfo& info) {
    const SkinnyGemmArgs& args = problem.args;
    const std::array<uint64_t, 4> key{
        uint64_t{args.n} << 32 | args.row_bytes,
        uint64_t{args.m} << 32 | static_cast<uint32_t>(problem.operand),
        static_cast<uint64_t>(index),
        uint64_t{is_gemm_aligned(args)} | (has_gemm_vectors(args) ? 2u : 0u) |
            (args.addend != nullptr ? 4u : 0u)};
    static std::shared_mutex mutex;
    static std::map<std::array<uint64_t, 4>, GemmPlan> plans;
    {
      std::shared_lock lock(mutex);
      if (const auto found = plans.find(key); found != plans.end()) return found->second;
    }
    const GemmPlan plan = plan_gemm(problem, info);
    std::unique_lock lock(mutex);
    return plans.emplace(key, plan).first->second;
  }

  // What a cached plan has from another call.
  static void take_pointers(SkinnyGemmArgs& args, const SkinnyGemmArgs& call) {
    SkinnyGemmArgs merged = call;
    merged.row_groups = args.row_groups;
    merged.splits = args.splits;
    merged.split_stages = args.split_stages;
    merged.waves = args.waves;
    merged.k_waves = args.k_waves;
    merged.chunk = args.chunk;
    merged.groups_in_grid = args.groups_in_grid;
    merged.quads_inverse = args.quads_inverse;
    merged.share = args.share;
    merged.share_inverse = args.share_inverse;
    merged.is_prefetched = args.is_prefetched;
    args = merged;
  }

  const Operands& in_;
  Tensor out_;
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
    if (std::optional<Tensor> out = GemmCall(in).run()) return *out;
  }
  return run_library(in);
}

std::vector<Tensor> skinny_gemm_list(at::TensorList a, at::TensorList weight,
                                     const MaybeTensors& scale_a, const MaybeTensors& scale_b,
                                     const MaybeTensors& bias, ScalarType out_type) {
  check_gemm_list(a, weight, scale_a, scale_b, bias);
  const auto entry = [](const MaybeTensors& list, size_t i) {
    return list ? std::optional<Tensor>((*list)[i]) : std::nullopt;
  };
  std::vector<Tensor> results;
  for (size_t i = 0; i < a.size(); ++i) {
    results.push_back(skinny_gemm(a[i], weight[i], entry(scale_a, i), entry(scale_b, i),
                                  entry(bias, i), std::nullopt, out_type));
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(mi300, CUDA, m) {
  m.impl("skinny_gemm", &skinny_gemm);
  m.impl("skinny_gemm_list", &skinny_gemm_list);
}

}  // namespace mi300
