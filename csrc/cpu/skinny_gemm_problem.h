// What skinny_gemm computes, checked, as the kernels read it.
#pragma once

#include <c10/core/CPUAllocator.h>

#include "row_ops.h"
#include "skinny_gemm_decode.h"

namespace mi300 {

// A bias or an addend with adjacent elements; row_bytes 0 repeats one row.
struct GemmExtra {
  at::Tensor owner;
  at::ScalarType dtype = at::kFloat;
  const char* data = nullptr;
  int64_t row_bytes = 0;
};

struct GemmProblem {
  int64_t m, n, k;
  Rows a, weight;
  const float* scale_a = nullptr;  // null: no scales
  const float* scale_b = nullptr;
  int64_t scale_a_step = 0;  // 0: one value for all
  int64_t scale_b_step = 0;
  GemmExtra bias = {}, addend = {};
  at::ScalarType out_dtype = at::kFloat;
  char* out = nullptr;
};

struct Range {
  int64_t begin, end;
};

// Calls f with a value of the C++ type of an operand's dtype.
template <typename F>
void with_operand_type(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat8_e4m3fn:
      return f(c10::Float8_e4m3fn{});
    case at::kFloat8_e4m3fnuz:
      return f(c10::Float8_e4m3fnuz{});
    case at::kFloat8_e5m2:
      return f(c10::Float8_e5m2{});
    default:
      return with_float_type(dtype, f);
  }
}

// Floats that a thread keeps from call to call: fresh pages cost more than the sums in them.
class Scratch {
 public:
  float* floats(int64_t count) {
    if (count > count_) {
      data_ = {};
      data_ = c10::GetCPUAllocator()->allocate(static_cast<size_t>(count) * sizeof(float));
      count_ = count;
    }
    return static_cast<float*>(data_.get());
  }

  // Gives back what is beyond 16 MiB.
  void trim() {
    if (count_ <= kKeptFloats) return;
    data_ = {};
    count_ = 0;
  }

 private:
  static constexpr int64_t kKeptFloats = 1 << 22;
  at::DataPtr data_;
  int64_t count_ = 0;
};

}  // namespace mi300
