"""Host time of one fused operator on a GPU, beyond the driver's own launch.

Nothing waits for the GPU. From C++: the operator through the dispatcher (checks, allocations, plan,
launch), with and without PyTorch's autograd layer; the same kernel launched again by the core with
ready arguments; and what the operator's allocations would take as calls of at::empty. From Python:
the operator, and the same with a keyword, which goes through PyTorch's own conversions. Run as
`python -m benchmarks.host_time`.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable

import torch
from torch.utils.cpp_extension import load_inline

import mi300_inductor  # noqa: F401  (registers the operators)
from mi300_inductor import build, dtype_codes, plan
from mi300_inductor.arch import SM90

SOURCE = r"""
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
double time_op(Tensor x, Tensor residual, Tensor weight, Tensor scale, bool has_autograd,
               int calls) {
  std::optional<at::AutoDispatchBelowAutograd> below;
  if (!has_autograd) below.emplace();
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("mi300::add_rms_norm_quant", "")
                      .typed<Op>();
  const std::vector<Tensor> scales{scale};
  const std::optional<Tensor> w(weight);
  return nanoseconds(calls, [&] {
    op.call(x, residual, kBf16, kBf16, w, 1e-5, 0.0, kBf16, kBf16, scales, kFp8, "div", kF32,
            -448.0, 448.0, false);
  });
}
double time_empty(Tensor x, int calls) {
  return nanoseconds(calls, [&] {
    at::empty(x.sizes(), x.options());
    at::empty(x.sizes(), x.options().dtype(at::kFloat8_e4m3fn));
    at::empty({0}, x.options());
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


def from_python(
    calls: int, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> dict[str, Callable[[], float]]:
    """Timers of calls from Python, in nanoseconds a call."""
    op = torch.ops.mi300.add_rms_norm_quant.default
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


def main() -> None:
    functions = ["time_op", "time_empty", "time_launch"]
    timer = load_inline("host_time", SOURCE, functions=functions, extra_cflags=["-O3"])
    build.load_kernels("CUDA")
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
    names = ("operator", "below autograd", "launch", "at::empty")
    python = from_python(calls, x, residual, weight, scale)
    times: dict[str, list[float]] = {name: [] for name in (*names, *python)}
    for _ in range(31):
        for name in names[:2]:
            is_whole = name == "operator"
            times[name].append(timer.time_op(x, residual, weight, scale, is_whole, calls))
            torch.cuda.synchronize()
        times["launch"].append(timer.time_launch(function, *place, stream, calls))
        torch.cuda.synchronize()
        times["at::empty"].append(timer.time_empty(x, calls))
        for name, timed in python.items():
            times[name].append(timed())
            torch.cuda.synchronize()
    for name, values in times.items():
        print(f"{name}: {statistics.median(values) / 1e3:.2f} us of host time")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
