// Operators take dtypes as numbers, which the dispatcher passes faster: host code only.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

namespace mi300 {

// A dtype as an operator's argument; the numbers are in dtype_codes.py.
using DtypeCode = int64_t;

inline c10::ScalarType dtype_of_code(DtypeCode code) {
  const bool is_dtype = 0 <= code && code < static_cast<DtypeCode>(c10::ScalarType::NumOptions);
  return is_dtype ? static_cast<c10::ScalarType>(code) : c10::ScalarType::Undefined;
}

inline std::optional<c10::ScalarType> dtype_of_code(std::optional<DtypeCode> code) {
  if (!code) return std::nullopt;
  return dtype_of_code(*code);
}

}  // namespace mi300
