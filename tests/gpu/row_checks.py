"""What the outputs of a norm or SiLU operator must be, given its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..kernels import reference
from ..kernels.row_cases import F16, F32, OPS, named, ordered, same_bits


def check_y(
    y: torch.Tensor,
    expected: torch.Tensor,
    rounded_to: Sequence[torch.dtype],
    largest_weight: float,
    seed: int,
) -> None:
    """At most one ulp off for each rounding behind the reduction, and seldom.

    An fp16 step is absolute among its subnormals, and the weight multiplies it.
    """
    assert y.shape == expected.shape and y.dtype == expected.dtype
    assert torch.equal(y.isnan(), expected.isnan()), f"NaN in other places, seed {seed}"
    wide, exact = y.double(), expected.double()
    relative = sum(torch.finfo(dtype).eps for dtype in rounded_to) + 4e-6
    absolute = 2.0**-23 * largest_weight if F16 in rounded_to else 1e-38
    off = (wide - exact).abs() > relative * exact.abs() + absolute
    off &= ~(y.isinf() & (y == expected))
    assert not off.any(), f"{off.sum()} elements off, seed {seed}"
    if y.dtype == F32:
        different = (wide - exact).abs() > 4e-6 * exact.abs() + 1e-38
    else:
        different = ordered(y) != ordered(expected)
    different &= ~y.isnan()
    # An rstd one ulp of fp32 off flips some 0.02 % of fp16 roundings: small tensors need the slack.
    limit = max(6, y.numel() // (1000 if F16 not in rounded_to else 400))
    assert different.sum() <= limit, f"{different.sum()} elements differ, seed {seed}"


def check_outputs(op: str, args: Sequence[Any], got: dict[str, torch.Tensor], seed: int) -> None:
    """Checks all outputs; what follows y is checked exactly, from the operator's own y."""
    expected = named(op, reference.OPS[op](*args))
    if "residual_out" in got:
        assert same_bits(got["residual_out"], expected["residual_out"]), f"seed {seed}"
    schema = [argument.name for argument in getattr(OPS, op).default._schema.arguments]
    start = schema.index("y_dtype") + 1
    dtypes = args[start - 3 : start] if op.startswith("silu") else args[start - 2 : start]
    weight = args[schema.index("weight")] if "weight" in schema else args[1]
    largest = 1.0 if weight is None else float(weight.float().nan_to_num(0, 1, 1).abs().max()) + 1
    check_y(got["y"], expected["y"], [d for d in dtypes if d is not None], largest, seed)
    if "quant" not in op:
        return
    if "scale" in got:
        q, scale, _ = reference._quant_dynamic(got["y"], *args[start:])
        assert same_bits(got["scale"], scale), f"seed {seed}"
    else:
        q, _ = reference._quant(got["y"], *args[start:])
    assert same_bits(got["q"], q), f"codes differ from those of the same y, seed {seed}"
