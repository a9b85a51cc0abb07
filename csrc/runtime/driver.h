// The GPU driver as a table of functions, resolved at run time from the library that is loaded.
//
// HIP and CUDA modules have the same shape, so one table serves both: libamdhip64 and libcuda are
// found among the libraries of this process (the instance that torch loaded), or opened by name.
// No HIP or CUDA header is needed to build this. Constants are those of the public driver APIs.
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mi300 {

// cuLaunchKernelEx's configuration (CUDA driver API, CUlaunchConfig and CUlaunchAttribute).
struct LaunchAttribute {
  int32_t id;
  int32_t padding;
  union {
    uint32_t cluster[3];
    int32_t flag;
    char bytes[64];
  } value;
};
constexpr int32_t kClusterDimension = 4;
constexpr int32_t kProgrammaticSerialization = 6;

struct ExtendedLaunch {
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t lds_bytes;
  void* stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};

// cuGraphKernelNodeGetParams' answer (CUDA driver API, CUDA_KERNEL_NODE_PARAMS_v2): its first field.
struct KernelNode {
  void* function;
  char rest[120];
};

// Every function returns 0 on success. Those that only one driver has may be null.
struct Driver {
  const char* name = "";
  int (*init)(unsigned) = nullptr;
  int (*module_load_data)(void** module, const void* image) = nullptr;
  int (*module_get_function)(void** function, void* module, const char* entry) = nullptr;
  int (*launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned lds_bytes,
                       void* stream, void** arguments, void** extra) = nullptr;
  int (*launch_kernel_extended)(const ExtendedLaunch*, void* function, void** arguments,
                                void** extra) = nullptr;
  int (*function_set_attribute)(void* function, int attribute, int value) = nullptr;
  int (*exchange_capture_mode)(int* mode) = nullptr;
  int (*error_text)(int status, const char** text) = nullptr;
  int (*stream_get_capture_info)(void* stream, int* status, uint64_t* id, void** graph,
                                 void* const** nodes, const void** edges, size_t* count) = nullptr;
  int (*graph_kernel_node_get_params)(void* node, KernelNode* parameters) = nullptr;

  std::string describe(int status) const {
    const char* text = nullptr;
    if (error_text != nullptr) error_text(status, &text);
    return std::string(name) + " status " + std::to_string(status) + " (" +
           (text != nullptr ? text : "no description") + ")";
  }
};

constexpr int kMaxDynamicLds = 8;       // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kCaptureActive = 1;       // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr int kCaptureModeRelaxed = 2;  // also hipStreamCaptureModeRelaxed

// Path of a library of this process whose file name starts with `stem`; empty if there is none.
inline std::string find_loaded_library(const char* stem) {
  struct Search {
    const char* stem;
    std::string path;
  } search{stem, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        const char* slash = std::strrchr(info->dlpi_name, '/');
        const char* file = slash != nullptr ? slash + 1 : info->dlpi_name;
        if (std::strncmp(file, wanted->stem, std::strlen(wanted->stem)) != 0) return 0;
        wanted->path = info->dlpi_name;
        return 1;
      },
      &search);
  return search.path;
}

// Opens the library that is loaded already, else the first of `names` that the linker finds.
inline void* open_library(const char* stem, std::initializer_list<const char*> names) {
  const std::string loaded = find_loaded_library(stem);
  if (!loaded.empty()) {
    if (void* handle = dlopen(loaded.c_str(), RTLD_NOW | RTLD_NOLOAD)) return handle;
  }
  for (const char* name : names) {
    if (void* handle = dlopen(name, RTLD_NOW)) return handle;
  }
  return nullptr;
}

template <class Function>
void resolve(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  if (function == nullptr) {
    throw std::runtime_error(std::string("launcher: the GPU driver lacks a function; got none for ") +
                             symbol + ", expected one. Update the driver.");
  }
}

inline Driver resolve_hip(void* library) {
  Driver driver;
  driver.name = "HIP";
  resolve(library, "hipInit", driver.init);
  resolve(library, "hipModuleLoadData", driver.module_load_data);
  resolve(library, "hipModuleGetFunction", driver.module_get_function);
  resolve(library, "hipModuleLaunchKernel", driver.launch_kernel);
  resolve(library, "hipThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  resolve(library, "hipDrvGetErrorString", driver.error_text);
  return driver;
}

inline Driver resolve_cuda(void* library) {
  Driver driver;
  driver.name = "CUDA";
  resolve(library, "cuInit", driver.init);
  resolve(library, "cuModuleLoadData", driver.module_load_data);
  resolve(library, "cuModuleGetFunction", driver.module_get_function);
  resolve(library, "cuLaunchKernel", driver.launch_kernel);
  resolve(library, "cuLaunchKernelEx", driver.launch_kernel_extended);
  resolve(library, "cuFuncSetAttribute", driver.function_set_attribute);
  resolve(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  resolve(library, "cuGetErrorString", driver.error_text);
  // Both are absent from drivers before 12.3.
  driver.stream_get_capture_info = reinterpret_cast<decltype(driver.stream_get_capture_info)>(
      dlsym(library, "cuStreamGetCaptureInfo_v3"));
  driver.graph_kernel_node_get_params =
      reinterpret_cast<decltype(driver.graph_kernel_node_get_params)>(
          dlsym(library, "cuGraphKernelNodeGetParams_v2"));
  return driver;
}

// The driver of this process's GPU: HIP where libamdhip64 is loaded, else CUDA.
inline Driver find_driver() {
  if (!find_loaded_library("libamdhip64").empty()) {
    return resolve_hip(open_library("libamdhip64", {}));
  }
  if (void* library = open_library("libcuda.so", {"libcuda.so.1", "libcuda.so"})) {
    return resolve_cuda(library);
  }
  if (void* library = open_library("libamdhip64", {"libamdhip64.so"})) return resolve_hip(library);
  throw std::runtime_error(
      "launcher: no GPU driver; got neither libamdhip64 nor libcuda, expected one of them. "
      "Install the driver or move the model to the CPU.");
}

}  // namespace mi300
