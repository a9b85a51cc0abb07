"""A torch.compile backend that fuses norm, activation, FP8 quantisation and decode matmuls.

    torch.compile(model, backend="mi300")

needs no import of this package. The names below are for looking at what happened, for using the
pass elsewhere, and for calling the operators by hand. Each is imported when it is first used, so
that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mi300_inductor import ops
    from mi300_inductor.backend import explain, inductor_configs, mi300
    from mi300_inductor.contract import ContractError
    from mi300_inductor.fusion_pass import FusionPass, RoundingMarks
    from mi300_inductor.graph.registry import spelling
    from mi300_inductor.quantize import quantize_
    from mi300_inductor.report import Fusion, Rejection, Report, last_report

__all__ = [
    "ContractError",
    "Fusion",
    "FusionPass",
    "Rejection",
    "Report",
    "RoundingMarks",
    "explain",
    "inductor_configs",
    "last_report",
    "mi300",
    "ops",
    "quantize_",
    "spelling",
]

_HOMES = {
    "ContractError": "contract",
    "Fusion": "report",
    "FusionPass": "fusion_pass",
    "Rejection": "report",
    "Report": "report",
    "RoundingMarks": "fusion_pass",
    "explain": "backend",
    "inductor_configs": "backend",
    "last_report": "report",
    "mi300": "backend",
    "quantize_": "quantize",
    "spelling": "graph",
}


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("mi300_inductor.ops")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mi300_inductor.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
