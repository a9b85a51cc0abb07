"""Runs skinny GEMM plans on the gfx942 executor and compares them with float64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from mi300_inductor import gemm_plan, plan, toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.build import csrc_dir

from ..cdna3.assembly import compile_hip
from ..cdna3.counters import Counters
from ..cdna3.device import Buffer, Device, Schedule
from ..cdna3.program import Kernel, load_kernels

FNUZ = torch.float8_e4m3fnuz
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@lru_cache
def source(module: str) -> Path:
    """A kernel file of the product."""
    return next(path for path in toolchain.sources(GFX942) if path.stem == module)


@lru_cache
def kernels(module: str) -> dict[str, Kernel]:
    """The kernels of a file, compiled with line tables, which name the atomic statements."""
    include = csrc_dir() / "include"
    options = ("-std=c++20", "-ffp-contract=off", "-Werror", f"-I{include}")
    return load_kernels(compile_hip(source(module), options, include.rglob("*.h")))


@dataclass(frozen=True)
class Case:
    """One call of the operator, its plan's form and what surrounds the product."""

    m: int
    n: int
    k: int
    operand: torch.dtype = FNUZ
    form: gemm_plan.Form = gemm_plan.Form.ANY
    out: torch.dtype = F32
    per_row: bool = False
    bias: torch.dtype | None = None
    addend: torch.dtype | None = None
    weight_pad: int = 0  # elements between rows of the weight
    cu_count: int = 304
    special: bool = False  # NaN and infinity among the inputs


class Run:
    """Operands of a case in device memory, its reference, and launches of its plan."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        a, weight = normal(case.m, case.k), normal(case.n, case.k)
        a[:, 0] *= 30
        weight[0] = 0
        if case.special:
            a[0, case.k // 2] = float("nan")
            weight[case.n - 1, 0] = float("nan") if case.operand == FNUZ else float("inf")
        self.a, self.weight = a.to(case.operand), weight.to(case.operand)
        is_fp8 = case.operand == FNUZ
        self.scale_a = (normal(case.m if case.per_row else 1).abs() + 0.1) if is_fp8 else None
        self.scale_b = (normal(case.n if case.per_row else 1).abs() + 0.1) if is_fp8 else None
        self.bias = normal(case.n).to(case.bias) if case.bias else None
        self.addend = normal(case.m, case.n).to(case.addend) if case.addend else None
        self.info = plan.device_info(GFX942, case.cu_count)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The product in float64 and the scale of its rounding error."""
        a, weight = self.a.double(), self.weight.double()
        out, bound = a @ weight.T, a.abs() @ weight.abs().T
        if self.scale_a is not None and self.scale_b is not None:
            rows = self.scale_a.double().reshape(-1, 1)
            scale = rows * self.scale_b.double().reshape(1, -1)
            out, bound = out * scale, bound * scale
        for term in (self.bias, self.addend):
            if term is not None:
                out, bound = out + term.double(), bound + term.double().abs()
        return out, bound

    def launch(self, schedule: Schedule | None = None) -> tuple[torch.Tensor, Counters, Buffer]:
        """Runs the plan on a fresh device; returns output, counts of the first launch, weight."""
        case, device = self.case, Device()
        padded = torch.zeros(case.n, case.k + case.weight_pad, dtype=case.operand)
        padded[:, : case.k] = self.weight
        flat = padded.view(torch.uint8).flatten().numpy()
        size = case.operand.itemsize
        weight = device.input(flat[: flat.size - case.weight_pad * size], count_reads=True)
        call = gemm_plan.problem(case.m, case.n, case.k, case.operand, case.out, case.form)
        args = call.args
        args.weight, args.weight_stride = weight.address, padded.shape[1] * size
        args.activation = self._input(device, self.a)
        args.scale_a, args.scale_b = (self._input(device, s) for s in (self.scale_a, self.scale_b))
        args.scale_a_step = args.scale_b_step = int(case.per_row)
        args.bias, args.addend = self._input(device, self.bias), self._input(device, self.addend)
        args.bias_type = plan.DTYPES[case.bias] if case.bias else 0
        args.addend_type = plan.DTYPES[case.addend] if case.addend else 0
        args.addend_stride = case.n
        out = device.output(case.m * case.n * case.out.itemsize)
        args.out = out.address
        made = gemm_plan.plan_gemm(call, self.info)
        assert made.launches, "no kernel takes the case"
        if made.workspace_bytes:
            args.partial = device.output(made.workspace_bytes).address
        counters = [self._launch_one(device, launch, args, schedule) for launch in made.launches]
        assert (out.writes == 1).all(), "a byte was written twice or never"
        result = torch.from_numpy(out.bytes().copy()).view(case.out).reshape(case.m, case.n)
        return result, counters[0], weight

    @staticmethod
    def _input(device: Device, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        return device.input(tensor.contiguous().view(torch.uint8).flatten().numpy()).address

    @staticmethod
    def _launch_one(
        device: Device,
        launch: gemm_plan.GemmLaunch,
        call: gemm_plan.SkinnyGemmArgs,
        schedule: Schedule | None,
    ) -> Counters:
        launch.args.partial = call.partial
        for buffer in device.buffers:  # a launch sees all that the one before has written
            if buffer.writer is not None:
                buffer.writer[:] = 0
        kernel = kernels(launch.module.decode())[launch.entry.decode()]
        return device.launch(
            kernel,
            (launch.grid,),
            (launch.block,),
            [ctypes.string_at(ctypes.byref(launch.args), ctypes.sizeof(launch.args))],
            dynamic_lds=launch.lds_bytes,
            schedule=schedule,
        )


def check(case: Case, seed: int, schedule: Schedule | None = None) -> Run:
    """Runs a case once and compares it with float64."""
    run = Run(case, seed)
    got, _, _ = run.launch(schedule)
    want, bound = run.reference()
    assert torch.equal(got.isnan(), want.isnan()), f"{case}, seed {seed}: NaN in other places"
    infinite = want.isinf()
    assert torch.equal(got.double()[infinite], want[infinite])
    finite = want.isfinite()
    step = {F32: 2.0**-18, BF16: 2.0**-8, F16: 2.0**-10}[case.out]
    error = (got.double() - want).abs()[finite]
    rounded = 2 * bound if case.addend else want.abs()  # an addend means a second rounding
    limit = (bound * 2.0**-18 + rounded * step)[finite] + 1e-30
    worst = int((error / limit).argmax()) if error.numel() else 0
    assert bool((error <= limit).all()), (
        f"{case}, seed {seed}: element {worst} of {error.numel()} is off by {error[worst]:.3g}, "
        f"expected at most {limit[worst]:.3g}"
    )
    return run


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return np.array_equal(a.view(torch.uint8).numpy(), b.view(torch.uint8).numpy())


def launch_several(
    a: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], cu_count: int
) -> list[torch.Tensor]:
    """Runs products of the same rows in one launch (and its sum); fp32 results, unit scales."""
    device, (m, k) = Device(), a.shape
    widths = [weight.shape[0] for weight in weights]
    call = gemm_plan.problem(m, widths[0], k, a.dtype, F32, more=widths[1:])
    sets = [call.args, *call.args.more][: len(weights)]
    outs = [device.output(m * n * 4) for n in widths]
    for own, weight, bias, out in zip(sets, weights, biases, outs, strict=True):
        own.weight, own.bias = Run._input(device, weight), Run._input(device, bias)
        own.activation, own.out = Run._input(device, a), out.address
    call.args.bias_type = plan.DTYPES[biases[0].dtype]
    made = gemm_plan.plan_gemm(call, plan.device_info(GFX942, cu_count))
    offset = device.output(made.workspace_bytes).address if made.workspace_bytes else 0
    for launch in made.launches:
        partial = offset
        for own, n in zip([launch.args, *launch.args.more], widths, strict=False):
            own.partial = partial
            partial += 4 * made.shape.splits * m * n
        call.args.partial = offset
        Run._launch_one(device, launch, call.args, None)
    assert all((out.writes == 1).all() for out in outs), "a byte was written twice or never"
    return [
        torch.from_numpy(out.bytes().copy()).view(F32).reshape(m, n)
        for out, n in zip(outs, widths, strict=True)
    ]
