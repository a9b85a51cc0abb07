"""The canonical forms of casts and clamps.

`clamp`, `clamp_min` and `clamp_max`, `maximum` and `minimum` with a number are `max` and `min`, the
lower bound inside, and so is a number that `where` puts in place of what is beyond it. What is cast
to FP8 always has both: a bound that is not there is infinite. So one spelling of a quantisation
stands for all its clamps.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mi300_inductor.graph.forms import argument, aten, handles, prims
from mi300_inductor.graph.matmul_forms import decomposed_product
from mi300_inductor.graph.term import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    HALF_DTYPES,
    Term,
    is_transparent_view,
    rounded_number,
    same_shape,
    strip,
)

if TYPE_CHECKING:
    from mi300_inductor.graph.canonicalise import Canonicaliser


@handles(aten.copy.default)
def _copy(build: Canonicaliser, node: fx.Node) -> Term | None:
    """What is written into a tensor, which is how a buffer given beforehand is filled."""
    source, value = build.term(node.args[1]), node.meta["val"]
    return _converted(build, node, source) if same_shape(source.shape, value.shape) else None


@handles(prims.convert_element_type.default, aten._to_copy.default)
def _cast(build: Canonicaliser, node: fx.Node) -> Term | None:
    return _converted(build, node, build.term(node.args[0]))


def _converted(build: Canonicaliser, node: fx.Node, source: Term) -> Term | None:
    value = node.meta["val"]
    if value.dtype in FP8_DTYPES and source.dtype == value.dtype:
        return source
    if value.dtype in FP8_DTYPES:
        return build.like(node, "to_fp8", _bounded(build, node, source))
    if value.dtype == torch.float64 and source.dtype in FLOAT_DTYPES:
        return build.like(node, "to_double", source)
    if value.dtype == torch.float32 and source.dtype == torch.float64:
        return _scale_in_double(build, node, source)
    if source.dtype not in FLOAT_DTYPES or value.dtype not in FLOAT_DTYPES:
        return None
    if source.dtype == value.dtype:
        return source
    if value.dtype in HALF_DTYPES:
        form = _in_halves(build, node, source) or decomposed_product(build, node, source)
        if form is not None:
            return form
    return build.like(node, "cast", source)


def _scale_in_double(build: Canonicaliser, node: fx.Node, value: Term) -> Term | None:
    """A scale that is computed in float64 and rounded, as torchao's training does: that in fp32.

    float64 has more than twice the digits of fp32, so that a quotient of two fp32 numbers comes out
    the same; by way of a reciprocal it does but for one in 2^28.
    """
    if value.op == "mul" and value.args[1].is_const and _is_reciprocal(value.args[0]):
        top, bottom = value.args[1], value.args[0].args[1]
    elif value.op == "div":
        top, bottom = value.args
    else:
        return None
    const, largest = (top, bottom) if top.is_const else (bottom, top)
    bound = largest.args[1] if largest.op == "max" else None
    amax = strip(largest if bound is None else largest.args[0])
    if amax.op != "to_double" or strip(amax.args[0]).op != "amax":
        return None
    if not const.is_const or ctypes.c_float(const.value).value != const.value:
        return None
    inner = amax.args[0]
    if bound is not None:
        if not bound.is_const or not _same_in_fp32(top, bottom, const, bound):
            return None
        inner = build.make("max", (inner, bound), (), torch.float32, value.shape)
        inner.origin = inner.origin or node
    args = (const, inner) if const is top else (inner, const)
    return build.like(node, "div", *args)


def _is_reciprocal(term: Term) -> bool:
    return term.op == "div" and term.args[0].is_const and term.args[0].value == 1.0


def _same_in_fp32(top: Term, bottom: Term, const: Term, bound: Term) -> bool:
    """Whether the scale of a row of zeros is the same, although its bound is rounded to fp32."""
    numbers = (const.value, bound.value) if const is top else (bound.value, const.value)
    if not numbers[1]:
        return numbers[0] != 0
    rounded = [ctypes.c_float(number).value for number in numbers]
    if not rounded[1]:
        return False
    wide, narrow = numbers[0] / numbers[1], rounded[0] / rounded[1]
    return ctypes.c_float(wide).value == ctypes.c_float(narrow).value


def _in_halves(build: Canonicaliser, node: fx.Node, value: Term) -> Term | None:
    """What rounds a bound, or a multiple of a largest value, to the dtype of what it is made of.

    That is the operation in that dtype, as torch decomposes it; None for anything else.
    """
    dtype = node.meta["val"].dtype
    if dtype not in HALF_DTYPES or value.op not in ("min", "max", "div", "mul"):
        return None
    inner, number = value.args if value.args[1].is_const else value.args[::-1]
    if not number.is_const:
        return None
    half: Term | None = inner.args[0] if inner.op == "cast" else None
    if half is None and value.op in ("min", "max"):
        half = _in_halves(build, node, inner)
    is_bound = value.op in ("min", "max")
    if half is None or half.dtype != dtype or not (is_bound or strip(half).op in ("amax", "max")):
        return None
    if is_bound:
        number = build.const(rounded_number(number.value, dtype))
    args = (half, number) if value.args[1].is_const else (number, half)
    term = build.make(value.op, args, (), dtype, value.shape)
    term.origin = term.origin or node
    return term


def _bounded(build: Canonicaliser, node: fx.Node, value: Term) -> Term:
    """`min(max(value, low), high)`, infinite bounds where the graph has none."""
    if (value.op == "cast" or is_transparent_view(value)) and strip(value).op in ("min", "max"):
        inner = _bounded(build, node, value.args[0])
        if inner is value.args[0]:
            return value
        return build.step(node, value.op, inner, of=value)
    high = build.const(math.inf)
    if value.op == "min":
        inner, high = value.args
        if strip(inner).op == "max":
            return value
        lower = build.step(node, "max", inner, build.const(-math.inf), of=inner)
    elif value.op == "max":
        lower = value
    else:
        lower = build.step(node, "max", value, build.const(-math.inf), of=value)
    return build.step(node, "min", lower, high, of=value)


@handles(aten.clamp_min.default, aten.clamp_min.Tensor, aten.maximum.default)
def _max(build: Canonicaliser, node: fx.Node) -> Term:
    return _bound(build, node, "max", build.term(node.args[0]), build.term(node.args[1]))


@handles(aten.clamp_max.default, aten.clamp_max.Tensor, aten.minimum.default)
def _min(build: Canonicaliser, node: fx.Node) -> Term:
    return _bound(build, node, "min", build.term(node.args[0]), build.term(node.args[1]))


def _bound(build: Canonicaliser, node: fx.Node, op: str, left: Term, right: Term) -> Term:
    if left.is_const:
        left, right = right, left
    if op == "max" and left.op == "min" and right.is_const and left.args[1].is_const:
        value, high = left.args
        if right.value <= high.value and left.dtype == node.meta["val"].dtype:
            return build.like(node, "min", build.step(node, "max", value, right, of=left), high)
    return build.like(node, op, left, right)


@handles(aten.clamp.default)
def _clamp(build: Canonicaliser, node: fx.Node) -> Term:
    term = build.term(node.args[0])
    low, high = argument(node, 1, "min"), argument(node, 2, "max")
    if low is not None:
        term = build.like(node, "max", term, build.term(low))
    if high is not None:
        term = build.like(node, "min", term, build.term(high))
    return term


@handles(aten.where.self)
def _where(build: Canonicaliser, node: fx.Node) -> Term | None:
    condition, chosen, other = node.args
    return _saturated(build, node, condition, chosen, build.term(other))


@handles(aten.index_put.default)
def _index_put(build: Canonicaliser, node: fx.Node) -> Term | None:
    """`v[v > 448] = 448`."""
    source, indices, chosen = node.args[:3]
    if not isinstance(indices, (list, tuple)) or len(indices) != 1 or argument(node, 3, "", False):
        return None
    return _saturated(build, node, indices[0], chosen, build.term(source))


def _saturated(
    build: Canonicaliser, node: fx.Node, condition: Any, chosen: Any, other: Term
) -> Term | None:
    """A bound that is chosen where a value is beyond it: as `clamp`, it leaves NaN as it is."""
    op = _BEYOND.get(condition.target) if isinstance(condition, fx.Node) else None
    if op is None or not same_shape(other.shape, tuple(node.meta["val"].shape)):
        return None
    value, limit = map(build.term, condition.args[:2])
    bound = build.term(chosen)
    if not limit.is_const or not bound.is_const or limit.value != bound.value:
        return None
    number = bound.value
    is_exact = ctypes.c_float(number).value == number == rounded_number(number, other.dtype)
    if not number or not is_exact or other.dtype != node.meta["val"].dtype:
        return None
    if other is not value:  # bounded on the other side before
        lower, higher = ("max", 1) if op == "min" else ("min", -1)
        if other.op != lower or other.args[0] is not value or not other.args[1].is_const:
            return None
        if other.args[1].value * higher > number * higher:
            return None
    return _bound(build, node, op, other, bound)


_BEYOND: dict[Any, str] = {
    aten.gt.Scalar: "min",
    aten.ge.Scalar: "min",
    aten.gt.Tensor: "min",
    aten.ge.Tensor: "min",
    aten.lt.Scalar: "max",
    aten.le.Scalar: "max",
    aten.lt.Tensor: "max",
    aten.le.Tensor: "max",
}
