"""The canonical form of each FX operation.

Forms that mean the same become the same term: `square`, `x * x` and `pow(x, 2)`; `sum / n` and
`mean`; `1 / sqrt(v)`, `pow(v, -0.5)` and `rsqrt`; a `full` tensor and a number. Nothing is merged
that rounds differently: `x / s` stays a division. Casts and clamps are in `cast_forms.py`, matmuls
in `matmul_forms.py`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from mi300_inductor.graph.rounding import ROUNDED
from mi300_inductor.graph.term import Dim, Term, rounded_number, same_dim, same_shape

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


def _last_dim_only(term: Term, dims: Any) -> bool:
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, (list, tuple)) or len(dims) != 1 or not term.shape:
        return False
    return bool(dims[0] in (-1, len(term.shape) - 1))


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


@handles(aten.expand.default)
def _expand(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.term(node.args[0])
    if source.is_const or same_shape(source.shape, tuple(node.meta["val"].shape)):
        return source
    return build.like(node, "expand", source)


@handles(aten.full.default)
def _full(build: Canonicaliser, node: fx.Node) -> Term | None:
    fill = node.args[1]
    if not isinstance(fill, (int, float)):
        return None
    return build.const(rounded_number(fill, node.meta["val"].dtype))


@handles(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(build: Canonicaliser, node: fx.Node) -> Term | None:
    if argument(node, 2, "alpha", 1) != 1:
        return None
    left, right = build.term(node.args[0]), build.term(node.args[1])
    if node.target in (aten.sub.Tensor, aten.sub.Scalar):
        if not right.is_const:
            return build.like(node, "sub", left, right)
        right = build.const(-right.value)
    if _is(right, 0.0):
        return None
    return build.like(node, "add", left, right)


@handles(aten.mul.Tensor, aten.mul.Scalar)
def _mul(build: Canonicaliser, node: fx.Node) -> Term:
    left, right = build.term(node.args[0]), build.term(node.args[1])
    if left.is_const:
        left, right = right, left
    if _is(right, 1.0) and left.dtype == node.meta["val"].dtype:
        return left
    if left.op == "sum" and right.is_const:
        hidden = left.args[0].shape[-1]
        if isinstance(hidden, int) and math.isclose(right.value * hidden, 1.0, rel_tol=1e-7):
            return build.like(node, "mean", left.args[0])
    return build.like(node, "mul", left, right)


@handles(aten.square.default)
def _square(build: Canonicaliser, node: fx.Node) -> Term:
    source = build.term(node.args[0])
    return build.like(node, "mul", source, source)


@handles(aten.neg.default)
def _neg(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "mul", build.term(node.args[0]), build.const(-1.0))


@handles(aten.pow.Tensor_Scalar)
def _pow(build: Canonicaliser, node: fx.Node) -> Term | None:
    source, exponent = build.term(node.args[0]), node.args[1]
    if exponent == 2:
        # (sqrt(v))**2 is v: a norm spelled with torch.linalg.vector_norm squares its result.
        if source.op == "sqrt" and source.dtype == torch.float32:
            return source.args[0]
        return build.like(node, "mul", source, source)
    names = {0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    name = names.get(exponent) if isinstance(exponent, (int, float)) else None
    return _reciprocal_of(build, node, source, name) if name else None


def _reciprocal_of(build: Canonicaliser, node: fx.Node, source: Term, name: str) -> Term:
    if name != "reciprocal":
        return build.like(node, name, source)
    if source.op == "sqrt" and source.dtype == torch.float32:
        return build.like(node, "rsqrt", source.args[0])
    if source.op == "add" and source.dtype == torch.float32:
        exponential, one = source.args
        if one.op == "exp":
            exponential, one = one, exponential
        if _is(one, 1.0) and exponential.op == "exp":
            negated = exponential.args[0]
            if negated.op == "mul" and _is(negated.args[1], -1.0):
                return build.like(node, "sigmoid", negated.args[0])
    return build.like(node, "div", build.const(1.0), source)


@handles(aten.reciprocal.default)
def _reciprocal(build: Canonicaliser, node: fx.Node) -> Term:
    return _reciprocal_of(build, node, build.term(node.args[0]), "reciprocal")


@handles(aten.sqrt.default)
def _sqrt(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "sqrt", build.term(node.args[0]))


@handles(aten.rsqrt.default)
def _rsqrt(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "rsqrt", build.term(node.args[0]))


@handles(aten.exp.default)
def _exp(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "exp", build.term(node.args[0]))


@handles(aten.sigmoid.default)
def _sigmoid(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "sigmoid", build.term(node.args[0]))


@handles(aten.abs.default)
def _abs(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "abs", build.term(node.args[0]))


@handles(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def _div(build: Canonicaliser, node: fx.Node) -> Term:
    left, right = build.term(node.args[0]), build.term(node.args[1])
    if _is(left, 1.0):
        return _reciprocal_of(build, node, right, "reciprocal")
    if right.op == "sqrt" and right.dtype == torch.float32:
        return build.like(node, "mul", left, build.step(node, "rsqrt", *right.args, of=right))
    if left.op == "sum" and _is_size(node.args[1], left.args[0].shape[-1]):
        return build.like(node, "mean", left.args[0])
    return build.like(node, "div", left, right)


def _is_size(value: Any, dim: Dim) -> bool:
    """Whether an argument is a size of the graph, as a number or as a symbol."""
    if isinstance(value, fx.Node):
        value = value.meta["val"]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return isinstance(value, int | torch.SymInt) and same_dim(value, dim)


@handles(aten.mean.dim)
def _mean(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.term(node.args[0])
    if not _last_dim_only(source, node.args[1]):
        return build.like(node, "mean_other", source, attrs=(str(node.args[1]),))
    return build.like(node, "mean", source)


@handles(aten.sum.dim_IntList, aten.sum.default)
def _sum(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.term(node.args[0])
    dims = argument(node, 1, "dim") or range(len(source.shape))
    if not _last_dim_only(source, list(dims)):
        return build.like(
            node, "sum_other", source, attrs=tuple(d % len(source.shape) for d in dims)
        )
    return build.like(node, "sum", source, attrs=("last",))


@handles(aten.amax.default)
def _amax(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.term(node.args[0])
    dims = argument(node, 1, "dim", ())
    if _last_dim_only(source, dims):
        return build.like(node, "amax", source, attrs=("last",))
    if len(dims) in (0, len(source.shape)):
        return build.like(node, "amax", source, attrs=("all",))
    return None


@handles(aten.max.default)
def _max_all(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "amax", build.term(node.args[0]), attrs=("all",))


@handles(operator.getitem)
def _getitem(build: Canonicaliser, node: fx.Node) -> Term | None:
    producer, index = node.args
    if isinstance(producer, fx.Node) and producer.target is aten.max.dim and index == 0:
        source = build.term(producer.args[0])
        if _last_dim_only(source, producer.args[1]):
            return build.like(node, "amax", source, attrs=("last",))
    return None
