"""Host time of one fused operator on a GPU, beyond the driver's own launch.

Nothing waits for the GPU. From C++: the operator through the dispatcher (checks, allocations, plan,
launch), with and without PyTorch's autograd layer; the same sources built once more with a driver
whose launch does nothing, which leaves the host's time beyond it; the same kernel launched again by
the core with ready arguments; and what the operator's outputs take alone. From Python: the
operator, and the same with a keyword, which goes through PyTorch's own conversions. Run as
`python -m benchmarks.host_time`.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.cpp_extension import load_inline

from benchmarks.header import open_device
from benchmarks.timing import Unavailable
from mi300_inductor import build, dtype_codes, ops, plan, toolchain
from mi300_inductor.arch import SM90

OP = "add_rms_norm_quant"
SOURCE = r"""
#define mi300 host_time  // the operators' sources once more, under a name of their own
#include "row_ops.cpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/extension.h>
#include <chrono>
using at::Tensor;
using Op = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, int64_t, int64_t,
                                              const std::optional<Tensor>&, double, double, int64_t,
                                              int64_t, at::TensorList, int64_t, c10::string_view,
                                              int64_t, double, double, bool);
constexpr auto kBf16 = static_cast<int64_t>(at::kBFloat16);
constexpr auto kF32 = static_cast<int64_t>(at::kFloat);
constexpr auto kFp8 = static_cast<int64_t>(at::kFloat8_e4m3fn);
template <class Call>
double nanoseconds(int calls, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / calls;
}
// Gives these sources a driver that does nothing.
void add_silent_device(int64_t info, const std::vector<std::string>& modules) {
  mi300::Driver driver;
  driver.module_load_data = [](void** module, const void* image) {
    *module = const_cast<void*>(image);
    return 0;
  };
  driver.module_get_function = [](void** function, void* module, const char*) {
    *function = module;
    return 0;
  };
  driver.launch_kernel = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void*, void**, void**) { return 0; };
  driver.launch_kernel_extended = [](const mi300::ExtendedLaunch*, void*, void**, void**) {
    return 0;
  };
  driver.exchange_capture_mode = [](int*) { return 0; };
  auto& device = mi300::Devices::instance().add(
      0, *reinterpret_cast<const mi300::DeviceInfo*>(info), driver);
  for (const std::string& name : modules) device.add_image(name, "nothing");
}
double time_op(const std::string& name, Tensor x, Tensor residual, Tensor weight, Tensor scale,
               bool has_autograd, int calls) {
  std::optional<at::AutoDispatchBelowAutograd> below;
  if (!has_autograd) below.emplace();
  const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").typed<Op>();
  const std::vector<Tensor> scales{scale};
  const std::optional<Tensor> w(weight);
  return nanoseconds(calls, [&] {
    op.call(x, residual, kBf16, kBf16, w, 1e-5, 0.0, kBf16, kBf16, scales, kFp8, "div", kF32,
            -448.0, 448.0, false);
  });
}
double time_outputs(Tensor x, int calls) {
  const mi300::Outputs outputs(x);
  return nanoseconds(calls, [&] {
    outputs.make(x.sizes(), at::kBFloat16);
    outputs.make(x.sizes(), at::kFloat8_e4m3fn);
    outputs.make_none(at::kBFloat16);
  });
}
double time_launch(int64_t function, int64_t what, int64_t arguments, int64_t stream, int calls) {
  using Launch = int (*)(int, const void*, void*, void*);
  const auto launch = reinterpret_cast<Launch>(function);
  return nanoseconds(calls, [&] {
    TORCH_CHECK(launch(0, (const void*)what, (void*)arguments, (void*)stream) == 0);
  });
}
"""


def build_timer() -> Any:
    """The module of `SOURCE`, with its operators known to PyTorch as `host_time::...`."""
    csrc = build.csrc_dir()
    return load_inline(
        "host_time",
        SOURCE,
        functions=["add_silent_device", "time_op", "time_outputs", "time_launch"],
        extra_cflags=["-O3", "-std=c++20"],
        extra_ldflags=["-ldl"],
        extra_include_paths=[str(csrc / "include"), str(csrc / "runtime")],
    )


def from_python(
    calls: int, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> dict[str, Callable[[], float]]:
    """Timers of calls from Python, in nanoseconds a call."""
    op = getattr(torch.ops.mi300, OP).default
    bf16, f32 = dtype_codes.code(torch.bfloat16), dtype_codes.code(torch.float32)
    fp8 = dtype_codes.code(torch.float8_e4m3fn)
    args = (x, residual, bf16, bf16, weight, 1e-5, 0.0, bf16, bf16, [scale], fp8, "div", f32)

    def timed(call: Callable[[], object]) -> float:
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - start) / calls

    return {
        "from Python": lambda: timed(lambda: op(*args, -448.0, 448.0, False)),
        "with a keyword": lambda: timed(lambda: op(*args, -448.0, 448.0, return_y=False)),
    }


def ready_launch(rows: int, hidden: int, tensors: dict[str, torch.Tensor]) -> plan.RowLaunch:
    """The launch of the timed operator, its outputs allocated."""
    problem = plan.RowProblem(is_norm=1)
    args = problem.args
    for name, tensor in tensors.items():
        setattr(args, name, tensor.data_ptr())
    args.scales[0], args.scale_count = tensors["scale"].data_ptr(), 1
    args.rows, args.hidden, args.first_stride, args.second_stride = rows, hidden, hidden, hidden
    for name in ("first", "second", "weight", "sum", "residual", "inner", "y"):
        setattr(args, f"{name}_dtype", plan.Dtype.BF16)
    args.q_dtype, args.scaled_dtype = plan.Dtype.E4M3FN, plan.Dtype.F32
    args.quant, args.eps, args.weight_offset = plan.QUANTS.index("static"), 1e-5, -0.0
    args.clamp_min, args.clamp_max = -448.0, 448.0
    (launch,) = plan.plan_rows(problem, plan.device_info(SM90))
    return launch


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m benchmarks.host_time", description=__doc__.splitlines()[0]
    ).parse_args()
    try:
        open_device("cuda")
    except Unavailable as missing:
        print(f"missing: {missing}")
        return 1
    for name, values in measure().items():
        print(f"{name}: {statistics.median(values) / 1e3:.2f} us of host time")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    return 0


def measure() -> dict[str, list[float]]:
    """Nanoseconds of one call in each of 31 rounds, by what was called."""
    silent = torch.library.Library("host_time", "DEF")  # type: ignore[no-untyped-call]
    for name, schema in ops.SCHEMAS.items():
        silent.define(name + schema)
    timer = build_timer()
    build.load_kernels("CUDA")
    info = plan.device_info(SM90)
    timer.add_silent_device(ctypes.addressof(info), [s.stem for s in toolchain.sources(SM90)])
    rows, hidden, calls = 1, 4096, 200
    make = lambda dtype: torch.randn(rows, hidden, device="cuda").to(dtype)  # noqa: E731
    x, residual, weight = make(torch.bfloat16), make(torch.bfloat16), make(torch.bfloat16)[0]
    scale = torch.ones(1, device="cuda")
    outputs = {"residual_out": torch.empty_like(x), "q": torch.empty_like(x)}
    inputs = {"first": x, "second": residual, "weight": weight, "scale": scale}
    launch = ready_launch(rows, hidden, inputs | outputs)
    what = plan.Launch(
        *(launch.module, launch.entry, launch.grid, launch.block, launch.cluster),
        *(launch.lds_bytes, bool(launch.is_dependent)),
    )
    core = plan.open_core(build.build_library("runtime"))
    function = ctypes.cast(core.mi300_launch, ctypes.c_void_p).value
    place = ctypes.addressof(what), ctypes.addressof(launch.args)
    stream = torch.cuda.current_stream().cuda_stream
    operators = {
        "operator": (f"mi300::{OP}", True),
        "below autograd": (f"mi300::{OP}", False),
        "below autograd, without the driver's launch": (f"host_time::{OP}", False),
    }
    names = (*operators, "launch", "outputs")
    python = from_python(calls, x, residual, weight, scale)
    times: dict[str, list[float]] = {name: [] for name in (*names, *python)}
    for _ in range(31):
        for name, (op, has_autograd) in operators.items():
            times[name].append(timer.time_op(op, x, residual, weight, scale, has_autograd, calls))
            torch.cuda.synchronize()
        times["launch"].append(timer.time_launch(function, *place, stream, calls))
        torch.cuda.synchronize()
        times["outputs"].append(timer.time_outputs(x, calls))
        for name, timed in python.items():
            times[name].append(timed())
            torch.cuda.synchronize()
    return times


if __name__ == "__main__":
    sys.exit(main())
