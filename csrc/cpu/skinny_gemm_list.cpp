// Several matmuls that read the same rows: on a CPU one after the other, each on all threads.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <mi300/gemm_operands.h>
#include <torch/library.h>

namespace mi300 {
namespace {

std::vector<Tensor> skinny_gemm_list(at::TensorList a, at::TensorList weight,
                                     const MaybeTensors& scale_a, const MaybeTensors& scale_b,
                                     const MaybeTensors& bias, at::ScalarType out_type) {
  using Single = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, at::ScalarType);
  static const auto single =
      c10::Dispatcher::singleton().findSchemaOrThrow("mi300::skinny_gemm", "").typed<Single>();
  check_gemm_list(a, weight, scale_a, scale_b, bias);
  const auto entry = [](const MaybeTensors& list, size_t i) {
    return list ? std::optional<Tensor>((*list)[i]) : std::nullopt;
  };
  std::vector<Tensor> results;
  for (size_t i = 0; i < a.size(); ++i) {
    results.push_back(single.call(a[i], weight[i], entry(scale_a, i), entry(scale_b, i),
                                  entry(bias, i), std::nullopt, out_type));
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(mi300, CPU, m) { m.impl("skinny_gemm_list", &skinny_gemm_list); }

}  // namespace mi300
