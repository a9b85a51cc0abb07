"""The canonical form of each FX operation.

Forms that mean the same become the same term: `square`, `x * x` and `pow(x, 2)`; `sum / n` and
`mean`; `1 / sqrt(v)`, `pow(v, -0.5)` and `rsqrt`; a `full` tensor and a number. Nothing is merged
that rounds differently: `x / s` stays a division. Casts and clamps are in `cast_forms.py`,
reductions in `reduction_forms.py`, matmuls in `matmul_forms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mi300_inductor.graph.rounding import ROUNDED
from mi300_inductor.graph.sizes import is_power_of_size
from mi300_inductor.graph.term import (
    Dim,
    Term,
    is_transparent_view,
    rounded_number,
    same_dim,
    same_shape,
    strip_widening,
)

if TYPE_CHECKING:
    from mi300_inductor.graph.canonicalise import Canonicaliser

aten = torch.ops.aten
prims = torch.ops.prims

Handler = Callable[["Canonicaliser", fx.Node], "Term | None"]
FORMS: dict[Any, Handler] = {}


def handles(*targets: Any) -> Callable[[Handler], Handler]:
    """Registers the canonical form of some FX targets."""

    def register(handler: Handler) -> Handler:
        for target in targets:
            FORMS[target] = handler
        return handler

    return register


def _is(term: Term, value: float) -> bool:
    return term.is_const and term.value == value


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a node, given by position or by name."""
    if len(node.args) > index:
        return node.args[index]
    return node.kwargs.get(name, default)


@handles(
    aten.reshape.default,
    aten.view.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.clone.default,
    aten.alias.default,
    aten.lift_fresh_copy.default,
    ROUNDED,
)
def _view(build: Canonicaliser, node: fx.Node) -> Term:
    source = build.term(node.args[0])
    if source.is_const or same_shape(source.shape, tuple(node.meta["val"].shape)):
        return source
    if source.op == "view":
        source = source.args[0]
        if same_shape(source.shape, tuple(node.meta["val"].shape)):
            return source
    return build.like(node, "view", source)


@handles(aten.permute.default)
def _permute(build: Canonicaliser, node: fx.Node) -> Term | None:
    """An einsum permutes also where the order stays."""
    order: Any = node.args[1]
    is_kept = all(old % len(order) == new for new, old in enumerate(order))
    return build.term(node.args[0]) if is_kept else None


@handles(aten.select.int)
def _select(build: Canonicaliser, node: fx.Node) -> Term | None:
    """The only part of a dimension is all of it."""
    source, dim = build.tensor(node.args[0]), node.args[1]
    return _view(build, node) if same_dim(source.shape[dim], 1) else None  # type: ignore[index]


@handles(aten.expand.default)
def _expand(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.term(node.args[0])
    if source.is_const or same_shape(source.shape, tuple(node.meta["val"].shape)):
        return source
    return build.like(node, "expand", source)


@handles(aten.repeat.default)
def _repeat(build: Canonicaliser, node: fx.Node) -> Term | None:
    """Copies of a whole tensor, or of its only values in a dimension, have the values of a view."""
    source = build.tensor(node.args[0])
    times: Any = node.args[1]
    own = times[len(times) - len(source.shape) :]
    is_view = all(n == 1 or same_dim(dim, 1) for n, dim in zip(own, source.shape, strict=True))
    return _expand(build, node) if is_view else None


@handles(aten.full.default)
def _full(build: Canonicaliser, node: fx.Node) -> Term | None:
    fill = node.args[1]
    if not isinstance(fill, (int, float)):
        return None
    return build.const(rounded_number(fill, node.meta["val"].dtype))


@handles(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(build: Canonicaliser, node: fx.Node) -> Term | None:
    alpha = argument(node, 2, "alpha", 1)
    if not isinstance(alpha, (int, float)):
        return None
    left, right = build.term(node.args[0]), build.term(node.args[1])
    is_sub = node.target in (aten.sub.Tensor, aten.sub.Scalar)
    if alpha != 1 and not right.is_const:
        return build.like(node, "weighted_add", left, right, attrs=(-alpha if is_sub else alpha,))
    if is_sub and not right.is_const:
        return build.like(node, "sub", left, right)
    if is_sub or alpha != 1:
        right = build.const((-alpha if is_sub else alpha) * right.value)
    if _is(right, 0.0) and strip_widening(left).op != "mean":
        return None
    return build.like(node, "add", left, right)


@handles(aten.mul.Tensor, aten.mul.Scalar)
def _mul(build: Canonicaliser, node: fx.Node) -> Term:
    left, right = build.term(node.args[0]), build.term(node.args[1])
    value = node.meta["val"]
    if left is right and not left.is_const:
        return _squared(build, node, left)
    if left.is_const:
        left, right = right, left
    is_whole = same_shape(left.shape, value.shape)  # a `full` tensor may broadcast
    if _is(right, 1.0) and left.dtype == value.dtype and is_whole:
        return left
    total = _summed(left) if right.is_const and is_whole else None
    if total is not None:
        hidden = total.args[0].shape[-1]
        if isinstance(hidden, int) and math.isclose(right.value * hidden, 1.0, rel_tol=1e-7):
            return build.like(node, "mean", total.args[0])
    factor = right.value if right.is_const else node.args[1]
    return _root_of_mean(build, node, left, factor, -0.5) or build.like(node, "mul", left, right)


@handles(aten.square.default)
def _square(build: Canonicaliser, node: fx.Node) -> Term:
    return _squared(build, node, _unsigned(build.term(node.args[0])))


def _squared(build: Canonicaliser, node: fx.Node, source: Term) -> Term:
    """(sqrt(v))**2 is v: a norm spelled with torch.linalg.vector_norm squares its result."""
    root = _behind_views(source)
    if root.op == "sqrt" and root.dtype == torch.float32:
        inner = root.args[0]
        return inner if root is source else build.like(node, "view", _behind_views(inner))
    return build.like(node, "mul", source, source)


def _unsigned(term: Term) -> Term:
    """What has the same square."""
    return term.args[0] if term.op == "abs" else term


@handles(aten.neg.default)
def _neg(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "mul", build.term(node.args[0]), build.const(-1.0))


@handles(aten.pow.Tensor_Scalar)
def _pow(build: Canonicaliser, node: fx.Node) -> Term | None:
    source, exponent = build.term(node.args[0]), node.args[1]
    if exponent == 2:
        return _square(build, node)
    names = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    name = names.get(exponent) if isinstance(exponent, (int, float)) else None
    return _reciprocal_of(build, node, source, name) if name else None


def _reciprocal_of(build: Canonicaliser, node: fx.Node, source: Term, name: str) -> Term:
    if name == "rsqrt":
        return build.like(node, name, _shifted(build, node, source))
    if name == "sqrt":
        return build.like(node, name, source)
    if source.op == "sqrt" and source.dtype == torch.float32:
        return build.like(node, "rsqrt", _shifted(build, node, source.args[0]))
    if source.op == "add" and source.dtype == torch.float32:
        exponential, one = source.args
        if one.op == "exp":
            exponential, one = one, exponential
        if _is(one, 1.0) and exponential.op == "exp":
            negated = exponential.args[0]
            if negated.op == "mul" and _is(negated.args[1], -1.0):
                return build.like(node, "sigmoid", negated.args[0])
    return build.like(node, "div", build.const(1.0), source)


def _shifted(build: Canonicaliser, node: fx.Node, value: Term) -> Term:
    """A mean below a root with an eps: zero where the graph adds none."""
    if strip_widening(value).op != "mean":
        return value
    return build.step(node, "add", value, build.const(0.0), of=value)


@handles(aten.rsqrt.default)
def _rsqrt(build: Canonicaliser, node: fx.Node) -> Term:
    return _reciprocal_of(build, node, build.term(node.args[0]), "rsqrt")


@handles(aten.reciprocal.default)
def _reciprocal(build: Canonicaliser, node: fx.Node) -> Term:
    return _reciprocal_of(build, node, build.term(node.args[0]), "reciprocal")


@handles(
    aten.sqrt.default,
    aten.exp.default,
    aten.sigmoid.default,
    aten.glu.default,
    aten.abs.default,
)
def _of_one(build: Canonicaliser, node: fx.Node) -> Term:
    target: Any = node.target
    return build.like(node, target.overloadpacket.__name__, build.term(node.args[0]))


@handles(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _div(build: Canonicaliser, node: fx.Node) -> Term:
    left, right = build.term(node.args[0]), build.term(node.args[1])
    if _is(left, 1.0):
        return _reciprocal_of(build, node, right, "reciprocal")
    if right.op == "sqrt" and right.dtype == torch.float32:
        shifted = _shifted(build, node, right.args[0])
        return build.like(node, "mul", left, build.step(node, "rsqrt", shifted, of=right))
    total = _summed(left)
    divisor = right.value if right.is_const else node.args[1]
    if total is not None and _is_size(divisor, total.args[0].shape[-1]):
        if same_shape(left.shape, node.meta["val"].shape):  # a `full` tensor may broadcast
            return build.like(node, "mean", total.args[0])
    return _root_of_mean(build, node, left, divisor, 0.5) or build.like(node, "div", left, right)


def _root_of_mean(
    build: Canonicaliser, node: fx.Node, root: Term, factor: Any, exponent: float
) -> Term | None:
    """The root of a sum over the last dimension by that of its size, which is that of the mean."""
    value = _behind_views(root)
    total = _summed(value.args[0]) if value.op == "sqrt" and value.dtype == torch.float32 else None
    if total is None or not same_shape(root.shape, node.meta["val"].shape):
        return None
    if not is_power_of_size(factor, total.args[0].shape[-1], exponent):
        return None
    return build.like(node, "sqrt", build.step(node, "mean", total.args[0], of=root))


def _summed(term: Term) -> Term | None:
    """The sum over the last dimension that a term is, or is a view of with the same rows."""
    term = _behind_views(term)
    return term if term.op == "sum" else None


def _behind_views(term: Term) -> Term:
    while is_transparent_view(term):
        term = term.args[0]
    return term


def _is_size(value: Any, dim: Dim) -> bool:
    """Whether an argument is a size of the graph, as a number or as a symbol."""
    if isinstance(value, fx.Node):
        value = value.meta["val"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return isinstance(value, int | torch.SymInt) and same_dim(value, dim)
