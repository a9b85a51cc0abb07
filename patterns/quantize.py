"""Quantisation to FP8 with a given scale: q = cast(clamp(y / scale)).

Before: convert, div (or mul), clamp_min, clamp_max, convert.  After: the tail of a norm's or an
activation's kernel. The scale may be one value (static, per tensor) or one per row or group; where
it follows from y itself, `dynamic_scale.py` states that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mi300_inductor.graph.meaning import Meaning, Quantize, Refusal
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import FLOAT_DTYPES, HALF_DTYPES, Term, held_dtype

FP8 = torch.float8_e4m3fn  # stands for every FP8 dtype: a pattern has no dtypes


def divide(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """The usual form: divide by the scale, clamp to the format's range, convert."""
    return (y.float() / scale).clamp(clamp_min, clamp_max).to(FP8)


def divide_without_clamp(y: Tensor, scale: Tensor) -> Tensor:
    """Divide and convert; values out of range become what the cast makes of them."""
    return (y.float() / scale).to(FP8)


def multiply(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """Multiply by a scale that is already the reciprocal."""
    return (y.float() * scale).clamp(clamp_min, clamp_max).to(FP8)


def multiply_without_clamp(y: Tensor, scale: Tensor) -> Tensor:
    """Multiply and convert."""
    return (y.float() * scale).to(FP8)


def multiply_by_reciprocal(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """Multiply by the reciprocal of the scale, which rounds differently from dividing."""
    return (y.float() * scale.reciprocal()).clamp(clamp_min, clamp_max).to(FP8)


def multiply_by_reciprocal_without_clamp(y: Tensor, scale: Tensor) -> Tensor:
    """The same without a clamp."""
    return (y.float() * scale.reciprocal()).to(FP8)


def _roles(root: Term) -> dict[str, Term]:
    roles = {"cast": root}
    inner = root.args[0]
    while inner.op in ("min", "max"):
        roles[inner.op] = inner
        inner = inner.args[0]
    roles["scaled"] = inner
    reciprocal = next((a for a in inner.args if a.op == "div"), None)
    if inner.op == "mul" and reciprocal is not None:
        roles["reciprocal"] = reciprocal
    return roles


def _describe(match: Match) -> Quantize | Refusal:
    y, scale = match.variables["y"], match.variables["scale"]
    scaled, reciprocal = match.value("scaled"), match.value("reciprocal")
    if scaled is None or y.dtype not in FLOAT_DTYPES:
        return Refusal(
            f"the quantised value is {y.dtype}, expected float32, bfloat16 or float16",
            "Quantise a float tensor.",
        )
    if scaled.dtype not in FLOAT_DTYPES or scale.dtype not in (*FLOAT_DTYPES, None):
        return Refusal(
            f"the scale is {scale.dtype}, the scaled value {scaled.dtype}, expected float dtypes",
            "Keep the scale in float32.",
        )
    refusal = _other_rounding(match, scaled, scale)
    if refusal is not None:
        return refusal
    if reciprocal is not None and (
        scaled.dtype != torch.float32 or reciprocal.dtype != torch.float32
    ):
        return Refusal(
            f"the reciprocal of the scale is rounded to {scaled.dtype}",
            "Multiply in float32: y.float() * scale.reciprocal().",
        )
    assert scaled.dtype is not None
    return Quantize(
        match=match,
        root=match.root,
        y=y,
        scale=scale,
        scaling="mul_reciprocal" if reciprocal is not None else scaled.op,
        scaled_dtype=scaled.dtype,
        clamp_min=match.scalar("clamp_min") if "clamp_min" in match.variables else -math.inf,
        clamp_max=match.scalar("clamp_max") if "clamp_max" in match.variables else math.inf,
    )


def _other_rounding(match: Match, scaled: Term, scale: Term) -> Refusal | None:
    """Refuses roundings that the operators do not make: they round y, the scale and the result."""
    bounds = [match.variables[n].value for n in ("clamp_min", "clamp_max") if n in match.variables]
    for role in ("scaled", "max", "min"):
        use = match.use(role)
        held = scaled.dtype if use is None else held_dtype(use)
        # A clamp between bounds of a dtype keeps values of that dtype in it.
        is_kept = role != "scaled" and all(_is_value_of(bound, scaled.dtype) for bound in bounds)
        if held != scaled.dtype and not (held == torch.float32 and is_kept):
            return Refusal(
                f"the scaled value is rounded again, to {held}, before it is converted to FP8",
                "Convert to FP8 directly from the dtype of the division.",
            )
    if scaled.dtype in HALF_DTYPES and scale.dtype != scaled.dtype:
        device = scaled.node.meta["val"].device.type
        # A 0-D scale does not promote a half; GPUs round it to the half first, CPUs do not.
        is_rounded = device != "cpu" and scale.dtype is not None and not scale.shape
        if not is_rounded and not (scale.is_const and _is_value_of(scale.value, scaled.dtype)):
            return Refusal(
                f"the result of dividing by a float32 scale is rounded to {scaled.dtype}",
                "Divide in float32: y.float() / scale.",
            )
    return None


def _is_value_of(value: float, dtype: torch.dtype | None) -> bool:
    """Whether a number is exact in a dtype."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype)) == value


MEANING = Meaning(
    name="quantize",
    kind="quant",
    spellings=(
        divide,
        divide_without_clamp,
        multiply_by_reciprocal,
        multiply_by_reciprocal_without_clamp,
        multiply,
        multiply_without_clamp,
    ),
    examples=(
        {
            "y": torch.ones(ROWS, HIDDEN),
            "scale": torch.ones(()),
            "clamp_min": None,
            "clamp_max": None,
        },
        {
            "y": torch.ones(ROWS, HIDDEN),
            "scale": torch.ones(ROWS, 1),
            "clamp_min": None,
            "clamp_max": None,
        },
    ),
    roles=_roles,
    describe=_describe,
    anchor=lambda term: term.op == "to_fp8",
    hint="Write it as (y.float() / scale).clamp(-max, max).to(dtype) with an fp32 scale.",
)
