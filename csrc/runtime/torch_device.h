// torch's current device and stream, for operators; without CUDA or ROCm headers.
#pragma once

#include <c10/core/DeviceGuard.h>

#include "launcher.h"

namespace mi300 {

// The raw stream (hipStream_t or CUstream) that torch uses now on a device.
//
// NOTE: the function is looked up in the library that torch loaded, since this library is not
// linked to it: it is absent from a CPU-only torch.
inline void* current_stream(int device) {
  using GetStream = int (*)(int32_t, void**);
  static const GetStream get_stream = [] {
    void* library = open_library("libtorch_hip", {});
    if (library == nullptr) library = open_library("libtorch_cuda.so", {});
    if (library == nullptr) {
      throw std::runtime_error("launcher: torch has no GPU library; got neither libtorch_hip nor "
                               "libtorch_cuda, expected one. Install torch for your GPU.");
    }
    GetStream function = nullptr;
    resolve(library, "aoti_torch_get_current_cuda_stream", function);
    return function;
  }();
  void* stream = nullptr;
  if (get_stream(device, &stream) != 0) {
    throw std::runtime_error("launcher: no current stream; got an error for device " +
                             std::to_string(device) + ", expected a stream. Check torch's GPU.");
  }
  return stream;
}

}  // namespace mi300
