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
from mi300_inductor.graph.term import FLOAT_DTYPES, Term, held_dtype

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
    held = {scaled.dtype}
    for role in ("scaled", "max", "min"):
        use = match.use(role)
        if use is not None:
            held.add(held_dtype(use))
    if len(held) != 1:
        return Refusal(
            "the scaled value is rounded again before it is converted to FP8",
            "Convert to FP8 directly from the dtype of the division.",
        )
    if scaled.dtype not in FLOAT_DTYPES or scale.dtype not in (*FLOAT_DTYPES, None):
        return Refusal(
            f"the scale is {scale.dtype} and the scaled value {scaled.dtype}, expected float dtypes",
            "Keep the scale in float32.",
        )
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
