"""The cases of `benchmarks.modelled --cpu`, measured here as the model's constants are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import partial

import torch
from torch import Tensor

from benchmarks.header import commit, processor, recorded
from benchmarks.modelled import BF16, FN, MEASURED, Line, line, matmul_work, row_work
from benchmarks.tables import counted
from benchmarks.timing import compile_in_this_process, set_count
from mi300_inductor import cpu_timing, ops
from mi300_inductor.arch import CPU
from mi300_inductor.cost import Kernel
from mi300_inductor.graph import select, unfused
from mi300_inductor.measure import compile_alone, time_calls
from mi300_inductor.time_model import total

PASSES = 9
HIDDEN = 4096


def heading() -> str:
    """Machine, versions, command and method in a few sentences."""
    where = f"{processor()}, {counted(torch.get_num_threads(), 'thread')}"
    return (
        f"On {where}, torch {torch.__version__}, commit {commit()}, {date.today().isoformat()}; "
        f"`{recorded('benchmarks.modelled', ['--cpu'])}` writes this. The model's "
        f"constants and the cases are measured {PASSES} times in turn, and of each case the time "
        "with the median ratio is shown."
    )


@dataclass(frozen=True)
class CpuCase:
    """A call on the CPU and the kernels that it is modelled as."""

    case: str
    kernel: str
    call: Callable[[], object]
    kernels: tuple[Kernel, ...]


def on_cpu() -> Iterator[Line]:
    """This machine's CPU: the model's constants and the cases, several times in turn.

    A machine that others use as well is now faster and now slower; constants and cases of one pass
    belong together, and of each case the pass with the median ratio is shown.
    """
    compile_in_this_process()
    device, constants = torch.device("cpu"), cpu_timing.calls()
    groups = [*cpu_rows(), *([one] for one in cpu_products())]
    cases = [case for group in groups for case in group]
    found: list[list[Line]] = [[] for _ in cases]
    for _ in range(PASSES):
        seconds = time_calls(list(constants.values()), device)
        timing = cpu_timing.timing(dict(zip(constants, seconds, strict=True)))
        spec = replace(CPU, timing=timing)
        times = [s for group in groups for s in time_calls([c.call for c in group], device)]
        for lines, case, measured in zip(found, cases, times, strict=True):
            spent = total(case.kernels, spec)
            lines.append(line("cpu", case.case, case.kernel, measured * 1e6, spent, MEASURED))
    for lines in found:
        yield sorted(lines, key=lambda one: one.ratio)[PASSES // 2]


def cpu_rows() -> Iterator[list[CpuCase]]:
    """Our operator and Inductor's code, in pairs."""
    for family, rows in itertools.product(("norm", "silu"), (1, 8, 64, 1024)):
        inputs, operator, chain = row_calls(family, rows, HIDDEN)
        generated = compile_alone(torch.fx.symbolic_trace(chain), inputs)
        work = row_work(family, "static", HIDDEN, rows)
        case = f"{family} static {HIDDEN} x {rows}"
        yield [
            CpuCase(case, "ours", partial(operator, *inputs), select.row_operator(family, work)),
            CpuCase(case, "inductor", generated, unfused.row_kernels(work, on_gpu=False)),
        ]


def cpu_products() -> Iterator[CpuCase]:
    """Our matmuls; the weights take turns, so that each is found in memory."""
    n = k = HIDDEN
    for operand in (FN, BF16):
        weight = torch.randn(n, k).to(operand)
        count = set_count(weight.nbytes, torch.device("cpu"))
        weights = [weight.clone() for _ in range(count)]
        for m in (1, 4, 16, 64):
            kernel = select.matmul_operator("skinny_gemm", matmul_work(m, n, k, operand))
            case = f"{str(operand).removeprefix('torch.')} {m} x {n} x {k}"
            yield CpuCase(case, "ours", product_call(m, weights), (kernel,))


def product_call(m: int, weights: list[Tensor]) -> Callable[[], object]:
    turns, operand = itertools.cycle(weights), weights[0].dtype
    a = torch.randn(m, weights[0].shape[1]).to(operand)
    scales = [torch.ones(1)] * 2 if operand == FN else []
    return lambda: ops.skinny_gemm(a, next(turns), *scales)


def row_calls(
    family: str, rows: int, hidden: int
) -> tuple[list[Tensor], Callable[..., object], Callable[..., object]]:
    """Inputs, the operator and eager's chain, which Inductor compiles."""
    first, second = torch.randn(2, rows, hidden).to(BF16).unbind()
    scale = torch.full((1,), 0.05)

    def codes(y: Tensor, scale: Tensor) -> Tensor:
        return (y.float() / scale).clamp(-448.0, 448.0).to(FN)

    def norm(x: Tensor, r: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        h = x + r
        wide = h.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16) * weight
        return codes(y, scale), h

    def silu(gate: Tensor, up: Tensor, scale: Tensor) -> tuple[Tensor]:
        return (codes(torch.nn.functional.silu(gate) * up, scale),)

    if family == "silu":
        return [first, second, scale], ops.silu_mul_quant, silu
    weight = torch.ones(hidden, dtype=BF16)
    operator = partial(ops.add_rms_norm_quant, norm_dtype=BF16)
    return [first, second, weight, scale], operator, norm
