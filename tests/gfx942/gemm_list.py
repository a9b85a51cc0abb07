"""Several products of the same rows in one launch, as `skinny_gemm_list` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from mi300_inductor import plan
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import GemmLaunch, GemmSet, plan_gemm

from ..cdna3.counters import Counters
from ..cdna3.device import Device, Schedule
from .gemm import GemmCall
from .gemm_cases import GemmCase, check_product
from .modules import download, entry_of


@dataclass
class ListCall:
    """One call on the device: its products, what it launches and what was executed."""

    device: Device
    products: list[GemmCall]
    launches: list[GemmLaunch]
    counters: list[Counters] = field(default_factory=list)

    def run(self, schedule: Schedule | None = None) -> list[Tensor]:
        """Execute the launches; returns the output of each product."""
        for launch in self.launches:
            self.counters.append(
                self.device.launch(
                    entry_of(launch),
                    (launch.grid,),
                    (launch.block,),
                    [bytes(launch.args)],
                    dynamic_lds=launch.lds_bytes,
                    schedule=schedule,
                )
            )
        return self.outputs()

    def outputs(self) -> list[Tensor]:
        """What the launches wrote, product by product."""
        return [download(one.out, one.out_dtype, one.shape) for one in self.products]


def parts_of(case: GemmCase, widths: Sequence[int]) -> list[GemmCase]:
    """The products of a call, which differ in their weight rows."""
    return [replace(case, n=n, products=1) for n in widths]


def prepare_list(
    parts: Sequence[GemmCase],
    given: Sequence[dict[str, Tensor | None]],
    count_reads: bool = False,
) -> ListCall:
    """Operands of two or three products on a device, with the operator's plan of them together."""
    device = Device()
    products = [
        part.prepare(operands, count_reads, device)
        for part, operands in zip(parts, given, strict=True)
    ]
    problem = products[0].problem
    for own, product in zip(problem.args.more, products[1:], strict=False):
        for name, _ in GemmSet._fields_:
            setattr(own, name, getattr(product.problem.args, name))
    planned = plan_gemm(problem, plan.device_info(GFX942, parts[0].cu_count))
    partial = device.output(planned.workspace_bytes)
    launches = list(planned.launches)
    for launch in launches:
        at = partial.address
        for own, product in zip([launch.args, *launch.args.more], products, strict=False):
            if planned.workspace_bytes:
                own.partial = at
            at += 4 * planned.shape.splits * product.shape[0] * product.shape[1]
    return ListCall(device, products, launches)


def check_list(case: GemmCase, schedule: Schedule | None = None) -> list[Counters]:
    """Run a call of several products of other widths and compare each; what was executed."""
    parts = parts_of(case, [case.n + 24 * k for k in range(case.products)])
    given = [part.operands() for part in parts]
    call = prepare_list(parts, given)
    for part, operands, got in zip(parts, given, call.run(schedule), strict=True):
        check_product(part, operands, got)
    return call.counters
