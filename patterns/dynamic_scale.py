"""The scale of dynamic quantisation: from the largest |y| of a row, a group or the whole tensor.

Before: abs, amax, clamp_min, div.  After: one more output of the kernel that makes y. A group is a
row of y viewed as `[..., groups, group_size]`; amax over the last dimension stands for amax over
the whole tensor, too. Where the graph computes the scale in y's own half dtype, as torchao does,
each result on the way is rounded to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mi300_inductor.graph.meaning import DynamicScale, Meaning, Refusal
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import HALF_DTYPES, Term, held_dtype, rounded_number

F32 = torch.float32


def _amax(y: Tensor) -> Tensor:
    return y.abs().amax(-1, keepdim=True).float()


def divided(y: Tensor, scale_const: float) -> Tensor:
    """Scale = amax / max of the format."""
    return _amax(y) / scale_const


def divided_bounded_amax(y: Tensor, scale_const: float, amax_min: float) -> Tensor:
    """Amax is bounded from below first."""
    return _amax(y).clamp(min=amax_min) / scale_const


def divided_bounded_scale(y: Tensor, scale_const: float, scale_min: float) -> Tensor:
    """The scale is bounded from below."""
    return (_amax(y) / scale_const).clamp(min=scale_min)


def divided_bounded_twice(
    y: Tensor, scale_const: float, amax_min: float, scale_min: float
) -> Tensor:
    """Both amax and the scale are bounded from below."""
    return (_amax(y).clamp(min=amax_min) / scale_const).clamp(min=scale_min)


def multiplied(y: Tensor, scale_const: float) -> Tensor:
    """Scale = amax * (1 / max of the format), the constant computed beforehand."""
    return _amax(y) * scale_const


def multiplied_bounded_amax(y: Tensor, scale_const: float, amax_min: float) -> Tensor:
    """The same with amax bounded from below."""
    return _amax(y).clamp(min=amax_min) * scale_const


def multiplied_bounded_scale(y: Tensor, scale_const: float, scale_min: float) -> Tensor:
    """The same with the scale bounded from below."""
    return (_amax(y) * scale_const).clamp(min=scale_min)


def multiplied_bounded_twice(
    y: Tensor, scale_const: float, amax_min: float, scale_min: float
) -> Tensor:
    """The same with both amax and the scale bounded from below."""
    return (_amax(y).clamp(min=amax_min) * scale_const).clamp(min=scale_min)


def inverse(y: Tensor, scale_const: float) -> Tensor:
    """The reciprocal scale; a number divided by a tensor is reciprocal, then multiply."""
    return scale_const / _amax(y)


def inverse_bounded_amax(y: Tensor, scale_const: float, amax_min: float) -> Tensor:
    """The same with amax bounded from below."""
    return scale_const / _amax(y).clamp(min=amax_min)


def inverse_bounded_scale(y: Tensor, scale_const: float, scale_min: float) -> Tensor:
    """The same with the scale bounded from below."""
    return (scale_const / _amax(y)).clamp(min=scale_min)


def inverse_by_division(y: Tensor, scale_const: float) -> Tensor:
    """The reciprocal scale by a true division of tensors."""
    return torch.full((), scale_const) / _amax(y)


def inverse_by_division_bounded_amax(y: Tensor, scale_const: float, amax_min: float) -> Tensor:
    """The same with amax bounded from below."""
    return torch.full((), scale_const) / _amax(y).clamp(min=amax_min)


def _roles(root: Term) -> dict[str, Term]:
    roles: dict[str, Term] = {"scale": root}
    form = root.args[0] if root.op == "max" else root
    roles["form"] = form
    inner = form
    while inner.op != "amax":
        inner = next(a for a in inner.args if not a.is_const)
    roles["amax"] = inner
    return roles


def _describe(match: Match) -> DynamicScale | Refusal:
    y, amax = match.variables["y"], match.value("amax")
    assert amax is not None
    own, rounded = held_dtype(y), set[torch.dtype | None]()
    for pattern, use in match.uses.items():
        # The largest of some halves is a half, so amax and abs in their dtype round nothing.
        held = held_dtype(use)
        if pattern in match.values and held != F32:
            if held != own or own not in HALF_DTYPES:
                return Refusal(
                    f"the scale is rounded to {held}, and the value that it follows from is {own}",
                    "Compute the scale in float32, y.abs().amax(-1, keepdim=True).float() / 448, or"
                    " wholly in the dtype of the value.",
                )
        if pattern.op in ("div", "mul"):
            rounded.add(held)
    if len(rounded) > 1:
        return Refusal(
            f"of the reciprocal of amax and the scale only one is rounded to {own}",
            "Convert amax with .float() before dividing by it.",
        )
    const = match.scalar("scale_const")
    form, quotient = _form(match), match.value("form")
    if form == "div_amax" and quotient is not None:
        const = rounded_number(const, quotient.dtype)  # a tensor, which takes the dtype of amax
    return DynamicScale(
        match=match,
        root=match.root,
        y=y,
        over=amax.attrs[0],
        scale_form=form if rounded == {F32} else f"{form}_rounded",
        scale_const=const,
        amax_min=_bound(match, "amax_min"),
        scale_min=_bound(match, "scale_min"),
    )


def _bound(match: Match, name: str) -> float:
    """A lower bound as the graph applies it; 0 where there is none."""
    if name not in match.variables:
        return 0.0
    names = match.spelling.variables
    use = next(
        use
        for pattern, use in match.uses.items()
        if pattern.op == "max" and any(names.get(operand) == name for operand in pattern.args)
    )
    return rounded_number(match.scalar(name), held_dtype(use))


def _form(match: Match) -> str:
    """The pattern's order of operations, as the operators name it."""
    form = match.spelling.roles["form"]
    first, second = form.args
    if form.op == "div":
        return "div_amax" if first.is_const else "amax_div"
    return "reciprocal_mul" if "div" in (first.op, second.op) else "amax_mul"


MEANING = Meaning(
    name="dynamic_scale",
    kind="quant",
    spellings=(
        divided,
        divided_bounded_amax,
        divided_bounded_scale,
        divided_bounded_twice,
        multiplied,
        multiplied_bounded_amax,
        multiplied_bounded_scale,
        multiplied_bounded_twice,
        inverse,
        inverse_bounded_amax,
        inverse_bounded_scale,
        inverse_by_division,
        inverse_by_division_bounded_amax,
    ),
    examples=(
        {
            "y": torch.ones(ROWS, HIDDEN),
            "scale_const": None,
            "amax_min": None,
            "scale_min": None,
        },
    ),
    roles=_roles,
    describe=_describe,
    anchor=lambda term: False,
    hint="",
    needs="amax",
)
