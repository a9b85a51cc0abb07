// Loads device code and launches kernels: raw pointers, sizes, a stream and a driver table.
//
// Device code is installed per device as named images (one per file of csrc/gpu). A module is loaded
// when one of its kernels is first launched on a device, also while a graph is being captured, and is
// kept for the life of the process. All functions may be called from several threads.
//
// The caller makes the device current; torch's device guard does it for the operators.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "driver.h"

namespace mi300 {

// What selection reads of a device. Field for field `arch.py`'s `DeviceInfo`.
struct DeviceInfo {
  int32_t wave_size;        // lanes
  int32_t cu_count;         // compute units, or multiprocessors
  int32_t threads_per_cu;   // resident at most
  int32_t lds_per_group;    // bytes of LDS that one workgroup may have
  int32_t lds_per_cu;       // bytes
  int32_t max_cluster;      // workgroups that can share a row; 1 without clusters
  int32_t has_async_copy;   // global memory to LDS without registers
  int32_t native_fp8;       // Dtype that the hardware converts to
  int32_t cast_saturates;   // bit per Dtype: what the device's own cast does beyond the maximum
};

// One kernel launch as data. `arguments` is the kernel's one by-value struct.
struct Launch {
  const char* module = "";
  const char* entry = "";
  uint32_t grid = 1;
  uint32_t block = 64;
  uint32_t cluster = 1;    // neighbouring workgroups that see each other's LDS
  uint32_t lds_bytes = 0;  // dynamic LDS
  bool is_dependent = false;  // may start before the kernel ahead has ended
};

// LDS that a kernel with dynamic LDS may have besides, in bytes: both together have one limit.
constexpr int kStaticLds = 4096;

class Device {
 public:
  Device(int index, DeviceInfo info, Driver driver) : index_(index), info_(info), driver_(driver) {}

  const DeviceInfo& info() const { return info_; }
  const Driver& driver() const { return driver_; }

  // Keeps a code object or PTX text under the name of its source file.
  void add_image(std::string name, std::string image) {
    std::unique_lock lock(mutex_);
    images_[std::move(name)] = std::move(image);
  }

  // Whether a launch on `stream`, which captures a graph, would follow one kernel that is one of ours
  // and starts what is behind it after its own wait, when all kernels ahead of it have ended.
  bool follows_own(void* stream) {
    if (driver_.stream_get_capture_info == nullptr) return false;
    if (driver_.graph_kernel_node_get_params == nullptr) return false;
    int state = 0;
    uint64_t id = 0;
    void* graph = nullptr;
    void* const* nodes = nullptr;
    const void* edges = nullptr;
    size_t count = 0;
    if (driver_.stream_get_capture_info(stream, &state, &id, &graph, &nodes, &edges, &count) != 0 ||
        state != kCaptureActive || count != 1) {
      return false;
    }
    KernelNode node{};
    if (driver_.graph_kernel_node_get_params(nodes[0], &node) != 0) return false;
    std::shared_lock lock(mutex_);
    for (const auto& [entry, function] : functions_) {
      // NOTE: the SiLU of few elements lets the kernel behind start before its own wait.
      if (function.handle == node.function) return entry.find("_usual_w2_") == std::string::npos;
    }
    return false;
  }

  // Launches on `stream`. `describe()` gives the op and shapes for errors, as text.
  template <class Describe>
  void launch(const Launch& what, void* arguments, void* stream, const Describe& describe) {
    if (what.grid == 0) return;
    void* function = find_function(what, describe).handle;
    void* parameters[] = {arguments};
    const bool is_plain = what.cluster == 1 && !what.is_dependent;
    const int status =
        is_plain ? driver_.launch_kernel(function, what.grid, 1, 1, what.block, 1, 1,
                                         what.lds_bytes, stream, parameters, nullptr)
                 : launch_extended(what, function, parameters, stream);
    if (status != 0) fail("the launch failed", what, status, describe);
  }

 private:
  int launch_extended(const Launch& what, void* function, void** parameters, void* stream) const {
    LaunchAttribute attributes[2] = {};
    uint32_t count = 0;
    if (what.cluster > 1) {
      attributes[count].id = kClusterDimension;
      for (uint32_t& extent : attributes[count].value.cluster) extent = 1;
      attributes[count++].value.cluster[0] = what.cluster;
    }
    if (what.is_dependent) {
      attributes[count].id = kProgrammaticSerialization;
      attributes[count++].value.flag = 1;
    }
    const ExtendedLaunch launch{{what.grid, 1, 1}, {what.block, 1, 1}, what.lds_bytes,
                                stream,            attributes,         count};
    return driver_.launch_kernel_extended(&launch, function, parameters, nullptr);
  }

  template <class Describe>
  [[noreturn]] void fail(const char* problem, const Launch& what, int status,
                         const Describe& describe) const {
    throw std::runtime_error(
        describe() + ": " + problem + "; got " + driver_.describe(status) + " for kernel " +
        what.entry + " of " + what.module + " on device " + std::to_string(index_) + " (grid " +
        std::to_string(what.grid) + ", workgroup " + std::to_string(what.block) + ", cluster " +
        std::to_string(what.cluster) + ", LDS " + std::to_string(what.lds_bytes) +
        " bytes), expected success. Run with one device and check an earlier asynchronous error.");
  }

  struct Function {
    void* handle = nullptr;
    bool has_dynamic_lds = false;  // and may have all there is
  };

  // A function is ready when it was found and, for a launch with dynamic LDS, allowed to have it.
  template <class Describe>
  Function find_function(const Launch& what, const Describe& describe) {
    const std::string_view entry(what.entry);
    const bool needs_lds = what.lds_bytes > 0 && driver_.function_set_attribute != nullptr;
    {
      std::shared_lock lock(mutex_);
      const auto found = functions_.find(entry);
      if (found != functions_.end() && (found->second.has_dynamic_lds || !needs_lds)) {
        return found->second;
      }
    }
    std::unique_lock lock(mutex_);
    auto found = functions_.find(entry);
    if (found == functions_.end()) {
      Function function;
      const int status =
          driver_.module_get_function(&function.handle, find_module(what, describe), what.entry);
      if (status != 0) fail("the kernel is missing", what, status, describe);
      found = functions_.emplace(what.entry, function).first;
    }
    Function& function = found->second;
    if (needs_lds && !function.has_dynamic_lds) {
      const int most = info_.lds_per_group - kStaticLds;
      const int set = driver_.function_set_attribute(function.handle, kMaxDynamicLds, most);
      if (set != 0) fail("the LDS size is refused", what, set, describe);
      function.has_dynamic_lds = true;
    }
    return function;
  }

  template <class Describe>
  void* find_module(const Launch& what, const Describe& describe) {
    if (const auto found = modules_.find(what.module); found != modules_.end()) {
      return found->second;
    }
    const auto image = images_.find(what.module);
    if (image == images_.end()) {
      throw std::runtime_error(describe() + ": no device code; got none named " + what.module +
                               " for device " + std::to_string(index_) +
                               ", expected it installed. Rebuild the cache.");
    }
    // NOTE: loading may allocate, which a capturing thread may do in the relaxed mode only.
    int mode = kCaptureModeRelaxed;
    if (driver_.exchange_capture_mode(&mode) != 0) mode = -1;
    void* module = nullptr;
    const int status = driver_.module_load_data(&module, image->second.c_str());
    if (mode >= 0) driver_.exchange_capture_mode(&mode);
    if (status != 0) fail("the device code is refused", what, status, describe);
    return modules_.emplace(what.module, module).first->second;
  }

  const int index_;
  const DeviceInfo info_;
  const Driver driver_;
  std::shared_mutex mutex_;
  std::map<std::string, std::string, std::less<>> images_;
  std::map<std::string, void*, std::less<>> modules_;
  std::map<std::string, Function, std::less<>> functions_;
};

// The devices of this process, filled once by Python before the first launch.
class Devices {
 public:
  static Devices& instance() {
    static Devices devices;
    return devices;
  }

  Device& add(int index, DeviceInfo info, const Driver& driver) {
    std::unique_lock lock(mutex_);
    auto& slot = devices_[index];
    slot = std::make_unique<Device>(index, info, driver);
    return *slot;
  }

  Device& at(int index) {
    std::shared_lock lock(mutex_);
    const auto found = devices_.find(index);
    if (found == devices_.end()) {
      throw std::runtime_error(
          "launcher: the device has no code; got device " + std::to_string(index) +
          ", expected a gfx942 or sm_90 GPU. Move the model to one or to the CPU.");
    }
    return *found->second;
  }

 private:
  std::shared_mutex mutex_;
  std::map<int, std::unique_ptr<Device>> devices_;
};

}  // namespace mi300
