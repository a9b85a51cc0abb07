"""Quantisation to FP8 with a given scale: q = cast(clamp(y / scale)).

Before: convert, div (or mul), clamp_min, clamp_max, convert.  After: the tail of a norm's or an
activation's kernel. The scale may be one value (static, per tensor) or one per row or group; where
it follows from y itself, `dynamic_scale.py` states that. Every spelling clamps: the canonical form
of a cast to FP8 has infinite bounds where the graph has none.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mi300_inductor.graph.meaning import Meaning, Quantize, Refusal
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import (
    FLOAT_DTYPES,
    HALF_DTYPES,
    Term,
    held_dtype,
    rounded_number,
    strip,
)

FP8 = torch.float8_e4m3fn  # stands for every FP8 dtype: a pattern has no dtypes
F32 = torch.float32
ONE = Term("const", (), (1.0,), None, ())


def divide(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """The usual form: divide by the scale, clamp to the format's range, convert."""
    return (y.float() / scale).clamp(clamp_min, clamp_max).to(FP8)


def multiply(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """Multiply by a scale that is already the reciprocal."""
    return (y.float() * scale).clamp(clamp_min, clamp_max).to(FP8)


def multiply_by_reciprocal(y: Tensor, scale: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """Multiply by the reciprocal of the scale, which rounds differently from dividing."""
    return (y.float() * scale.reciprocal()).clamp(clamp_min, clamp_max).to(FP8)


def convert(y: Tensor, clamp_min: float, clamp_max: float) -> Tensor:
    """Without a scale, which is a scale of one."""
    return y.clamp(clamp_min, clamp_max).to(FP8)


def _roles(root: Term) -> dict[str, Term]:
    high = root.args[0]
    low = high.args[0]
    roles = {"cast": root, "min": high, "max": low}
    scaled = low.args[0]
    if scaled.op not in ("mul", "div"):
        return roles
    roles["scaled"] = scaled
    reciprocal = next((a for a in scaled.args if a.op == "div"), None)
    if scaled.op == "mul" and reciprocal is not None:
        roles["reciprocal"] = reciprocal
    return roles


def _describe(match: Match) -> Quantize | Refusal:
    y, scaled = match.variables["y"], match.value("scaled")
    if y.dtype not in FLOAT_DTYPES:
        return Refusal(
            f"the quantised value is {y.dtype}, expected float32, bfloat16 or float16",
            "Quantise a float tensor: (y.float() / scale.float()).clamp(-max, max).to(dtype).",
        )
    own = y.dtype if scaled is None else _rounded_quotient(match, scaled)
    bounds = _bounds(match, own)
    if isinstance(bounds, Refusal):
        return bounds
    scale, scaling, scaled_dtype = ONE, "mul", F32
    if scaled is not None:
        scale, reciprocal = match.variables["scale"], match.value("reciprocal")
        refusal = _other_scale(scaled, scale, reciprocal)
        if refusal is not None:
            return refusal
        assert own is not None
        scaling = "mul_reciprocal" if reciprocal is not None else scaled.op
        scaled_dtype = own
    return Quantize(
        match=match,
        root=match.root,
        y=y,
        scale=scale,
        scaling=scaling,
        scaled_dtype=scaled_dtype,
        clamp_min=bounds[0],
        clamp_max=bounds[1],
    )


def _rounded_quotient(match: Match, scaled: Term) -> torch.dtype | None:
    """Dtype to which y / scale is rounded: by the division, or by a cast before or after the clamp.

    A cast to a half is that of a division in this half where the scale is a number of it: the
    operators round the scale as well. Rounding is monotone, so that a clamp before it is one after
    it, between rounded bounds; only that zeros, where a bound is rounded to 0, have other signs.
    """
    scale, own = match.variables["scale"], scaled.dtype
    if own != F32 or match.value("reciprocal") is not None:
        return own
    for role in ("scaled", "max", "min"):
        use = match.use(role)
        held = None if use is None else held_dtype(use)
        if held not in HALF_DTYPES:
            continue
        is_exact = scale.is_const and rounded_number(scale.value, held) == scale.value
        bounds = [rounded_number(match.scalar(f"clamp_{side}"), held) for side in ("min", "max")]
        is_same = role == "scaled" or all(bounds)
        return held if is_same and (is_exact or scale.dtype == held) else own
    return own


def _bounds(match: Match, own: torch.dtype | None) -> tuple[float, float] | Refusal:
    """The clamp's bounds for a value of a dtype, as the operators take them.

    They round y, the scale and v = y / scale, and nothing behind. A rounding behind the clamp to
    the dtype that the value has anyway is one of the bounds alone.
    """
    held: dict[str, torch.dtype | None] = {}
    for role, allowed in (("scaled", (own, F32)), ("max", (own, F32)), ("min", (own, F32))):
        use = match.use(role)
        held[role] = own if use is None else held_dtype(use)
        if held[role] not in allowed:
            where = f"again, to {held[role]}," if held[role] else "to several dtypes"
            return Refusal(
                f"the scaled value is rounded {where} before it is converted to FP8",
                "Convert to FP8 directly from the dtype of the division.",
            )
    low, high = match.scalar("clamp_min"), match.scalar("clamp_max")
    if math.isnan(low) or math.isnan(high):
        return Refusal(
            "a bound of the clamp is NaN, which makes every value NaN",
            "Clamp to the range of the FP8 format.",
        )
    if own in (held["max"], held["min"]):
        low = rounded_number(low, own)
    return low, rounded_number(high, own) if own == held["min"] else high


def _other_scale(scaled: Term, scale: Term, reciprocal: Term | None) -> Refusal | None:
    """Refuses scales that the operators do not apply as the graph does."""
    if scaled.dtype not in FLOAT_DTYPES or scale.dtype not in (*FLOAT_DTYPES, None):
        return Refusal(
            f"the scale is {scale.dtype}, expected float32, bfloat16 or float16",
            "Convert the scale: (y.float() / scale.float()).clamp(-max, max).to(dtype).",
        )
    if strip(scale).op == "rsqrt":
        return Refusal(
            "the factor is the reciprocal root of a norm, not a scale",
            "Quantise the norm's result.",
        )
    if scaled.dtype in HALF_DTYPES and scale.dtype != scaled.dtype:
        device = scaled.node.meta["val"].device.type
        # A 0-D scale does not promote a half; GPUs round it to the half first, CPUs do not.
        is_rounded = device != "cpu" and scale.dtype is not None and not scale.shape
        is_exact = scale.is_const and rounded_number(scale.value, scaled.dtype) == scale.value
        if not is_rounded and not is_exact:
            return Refusal(
                f"what a float32 scale divides or multiplies is rounded to {scaled.dtype}",
                "Scale in float32: y.float() / scale, or y.float() * scale.",
            )
    if reciprocal is not None and (
        scaled.dtype != torch.float32 or reciprocal.dtype != torch.float32
    ):
        return Refusal(
            f"the reciprocal of the scale is rounded to {scaled.dtype}",
            "Multiply in float32: y.float() * scale.reciprocal().",
        )
    return None


def _is_cast_of_values(term: Term) -> bool:
    """Whether this is a cast to FP8, not one of a number as in `torch.zeros(n).to(dtype)`."""
    value = term
    while value.op in ("to_fp8", "min", "max", "cast", "view"):
        value = value.args[0]
    return term.op == "to_fp8" and not value.is_const


MEANING = Meaning(
    name="quantize",
    kind="quant",
    spellings=(divide, multiply_by_reciprocal, multiply, convert),
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
    anchor=_is_cast_of_values,
    hint="Write it as (y.float() / scale).clamp(-max, max).to(dtype), with an fp32 scale and max a "
    "Python number.",
    needs="to_fp8",
)
