// C functions around the launcher's core, for Python (ctypes): no torch in this file.
//
// A function returns 0, or 1 after keeping the error's text for mi300_last_error.
#include "gemm_plans.h"
#include "row_plans.h"

namespace {

thread_local std::string last_error;

template <class Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

}  // namespace

#define MI300_EXPORT extern "C" __attribute__((visibility("default")))

MI300_EXPORT const char* mi300_last_error() { return last_error.c_str(); }

// Makes a device known, with the driver that this process has loaded.
MI300_EXPORT int mi300_add_device(int index, const mi300::DeviceInfo* info) {
  return guarded([&] {
    const mi300::Driver driver = mi300::find_driver();
    if (const int status = driver.init(0); status != 0) {
      throw std::runtime_error("launcher: the GPU driver does not start; got " +
                               driver.describe(status) + ", expected success. Check the driver.");
    }
    mi300::Devices::instance().add(index, *info, driver);
  });
}

// Installs the code object or PTX (zero-terminated) of one source file on a known device.
MI300_EXPORT int mi300_add_image(int index, const char* name, const char* image, uint64_t bytes) {
  return guarded([&] {
    mi300::Devices::instance().at(index).add_image(name, std::string(image, bytes));
  });
}

// Launches one kernel by name on the device that is current.
MI300_EXPORT int mi300_launch(int index, const mi300::Launch* what, void* arguments, void* stream) {
  return guarded([&] {
    mi300::Devices::instance().at(index).launch(*what, arguments, stream,
                                                [] { return std::string("launch"); });
  });
}

// Plans a norm or SiLU problem into at most mi300::kMaxRowLaunches launches; returns their number.
MI300_EXPORT int mi300_plan_rows(const mi300::RowProblem* problem, const mi300::DeviceInfo* device,
                                 mi300::RowLaunch* launches) {
  const mi300::KnownRows& plan = mi300::find_row_plan(*problem, *device);
  std::copy_n(plan.launches, plan.count, launches);
  return plan.count;
}

// Plans a skinny GEMM; a plan without launches means the vendor's library.
MI300_EXPORT void mi300_plan_gemm(const mi300::GemmProblem* problem,
                                  const mi300::DeviceInfo* device, mi300::GemmPlan* plan) {
  *plan = mi300::plan_gemm(*problem, *device);
}

// Plans a skinny GEMM that is cut in a given way; returns 1 if it cannot be.
MI300_EXPORT int mi300_shape_gemm(const mi300::GemmProblem* problem,
                                  const mi300::DeviceInfo* device, const mi300::GemmShape* shape,
                                  mi300::GemmPlan* plan) {
  if (!mi300::is_gemm_legal(*shape, problem->args, *device)) return 1;
  *plan = mi300::make_gemm_plan(*shape, *problem, *device);
  return 0;
}

// Lists the ways in which a skinny GEMM can be cut, also those of the ring form; returns their number,
// of which `limit` at most are written.
MI300_EXPORT int mi300_list_gemm(const mi300::GemmProblem* problem, const mi300::DeviceInfo* device,
                                 mi300::GemmShape* shapes, int limit) {
  int count = 0;
  const auto add = [&](const mi300::GemmShape& shape) {
    if (count < limit) shapes[count] = shape;
    ++count;
  };
  if (!mi300::has_gemm_kernel(*problem, *device)) return 0;
  mi300::GemmProblem ring = *problem;
  ring.form = mi300::GemmForm::kRing;
  mi300::visit_gemm_shapes(*problem, *device, add);
  if (problem->form == mi300::GemmForm::kAny) mi300::visit_gemm_shapes(ring, *device, add);
  return count;
}

// Has the operators of this library cut skinny GEMMs like the problem in a given way from now on.
MI300_EXPORT int mi300_choose_gemm(int index, const mi300::GemmProblem* problem,
                                   const mi300::GemmShape* shape) {
  return guarded([&] {
    const mi300::DeviceInfo& info = mi300::Devices::instance().at(index).info();
    if (!mi300::GemmPlans::instance().choose(*problem, index, info, *shape)) {
      throw std::runtime_error("skinny_gemm: the plan is not legal; got one for other operands, "
                               "expected one of mi300_list_gemm. Measure the plans again.");
    }
  });
}

// The plan that the operators of this library take for a skinny GEMM.
MI300_EXPORT int mi300_find_gemm(int index, const mi300::GemmProblem* problem,
                                 mi300::GemmPlan* plan) {
  return guarded([&] {
    const mi300::DeviceInfo& info = mi300::Devices::instance().at(index).info();
    *plan = mi300::GemmPlans::instance().find(*problem, index, info);
  });
}

// Sizes of the structs that Python mirrors, to be compared with its own.
MI300_EXPORT void mi300_struct_sizes(uint32_t* sizes) {
  sizes[0] = sizeof(mi300::DeviceInfo);
  sizes[1] = sizeof(mi300::RowProblem);
  sizes[2] = sizeof(mi300::RowLaunch);
  sizes[3] = sizeof(mi300::Launch);
  sizes[4] = sizeof(mi300::GemmProblem);
  sizes[5] = sizeof(mi300::GemmPlan);
}
