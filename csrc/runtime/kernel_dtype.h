// torch's dtypes by the numbers that kernels know.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <mi300/row_args.h>

namespace mi300 {

inline Dtype dtype_of(const char* op, c10::ScalarType type) {
  switch (type) {
    case at::kFloat: return Dtype::kF32;
    case at::kBFloat16: return Dtype::kBf16;
    case at::kHalf: return Dtype::kF16;
    case at::kFloat8_e4m3fn: return Dtype::kE4m3fn;
    case at::kFloat8_e4m3fnuz: return Dtype::kE4m3fnuz;
    case at::kFloat8_e5m2: return Dtype::kE5m2;
    default:
      TORCH_CHECK(false, op, ": unsupported dtype; got ", type, ", expected float32, bfloat16, ",
                  "float16 or an FP8 dtype. Convert it first.");
  }
}

}  // namespace mi300
