"""Several products of the same rows in one launch, as `skinny_gemm_list` makes it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from mi300_inductor import plan
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import GemmSet, plan_gemm

from ..cdna3.counters import Counters
from ..cdna3.device import Device, Schedule
from .gemm_cases import GemmCase, check_product
from .modules import download, entry_of


def run_list(
    case: GemmCase, given: list[dict[str, Tensor | None]], schedule: Schedule | None = None
) -> tuple[list[Tensor], list[Counters]]:
    """The outputs of a call's products, which have operands of their own; what was executed."""
    device = Device()
    calls = [case.prepare(operands, device=device) for operands in given]
    problem = calls[0].problem
    for own, call in zip(problem.args.more, calls[1:], strict=False):
        for name, _ in GemmSet._fields_:
            setattr(own, name, getattr(call.problem.args, name))
    planned = plan_gemm(problem, plan.device_info(GFX942, case.cu_count))
    partial = device.output(planned.workspace_bytes)
    counters = []
    for launch in planned.launches:
        at = partial.address
        for own, call in zip([launch.args, *launch.args.more], calls, strict=False):
            if planned.workspace_bytes:
                own.partial = at
            at += 4 * planned.shape.splits * call.shape[0] * call.shape[1]
        made = device.launch(
            entry_of(launch),
            (launch.grid,),
            (launch.block,),
            [bytes(launch.args)],
            dynamic_lds=launch.lds_bytes,
            schedule=schedule,
        )
        counters.append(made)
    return [download(call.out, call.out_dtype, call.shape) for call in calls], counters


def check_list(case: GemmCase, schedule: Schedule | None = None) -> list[Counters]:
    """Run a call of several products of other widths and compare each; what was executed."""
    parts = [replace(case, n=case.n + 24 * k, products=1) for k in range(case.products)]
    given = [part.operands() for part in parts]
    outputs, counters = run_list(case, given, schedule)
    for part, operands, got in zip(parts, given, outputs, strict=True):
        check_product(part, operands, got)
    return counters
