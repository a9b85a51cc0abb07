"""The skinny GEMM on the executor: operands on the device, the product's plan, all its launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mi300_inductor import plan
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import (
    Form,
    GemmPlan,
    GemmProblem,
    GemmQuant,
    SkinnyGemmArgs,
    plan_gemm,
)
from mi300_inductor.plan import DTYPES

from ..cdna3.counters import Counters
from ..cdna3.device import Buffer, Device, Schedule
from ..cdna3.program import Kernel
from .modules import download, entry_of, upload

SCALINGS = ("div", "mul", "mul_reciprocal")  # in the order of Scaling in row_args.h


@dataclass
class GemmCall:
    """One call on the device: problem, output and what was executed."""

    device: Device
    problem: GemmProblem
    out: Buffer
    out_dtype: torch.dtype
    shape: tuple[int, int]
    weight: Buffer
    counters: list[Counters] = field(default_factory=list)

    def plan(self, cu_count: int | None = None) -> GemmPlan:
        """The plan for a device with so many compute units (None: an MI300X)."""
        return plan_gemm(self.problem, plan.device_info(GFX942, cu_count))

    def run(
        self,
        schedule: Schedule | None = None,
        cu_count: int | None = None,
        kernel_of: Callable[[object], Kernel] = entry_of,
    ) -> Tensor:
        """Execute the plan with the kernels that `kernel_of` gives; returns the output."""
        planned = self.plan(cu_count)
        partial = self.device.output(planned.workspace_bytes)
        for launch in planned.launches:
            if planned.workspace_bytes:
                launch.args.partial = partial.address
            self.counters.append(
                self.device.launch(
                    kernel_of(launch),
                    (launch.grid,),
                    (launch.block,),
                    [bytes(launch.args)],
                    dynamic_lds=launch.lds_bytes,
                    schedule=schedule,
                )
            )
        return download(self.out, self.out_dtype, self.shape)


def prepare_gemm(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    form: Form = Form.ANY,
    count_reads: bool = False,
    device: Device | None = None,
    quant: tuple[str, Tensor] | None = None,
) -> GemmCall:
    """Operands of `skinny_gemm` on a device, and the problem as the operator describes it.

    `quant` is the scaling and the scale with which the result is quantised to e4m3fnuz.
    """
    device = device or Device()
    (m, _), n = a.shape, weight.shape[0]
    weights = upload(device, weight, count_reads=count_reads)
    written = out_dtype if quant is None else torch.float8_e4m3fnuz
    out = device.output(m * n * written.itemsize)
    args = SkinnyGemmArgs(
        weight=weights.address,
        activation=upload(device, a).address,
        out=out.address,
        weight_stride=weight.stride(0) * weight.itemsize,
        activation_stride=a.stride(0) * a.itemsize,
        n=n,
        m=m,
        row_bytes=a.shape[1] * a.itemsize,
        out_type=DTYPES[out_dtype],
    )
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is not None:
            setattr(args, name, upload(device, scale).address)
            setattr(args, f"{name}_step", int(scale.numel() > 1))
    for name, tensor in (("bias", bias), ("addend", addend)):
        if tensor is not None:
            setattr(args, name, upload(device, tensor).address)
            setattr(args, f"{name}_type", DTYPES[tensor.dtype])
    if addend is not None:
        args.addend_stride = addend.stride(0) if addend.dim() == 2 else 0
    if quant is not None:
        limit = torch.finfo(written).max
        scale = upload(device, quant[1]).address
        args.quant = GemmQuant(scale, -limit, limit, SCALINGS.index(quant[0]))
    problem = GemmProblem(args, int(DTYPES[a.dtype]), int(form))
    return GemmCall(device, problem, out, written, (m, n), weights)
