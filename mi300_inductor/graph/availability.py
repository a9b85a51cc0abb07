"""Whether the operators can run where a graph runs; asked before anything is rewritten.

A compiled model must not fail at its first call because a compiler is missing: then it runs
unfused, and the report says what to install.
"""

from __future__ import annotations

import logging

import torch
from torch import fx
from torch._subclasses import FakeTensor

from mi300_inductor import arch, build
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.region import Plan
from mi300_inductor.inductor import is_ahead_of_time, outside_fake_mode
from mi300_inductor.op_schemas import SCHEMAS

log = logging.getLogger(__name__)

_OTHER_DTYPE = Refusal(
    "AOTInductor of this torch calls the operator with another dtype than the graph's",
    "Make the package with torch 2.12 or newer.",
)


def why_not_here(graph: fx.Graph) -> str | None:
    """Builds and loads the kernels for a graph's device; the reason if there are none."""
    values = (node.meta.get("val") for node in graph.nodes)
    device = next((value.device for value in values if isinstance(value, FakeTensor)), None)
    if device is None:
        return None
    reason = arch.unsupported_reason(device)
    if reason is not None:
        return reason
    if device.type == "cuda" and not torch.cuda.is_available():
        return None  # compiled here to run elsewhere
    try:
        with outside_fake_mode():
            build.load_kernels("CPU" if device.type == "cpu" else "CUDA")
    except RuntimeError as error:
        log.warning("the kernels cannot be built, so the graph runs unfused: %s", error)
        return str(error)
    return None


def keeps_dtypes() -> bool:
    """Whether operators are called with the dtypes of the graph that is being compiled.

    Those in a package of torch 2.11's AOTInductor are not: it numbers dtypes in another way.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return not is_ahead_of_time() or version >= (2, 12)


def drop_unpackageable(plan: Plan) -> None:
    """Moves the regions of a plan whose operator would not get its dtypes to its refusals."""
    if keeps_dtypes():
        return
    for region, nodes in list(plan.regions):
        if "ScalarType" in SCHEMAS[region.op]:
            plan.regions.remove((region, nodes))
            plan.refuse(region.kind, region.rows, _OTHER_DTYPE)
