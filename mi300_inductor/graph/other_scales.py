"""Why a scale does not follow from the quantised value in a way that the operators know, in words.

They compute the scale of a row, a group or a tensor from its largest absolute value: times or over
a number, that and amax bounded from below by numbers. This looks for the first step that is none of
these.
"""

from __future__ import annotations

import torch

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.recognise import furthest_failure
from mi300_inductor.graph.term import Term, operand_classes, strip
from mi300_inductor.graph.words import describe, operation_name

WANTED = (
    "Compute it as y.abs().amax(-1, keepdim=True).float() / 448 from the value that is quantised, "
    "or use one static scale"
)
_BOUNDED = "; a lower bound is a clamp(min=...) of amax or of the scale, with a number"
_NUMBER = (
    "Give the {name} as a Python number that is known while compiling: {example}, or a float "
    "attribute of the model. The value of a tensor, a buffer or an argument is not known then."
)
_FREE = (
    "Leave it out: no kernel bounds a scale from above, and (y / scale).clamp(-448, 448) keeps the "
    "scaled value in range. Without it large values have a larger scale, and none is cut off."
)
_CHOSEN = "Bound it from below instead of choosing it: scale.clamp(min=...), with a number."
_POWERS = ("exp2", "ldexp", "pow", "ceil", "floor", "round", "bitwise_and")
_NO_POWER = "no kernel rounds a scale, as UE8M0 needs it."
# Operations through which a scale is looked at.
_STEPS = ("mul", "div", "max", "min", "cast", "view")


def unknown_scale(scale: Term, is_single: bool, other_value: str | None) -> Refusal:
    """The refusal of a quantisation whose scale is computed in no known way.

    Args:
        scale: What the value is scaled by.
        is_single: Whether it is one value, and not one per row or group.
        other_value: What it follows from, if that is not the quantised value.
    """
    known = "has one value per row but does not follow from the largest absolute value of that row"
    if is_single:
        known = "is computed from the quantised value, but not from its largest absolute value"
    why, hint = other_value or _from_several(scale), WANTED + _BOUNDED + "."
    if why is None:
        why, hint = _odd_step(scale) or (furthest_failure("dynamic_scale", [scale]), hint)
    return Refusal(f"the scale {scale.node.name} {known} in a known way: {why}", hint)


def _from_several(scale: Term) -> str | None:
    """Says that a scale is the maximum of several values, both ends of y or those of others."""
    while scale.op in ("mul", "div", "max", "cast", "view") and scale.args:
        operands = [operand for operand in scale.args if not operand.is_const]
        if len(operands) > 1 and scale.op != "max":
            return None
        if len(operands) > 1:
            ends = [strip(a.args[0] if a.op == "abs" else a) for a in map(strip, operands)]
            others = [end for end in ends if end.op != "amax"]
            if len(others) == len(ends):
                return None
            if others and others[0].op in ("neg", "mul"):
                return "it is the maximum of amax and -amin, expected abs().amax"
            if others and "scalar" in operand_classes(others[0], scale):
                return None
            return (
                f"it is the maximum of {' and '.join(map(describe, operands))}, expected the amax "
                "of the quantised value alone"
            )
        scale = operands[0]
    return None


def _odd_step(scale: Term) -> tuple[str, str] | None:
    """The first operation from a scale back to amax that no operator makes, and what to do."""
    while scale.op in _STEPS and scale.op not in ("cast", "view"):
        inner = [operand for operand in scale.args if _is_of_amax(operand)]
        if len(inner) != 1:
            return None
        other = next(operand for operand in scale.args if operand is not inner[0])
        if scale.op == "min":
            return f"it has an upper bound, {describe(other)}", _FREE
        if not other.is_const and scale.op == "max":
            hint = _NUMBER.format(name="bound", example="clamp(min=1e-6)")
            return f"its lower bound is {describe(other)}, expected a number", hint
        if not other.is_const:
            done = "divided" if scale.op == "div" else "multiplied"
            hint = _NUMBER.format(name="factor", example="amax / 448")
            return f"it is {done} by {describe(other)}, expected a number", hint
        scale = strip(inner[0])
    if _is_chosen(scale):
        return f"torch.where ({scale.node.name}) chooses it", _CHOSEN
    if scale.op != "leaf" or not scale.nodes:
        return None
    if scale.node.op in ("placeholder", "get_attr"):
        return f"it is {describe(scale)}", f"{WANTED}{_BOUNDED}."
    if operation_name(scale.node) in _POWERS:
        return f"it is rounded to a power of two ({scale.node.name})", f"{WANTED}; {_NO_POWER}"
    return None


def _is_of_amax(term: Term) -> bool:
    """Whether a value is on the way from a largest value to its scale."""
    if term.op in _STEPS:
        return any(map(_is_of_amax, term.args))
    return term.op == "amax" or _is_chosen(term)


def _is_chosen(term: Term) -> bool:
    return bool(term.nodes) and term.node.target is torch.ops.aten.where.self
