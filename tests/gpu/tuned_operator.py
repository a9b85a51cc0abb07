"""The operator's GPU library with measured plans, on a machine without a GPU.

    python -m tests.gpu.tuned_operator FOLDER first|second

The folder holds a stand-in libamdhip64 that notes launches, and the same file as libtorch_hip,
which knows the current stream. The operator is called by its dispatch key, so that it takes tensors
of the CPU: what it launches is noted, what it hands to the library is computed. Started by
test_gemm_operator.py in processes of their own; raises if something is wrong.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mi300_inductor import build, gemm_plan, gemm_tuning, ops, plan, toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_classes import GemmClass
from mi300_inductor.gemm_plan import Form, GemmShape

from ..test_gemm_classes import MATMUL

CPU = -1  # index of the CPU's only device
INFO = plan.device_info(GFX942)
SMALL = replace(MATMUL, device=CPU)
# No multiple of 16: torch's own FP8 matmul would be asked for, which on a CPU with AMX has no
# e4m3fnuz.
WIDE = replace(SMALL, widths=(250,))
LIST = replace(SMALL, widths=(96, 250), weight_strides=(2048, 2048))


class Operator:
    """The GPU operators on CPU tensors, and the launches that they make."""

    def __init__(self, folder: Path) -> None:
        """Loads the stand-ins, then the operators' library with device code that is never run."""
        self.driver = ctypes.CDLL(str(folder / "libamdhip64.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / "libtorch_hip.so"))
        self.driver.stand_in_take.restype = ctypes.c_char_p
        image = folder / "image"
        image.write_text("device code")
        path = build.build_library("runtime")
        build.load_kernels("CPU")
        ops.release_placeholder("CUDA")
        torch.ops.load_library(str(path))
        images = {source.stem: image for source in toolchain.sources(GFX942)}
        plan.install_device_code(path, [plan.DeviceCode(CPU, INFO, images)])
        self.library = plan.open_core(path)
        plan.core()
        os.environ["MI300_INDUCTOR_CACHE_DIR"] = str(folder / "cache")  # nothing is known yet

    def __call__(self, matmul: GemmClass, rows: int) -> tuple[list[str], Any, Any]:
        """Launches of one call as `entry grid`, its result, and the CPU operator's."""
        k, many = matmul.k, len(matmul.widths) > 1
        a = torch.randn(rows, k).to(torch.float8_e4m3fnuz)
        weights = [torch.randn(n, k).to(a.dtype) for n in matmul.widths]
        one = torch.full((1,), 0.5)
        if many:
            each = [one] * len(weights)
            arguments = ([a] * len(weights), weights, each, each, None, torch.bfloat16)
        else:
            arguments = (a, weights[0], one, one, None, None, torch.bfloat16)
        operation = ops.overload("skinny_gemm_list" if many else "skinny_gemm")
        self.driver.stand_in_take()
        got = operation._op_dk(torch._C.DispatchKey.CUDA, *arguments)
        return self.driver.stand_in_take().decode().splitlines(), got, operation(*arguments)

    def planned(self, matmul: GemmClass, rows: int) -> list[str]:
        """The launches that the library's plan of a call has."""
        made = gemm_plan.find_plan(self.library, CPU, matmul.problem(rows))
        return [f"{launch.entry.decode()} {launch.grid}" for launch in made.launches]

    def tune(
        self, matmul: GemmClass, seconds: Callable[[GemmShape], float], version: str = "1"
    ) -> Any:
        """Tunes a matmul with made-up seconds of the shape that the library has in force."""

        def timer(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
            found = []
            for call in calls:
                call()
                problem = matmul.problem(matmul.rows)
                found.append(seconds(gemm_plan.find_plan(self.library, CPU, problem).shape))
            return found

        card = gemm_tuning.Card(self.library, INFO, torch.device("cpu"), (version,), timer)
        gemm_tuning.open_card = lambda index: card
        (tuned,) = gemm_tuning.tune([matmul])
        return tuned


def prefer(form: Form) -> Callable[[GemmShape], float]:
    """Seconds by which a form is fastest."""
    return lambda shape: 1e-6 if shape.form == form else 2e-6


def stopped(shape: GemmShape) -> float:
    """A clock that must not be asked."""
    raise AssertionError("measured")


def same(got: Tensor, want: Tensor) -> bool:
    """Whether two products of a few thousand elements agree."""
    return bool(torch.allclose(got.float(), want.float(), rtol=0.02, atol=0.05))


def check_ring(operator: Operator) -> None:
    """Calls of the class are launched as was measured; others as the rule says."""
    for rows in (2, 8):
        launches = operator(SMALL, rows)[0]
        assert launches == operator.planned(SMALL, rows)
        assert launches[0].startswith("skinny_gemm_ring_fp8_m8_t1 "), launches
    for rows in (1, 9):
        assert "ring" not in operator(SMALL, rows)[0][0]
    assert "ring" not in operator(replace(SMALL, widths=(112,)), 8)[0][0]


def first(operator: Operator) -> None:
    """Plans are measured, taken and stored."""
    rule = operator(SMALL, 8)[0]
    assert rule == operator.planned(SMALL, 8) and "ring" not in rule[0]

    assert operator.tune(SMALL, stopped).note == "measured"
    assert operator(SMALL, 8)[0] == rule, "a failed measurement changed the plan"

    assert operator.tune(SMALL, prefer(Form.RING)).plan.startswith("ring ")
    check_ring(operator)

    assert operator(WIDE, 8)[0]
    assert operator.tune(WIDE, prefer(Form.VENDOR)).plan == "library"
    launches, got, want = operator(WIDE, 8)
    assert launches == [] and same(got, want)

    together = operator(LIST, 8)[0]
    assert together == operator.planned(LIST, 8) and together
    assert operator.tune(LIST, prefer(Form.VENDOR)).plan == "library"
    launches, got, want = operator(LIST, 8)
    assert launches == operator.planned(SMALL, 8), "one by one: a ring, and the library"
    assert same(got[1], want[1])


def second(operator: Operator) -> None:
    """Another process takes what is stored, unless a version has changed."""
    assert "ring" not in operator(SMALL, 8)[0][0]
    found = operator.tune(SMALL, stopped)
    assert found.plan.startswith("ring ") and found.note == "" and found.time == 1.0
    check_ring(operator)
    assert operator.tune(WIDE, stopped).plan == "library" and operator(WIDE, 8)[0] == []
    assert operator.tune(SMALL, stopped, "2").note == "measured"
    assert operator.tune(SMALL, prefer(Form.DENSE), "2").plan.startswith("dense ")
    assert operator(SMALL, 8)[0][0].startswith("skinny_gemm_fp8_m16_t1 ")


if __name__ == "__main__":
    {"first": first, "second": second}[sys.argv[2]](Operator(Path(sys.argv[1])))
    print("all checked")
