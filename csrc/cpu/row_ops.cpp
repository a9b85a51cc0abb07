// Checks, outputs and per-row quantisation shared by the norm and the activation operators.
#include "row_ops.h"

#include <ATen/ops/empty_cpu_dispatch.h>
#include <c10/util/Exception.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace mi300 {
namespace {

constexpr size_t kMaxScales = 4;
constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
constexpr uintptr_t kHugeOutput = 4 * kHugePage;
// Bytes of row scratch that a thread keeps between calls.
constexpr int64_t kKeptScratch = 1 << 20;

bool is_float(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// Distance between rows in elements if one distance fits all, else -1.
int64_t row_stride(const at::Tensor& tensor) {
  int64_t stride = -1, extent = 1;
  for (int64_t dim = tensor.dim() - 2; dim >= 0; --dim) {
    const int64_t size = tensor.size(dim);
    if (size == 1) continue;
    if (stride < 0) {
      stride = tensor.stride(dim);
    } else if (tensor.stride(dim) != stride * extent) {
      return -1;
    }
    extent *= size;
  }
  return std::max<int64_t>(stride, 0);
}

}  // namespace

Rows as_rows(const at::Tensor& tensor) {
  const bool adjacent = tensor.stride(-1) == 1 || tensor.size(-1) <= 1;
  int64_t stride = adjacent ? row_stride(tensor) : -1;
  if (adjacent && stride < 0 && tensor.numel() == 0) stride = 0;
  using Owner = c10::MaybeOwned<at::Tensor>;
  Owner owner = stride >= 0 ? Owner::borrowed(tensor) : Owner::owned(tensor.contiguous());
  if (stride < 0) stride = owner->size(-1);
  const auto* data = static_cast<const char*>(owner->const_data_ptr());
  const auto size = static_cast<int64_t>(owner->element_size());
  return {std::move(owner), tensor.scalar_type(), data, stride * size};
}

void check_float(const char* op, const char* name, at::ScalarType dtype) {
  TORCH_CHECK(is_float(dtype), op, ": unsupported ", name, "; got ", dtype,
              ", expected float32, bfloat16 or float16. Choose one of these.");
}

Shape check_rows(const char* op, const at::Tensor& first, const at::Tensor* second,
                 const at::Tensor* weight) {
  TORCH_CHECK(first.dim() > 0, op,
              ": the input has no last dimension; got a 0-D tensor, expected [..., hidden]. Add one.");
  for (const at::Tensor* tensor : {&first, second, weight}) {
    if (tensor == nullptr) continue;
    TORCH_CHECK(is_float(tensor->scalar_type()), op, ": unsupported input dtype; got ",
                tensor->scalar_type(),
                ", expected float32, bfloat16 or float16. Convert the input first.");
    TORCH_CHECK(tensor->device() == first.device(), op, ": inputs on several devices; got ",
                first.device(), " and ", tensor->device(),
                ", expected one. Move them to the same device.");
  }
  TORCH_CHECK(second == nullptr || first.sizes() == second->sizes(), op,
              ": the two inputs differ in shape; got ", first.sizes(), " and ", second->sizes(),
              ", expected equal shapes. Expand the smaller one first.");
  const int64_t hidden = first.size(-1);
  TORCH_CHECK(weight == nullptr || (weight->dim() == 1 && weight->size(0) == hidden), op,
              ": the weight does not fit the last dimension; got ", weight->sizes(),
              ", expected [", hidden, "]. Pass one weight per element of a row.");
  return {hidden == 0 ? 0 : first.numel() / hidden, hidden};
}

StaticTarget::StaticTarget(const char* op, at::TensorList scale_tensors, Quantizer quantizer,
                           bool return_y)
    : quantizer(quantizer), return_y(return_y) {
  TORCH_CHECK(!scale_tensors.empty() && scale_tensors.size() <= kMaxScales, op,
              ": wrong number of scales; got ", scale_tensors.size(), ", expected 1 to ",
              kMaxScales, ". Pass one per consumer, and split longer lists.");
  for (const at::Tensor& scale : scale_tensors) {
    TORCH_CHECK(scale.numel() == 1 && scale.scalar_type() == at::kFloat, op,
                ": a static scale is one fp32 value; got ", scale.sizes(), " ",
                scale.scalar_type(),
                ", expected [1] Float. Use the _dynamic operator for scales per row.");
    TORCH_CHECK(scale.device().is_cpu(), op, ": a scale is on another device; got ",
                scale.device(), ", expected cpu. Move it to the inputs' device.");
    scales.push_back(*scale.const_data_ptr<float>());
  }
}

at::Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options) {
  at::Tensor tensor = at::cpu::empty(shape, options);  // without the dispatcher's 0.1 us
#if defined(__linux__)
  const uintptr_t size = tensor.nbytes();
  if (size >= kHugeOutput) {
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t last = (begin + size) / kHugePage * kHugePage;
    // Advice only: where it is refused the pages are small.
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
  return tensor;
}

RowOutputs make_outputs(const at::Tensor& like, at::ScalarType y_dtype, bool return_y) {
  const auto options = like.options().dtype(y_dtype);
  at::Tensor y = return_y ? empty_rows(like.sizes(), options) : at::cpu::empty({0}, options);
  return {{}, {}, std::move(y), y_dtype};
}

void add_static_output(RowOutputs& out, const at::Tensor& like, const StaticTarget& target) {
  c10::SmallVector<int64_t, 6> shape(like.sizes().begin(), like.sizes().end());
  const auto scales = static_cast<int64_t>(target.scales.size());
  if (scales > 1) shape.insert(shape.begin(), scales);
  out.q = empty_rows(shape, like.options().dtype(target.quantizer.q_dtype));
}

void add_dynamic_output(const char* op, RowOutputs& out, const at::Tensor& like,
                        const DynamicTarget& target) {
  const int64_t hidden = like.size(-1), group = target.group_size;
  TORCH_CHECK(group == -1 || group == 0 || (group > 0 && hidden % group == 0), op,
              ": the last dimension is not a whole number of groups; got hidden ", hidden,
              " and group_size ", group, ", expected a divisor of hidden, -1 (per token) or 0 (per "
              "tensor). Change group_size or pad the input.");
  c10::SmallVector<int64_t, 6> shape;
  if (group != 0) {
    shape.append(like.sizes().begin(), like.sizes().end());
    shape.back() = group == -1 ? 1 : hidden / group;
  }
  out.scale = at::cpu::empty(shape, like.options().dtype(at::kFloat));
  out.q = empty_rows(like.sizes(), like.options().dtype(target.quantizer.q_dtype));
  // A row without elements has no loop below, but its scale is an output.
  if (hidden == 0) out.scale.fill_(target.rule(0.0f, out.y_dtype));
}

void quantize_groups(const DynamicTarget& target, const RowOutputs& out, int64_t row,
                     int64_t hidden, const char* y) {
  const int64_t group = target.group_size == -1 ? hidden : target.group_size;
  const int64_t groups = hidden / group, size = out.y_size();
  float* scales = out.scale.data_ptr<float>() + row * groups;
  uint8_t* q = static_cast<uint8_t*>(out.q.data_ptr()) + row * hidden;
  for (int64_t i = 0; i < groups; ++i) {
    const int64_t first = i * group;
    const float amax = max_magnitude(out.y_dtype, y + first * size, group);
    scales[i] = target.rule(amax, out.y_dtype);
    for_chunks(group, [&](int64_t begin, int64_t n) {
      const int64_t offset = first + begin;
      target.quantizer.run(scales[i], out.y_dtype, y + offset * size, n, q + offset);
    });
  }
}

void quantize_tensor(const DynamicTarget& target, const RowOutputs& kept,
                     const std::vector<float>& row_amax, Shape shape) {
  float amax = 0.0f;
  for (float value : row_amax) amax = max_or_nan(amax, value);
  const float scale = target.rule(amax, kept.y_dtype);
  *kept.scale.data_ptr<float>() = scale;
  auto* q = static_cast<uint8_t*>(kept.q.data_ptr());
  for_rows(shape, [&](int64_t row) {
    for_chunks(shape.hidden, [&](int64_t begin, int64_t n) {
      const int64_t offset = row * shape.hidden + begin;
      target.quantizer.run(scale, kept.y_dtype, kept.y_at(offset), n, q + offset);
    });
  });
}

float max_magnitude(at::ScalarType y_dtype, const char* y, int64_t n) {
  return with_float_type(y_dtype, [&](auto zero) {
    return max_magnitude(reinterpret_cast<const decltype(zero)*>(y), n);
  });
}

RowScratch::RowScratch(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (bytes > kKeptScratch) {
    own_ = std::make_unique<char[]>(size);
    data_ = own_.get();
    return;
  }
  thread_local std::vector<char> kept;
  if (kept.size() < size) kept.resize(size);
  data_ = kept.data();
}

}  // namespace mi300
