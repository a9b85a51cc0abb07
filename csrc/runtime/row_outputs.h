// Outputs of an operator on the device of one of its inputs, for little host time.
#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

namespace mi300 {

// Makes tensors as at::empty does, but asks the allocator that an input came from itself: the
// dispatcher's layers around it cost 1 us a tensor. Keeps the input's device current for as long as
// it lives.
class Outputs {
 public:
  explicit Outputs(const at::Tensor& like)
      : guard_(like.device()), like_(like), allocator_(find_allocator(like)) {}

  at::Tensor make(at::IntArrayRef shape, at::ScalarType type) const {
    if (allocator_ == nullptr) return at::empty(shape, like_.options().dtype(type));
    constexpr c10::DispatchKeySet kGpu(c10::DispatchKey::CUDA);  // of ROCm's tensors too
    return at::Tensor(at::detail::empty_generic(shape, allocator_, kGpu, type, std::nullopt));
  }

 private:
  // Null where at::empty has to do it: for memory from elsewhere, or if new memory is to be filled.
  static c10::Allocator* find_allocator(const at::Tensor& like) {
    const bool is_filled = at::globalContext().deterministicAlgorithms() &&
                           at::globalContext().deterministicFillUninitializedMemory();
    return is_filled ? nullptr : like.storage().allocator();
  }

  const c10::DeviceGuard guard_;
  const at::Tensor& like_;
  c10::Allocator* const allocator_;
};

}  // namespace mi300
