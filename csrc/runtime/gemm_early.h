// Whether a kernel may read its weights before the kernel ahead of it has ended.
//
// It may where that kernel is one of ours and has not written them. Ours (but silu_mul_usual.h of few
// elements) let the kernel
// behind start after their own wait, so all earlier kernels have ended by then; they write nothing but
// tensors that their call allocates, so storage that was a weight of an earlier call is none of those.
// Other kernels may let us start before they have written (cuBLAS's do), but then the one ahead is not
// ours. What is ahead can be asked for while a graph is captured: early reads are made there alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <mutex>
#include <optional>

#include "launcher.h"

namespace mi300 {

// Remembers which storages were weights of earlier calls, the latest of those that share a place.
class WeightHistory {
 public:
  static WeightHistory& instance() {
    static WeightHistory& history = *new WeightHistory;  // alive while tensors are
    return history;
  }

  // Notes a call's weight; true if an earlier call had the same storage.
  bool note(const at::Tensor& weight) {
    c10::StorageImpl* storage = weight.storage().unsafeGetStorageImpl();
    auto& known = known_[reinterpret_cast<uintptr_t>(storage) / sizeof(void*) % kPlaces];
    std::unique_lock lock(mutex_);
    // NOTE: a weak reference keeps the address from being given to another storage.
    if (known && known->_unsafe_get_target() == storage) return true;
    known.emplace(weight.storage().getWeakStorageImpl());
    return false;
  }

 private:
  static constexpr size_t kPlaces = 8191;
  std::mutex mutex_;
  std::array<std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>>, kPlaces> known_;
};

}  // namespace mi300
