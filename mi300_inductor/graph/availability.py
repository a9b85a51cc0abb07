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
from mi300_inductor.inductor import outside_fake_mode

log = logging.getLogger(__name__)


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
