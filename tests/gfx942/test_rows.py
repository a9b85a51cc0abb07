"""Every norm and SiLU kernel, executed from the code object that ships, against the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the schemas)

from ..cdna3.device import Schedule
from ..kernels import reference
from .cases import CASES, Case
from .compare import assert_close_codes, assert_close_floats
from .rows import argument_names, prepare

HALF = (torch.bfloat16, torch.float16)


def _reference(case: Case, given: dict[str, Any]) -> dict[str, Tensor]:
    """The reference's outputs by name, always with y."""
    names = argument_names(case.op)
    values = {**given, **({"return_y": True} if "return_y" in given else {})}
    outputs = reference.OPS[case.op](*(values[name] for name in names))
    overload = getattr(torch.ops.mi300, case.op).default
    returned = [ret.name for ret in overload._schema.returns]
    return dict(zip(returned, outputs if isinstance(outputs, tuple) else (outputs,), strict=True))


def _converted(given: dict[str, Any], y: Tensor, scale: Tensor) -> Tensor:
    """What is converted to FP8: y scaled, rounded and clamped."""
    scale = scale.to(given["scaled_dtype"]).float()
    value = y.float()
    value = {
        "div": lambda: value / scale,
        "mul": lambda: value * scale,
        "mul_reciprocal": lambda: value * (1 / scale),
    }[given["scaling"]]()
    value = value.to(given["scaled_dtype"]).float()
    return value.clamp(given["clamp_min"], given["clamp_max"])


def _check_scale(
    case: Case, given: dict[str, Any], got: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    """Exact for the y that was returned; else as far off as y's rounding may move the largest."""
    if "y" in got:
        names = argument_names(case.op)
        target = [given[name] for name in names[names.index("y_dtype") + 1 :]]
        _, exact, _ = reference._quant_dynamic(got["y"], *target)
        assert_close_floats(got["scale"], exact.reshape(got["scale"].shape), 0, "scale")
    else:
        shaped = expected["scale"].reshape(got["scale"].shape)
        assert_close_floats(got["scale"], shaped, 1 << 17, "scale")


def check_rows(case: Case, given: dict[str, Any], got: dict[str, Tensor]) -> None:
    """Compare every output of a call with the reference."""
    expected = _reference(case, given)
    if "residual_out" in got:
        assert_close_floats(got["residual_out"], expected["residual_out"], 0, "residual_out")
    if "y" in got:
        assert_close_floats(got["y"], expected["y"], 2 if got["y"].dtype in HALF else 64, "y")
    if "scale" in got:
        _check_scale(case, given, got, expected)
        scales = got["scale"].reshape(-1, 1) if given["group_size"] <= 0 else got["scale"]
        if given["group_size"] > 0:
            scales = scales.repeat_interleave(given["group_size"], 1)
        values = _converted(given, got.get("y", expected["y"]), scales)
        assert_close_codes(got["q"], values.to(given["q_dtype"]), values, "q")
    elif "q" in got:
        values = torch.stack([_converted(given, expected["y"], s) for s in given["scales"]])
        values = values.reshape(got["q"].shape)
        assert_close_codes(got["q"], expected["q"], values, "q")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_kernel_equals_the_formula(case):
    given = case.build()
    call = prepare(case.op, given, misalign=case.misalign)
    schedule = Schedule(seed=case.hidden, resident=2, noise=case.hidden)
    check_rows(case, given, call.run(schedule, case.cu_count))
    assert call.counters and all(c.ended == c.waves for c in call.counters)
