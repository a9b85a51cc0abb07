// skinny_gemm for GPU tensors: plans, launches, and hands what no kernel takes to torch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <optional>
#include <shared_mutex>
#include <sstream>

#include "gemm_plan.h"
#include "torch_device.h"

namespace mi300 {
namespace {

using at::ScalarType;
using at::Tensor;

constexpr const char* kOp = "skinny_gemm";

Dtype gemm_dtype(ScalarType type) {
  switch (type) {
    case at::kFloat: return Dtype::kF32;
    case at::kBFloat16: return Dtype::kBf16;
    case at::kHalf: return Dtype::kF16;
    case at::kFloat8_e4m3fn: return Dtype::kE4m3fn;
    case at::kFloat8_e4m3fnuz: return Dtype::kE4m3fnuz;
    case at::kFloat8_e5m2: return Dtype::kE5m2;
    default:
      TORCH_CHECK(false, kOp, ": unsupported dtype; got ", type, ", expected float32, bfloat16, ",
                  "float16 or an FP8 dtype. Convert it first.");
  }
}

bool is_float(ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

struct Operands {
  const Tensor& a;
  const Tensor& weight;
  const std::optional<Tensor>& scale_a;
  const std::optional<Tensor>& scale_b;
  const std::optional<Tensor>& bias;
  const std::optional<Tensor>& addend;
  ScalarType out_type;

  bool is_fp8() const { return gemm_dtype(a.scalar_type()) >= Dtype::kE4m3fn; }

  std::string describe() const {
    std::ostringstream text;
    text << kOp << " of " << a.sizes() << " and " << weight.sizes() << " " << a.scalar_type();
    return text.str();
  }
};

void check_scale(const char* name, const std::optional<Tensor>& scale, bool is_wanted,
                 int64_t length, const Tensor& a) {
  TORCH_CHECK(scale.has_value() == is_wanted, kOp, ": ", name,
              " goes with FP8 operands and with no others; got ",
              scale.has_value() ? "a scale" : "None", " for ", a.scalar_type(),
              ", expected the opposite. Pass one scale per operand with FP8, none otherwise.");
  if (!scale.has_value()) return;
  TORCH_CHECK(scale->scalar_type() == at::kFloat &&
                  (scale->numel() == 1 || scale->numel() == length),
              kOp, ": ", name, " has the wrong size or dtype; got ", scale->sizes(), " ",
              scale->scalar_type(), ", expected 1 or ", length,
              " fp32 values. Pass a per-tensor or a per-row/per-column scale.");
}

void check(const Operands& in) {
  TORCH_CHECK(in.a.dim() == 2 && in.weight.dim() == 2 && in.a.size(1) == in.weight.size(1), kOp,
              ": the operands do not fit; got a ", in.a.sizes(), " and weight ", in.weight.sizes(),
              ", expected [m, k] and [n, k]. Pass the weight as nn.Linear stores it.");
  const bool is_pair = in.is_fp8() ? gemm_dtype(in.weight.scalar_type()) >= Dtype::kE4m3fn
                                   : in.a.scalar_type() == in.weight.scalar_type();
  TORCH_CHECK(is_pair, kOp, ": unsupported operand dtypes; got ", in.a.scalar_type(), " and ",
              in.weight.scalar_type(), ", expected two FP8 dtypes or the same float dtype. ",
              "Convert one of them.");
  TORCH_CHECK(is_float(in.out_type), kOp, ": unsupported out_dtype; got ", in.out_type,
              ", expected float32, bfloat16 or float16. Choose one of these.");
  const int64_t m = in.a.size(0), n = in.weight.size(0);
  check_scale("scale_a", in.scale_a, in.is_fp8(), m, in.a);
  check_scale("scale_b", in.scale_b, in.is_fp8(), n, in.a);
  TORCH_CHECK(!in.bias || (in.bias->dim() == 1 && in.bias->size(0) == n), kOp,
              ": the bias does not fit; got ", in.bias ? in.bias->sizes() : at::IntArrayRef{},
              ", expected (", n, "). Pass one value per output column.");
  TORCH_CHECK(!in.addend || in.addend->sizes() == at::IntArrayRef({m, n}) ||
                  in.addend->sizes() == at::IntArrayRef({n}),
              kOp, ": the addend does not fit; got ",
              in.addend ? in.addend->sizes() : at::IntArrayRef{}, ", expected (", m, ", ", n,
              ") or (", n, "). Expand it first.");
  for (const auto* other : {&in.scale_a, &in.scale_b, &in.bias, &in.addend}) {
    if (!other->has_value()) continue;
    TORCH_CHECK((*other)->device() == in.a.device() && is_float((*other)->scalar_type()), kOp,
                ": unsupported scale, bias or addend; got ", (*other)->scalar_type(), " on ",
                (*other)->device(), ", expected a float dtype on ", in.a.device(),
                ". Convert or move it.");
  }
  TORCH_CHECK(in.weight.device() == in.a.device(), kOp, ": inputs on several devices; got ",
              in.a.device(), " and ", in.weight.device(),
              ", expected one. Move them to the same device.");
}

// Adds what the library's product lacks, in fp32, with the operator's roundings.
Tensor finish(const Operands& in, Tensor product, bool has_scales) {
  if (in.scale_a && !has_scales) {
    const int64_t m = in.a.size(0);
    const Tensor rows = in.scale_a->numel() == m ? in.scale_a->reshape({m, 1}) : *in.scale_a;
    product = at::mul(product, at::mul(rows, in.scale_b->reshape({-1})));
  }
  if (in.bias) product = at::add(product, in.bias->to(at::kFloat));
  product = product.to(in.out_type);
  if (in.addend) {
    product = at::add(product.to(at::kFloat), in.addend->to(at::kFloat)).to(in.out_type);
  }
  return product;
}

// FP8 problems that the library's kernel takes on every device.
bool is_library_fp8(const Operands& in) {
  const int64_t m = in.a.size(0), n = in.weight.size(0), k = in.a.size(1);
  const bool is_plain = in.scale_a->numel() == 1 && in.scale_b->numel() == 1;
  const bool is_rowwise = in.scale_a->numel() == m && in.scale_b->numel() == n &&
                          in.out_type == at::kBFloat16 && !in.bias && !in.addend;
  return m > 0 && k > 0 && n % 16 == 0 && k % 16 == 0 && in.a.stride(1) == 1 &&
         in.weight.stride(1) == 1 && in.a.stride(0) >= k && in.weight.stride(0) >= k &&
         (is_plain || is_rowwise);
}

// The vendor's library through torch; any problem, any device, capture-safe.
Tensor run_library(const Operands& in) {
  const bool is_exact = !in.bias && !in.addend;
  if (in.is_fp8() && is_library_fp8(in)) {
    const bool is_plain = in.scale_a->numel() == 1 && in.scale_b->numel() == 1;
    const Tensor scale_a = is_plain ? *in.scale_a : in.scale_a->reshape({-1, 1});
    const Tensor scale_b = is_plain ? *in.scale_b : in.scale_b->reshape({1, -1});
    const ScalarType type = is_exact ? in.out_type : at::kFloat;
    Tensor product = at::_scaled_mm(in.a, in.weight.t(), scale_a, scale_b, std::nullopt,
                                    std::nullopt, type, false);
    return is_exact ? product : finish(in, product, true);
  }
  if (!in.is_fp8() && is_exact && in.out_type == in.a.scalar_type()) {
    return at::mm(in.a, in.weight.t());
  }
  return finish(in, at::mm(in.a.to(at::kFloat), in.weight.t().to(at::kFloat)), false);
}

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
        static_cast<uint64_t>(index), is_gemm_aligned(args)};
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
  check(in);
  const bool is_empty = a.size(0) == 0 || weight.size(0) == 0;
  if (is_empty) return at::empty({a.size(0), weight.size(0)}, a.options().dtype(out_type));
  if (a.size(1) == 0) return run_library(in);
  if (a.size(0) <= kGemmMaxRows) {
    if (std::optional<Tensor> out = GemmCall(in).run()) return *out;
  }
  return run_library(in);
}

}  // namespace

TORCH_LIBRARY_IMPL(mi300, CUDA, m) { m.impl("skinny_gemm", &skinny_gemm); }

}  // namespace mi300
