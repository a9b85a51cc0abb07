"""Terms: the form in which graphs and spellings are compared.

A `Term` is an immutable expression: an operation, its arguments and the dtype and shape of its
value. `canonicalise.py` turns an FX graph into terms with one form per meaning (`x.square()`,
`x * x` and `x.pow(2)` are the same term), and equal expressions are the same object. Terms exist
for matching only; every term keeps the FX nodes that compute it, so that a match can be rewritten.

Casts and views are terms too. The matcher looks through them, and they say where a value is
rounded: every operation computes in fp32 and rounds to its own dtype, and a narrowing cast rounds
once more. `held_dtype` adds this up.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from mi300_inductor.inductor import outside_fake_mode

FP8_DTYPES = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
HALF_DTYPES = (torch.bfloat16, torch.float16)
FLOAT_DTYPES = (*HALF_DTYPES, torch.float32)

Dim = int | torch.SymInt


@dataclass(eq=False)
class Term:
    """One canonical expression.

    Attributes:
        op: Canonical name: `mul`, `mean`, `to_fp8`, ... `leaf` for anything not understood,
            `const` for a Python number.
        args: Operand terms.
        attrs: What else distinguishes it: a constant's value, reduced dimensions, a target dtype.
        dtype: Dtype of the value, None for a value that is no tensor.
        shape: Shape of the value; sizes may be symbols.
        nodes: FX nodes that compute exactly this value; none for a step that only the canonical
            form has.
        origin: The FX node whose canonical form has this step.
    """

    op: str
    args: tuple[Term, ...]
    attrs: tuple[Any, ...]
    dtype: torch.dtype | None
    shape: tuple[Dim, ...]
    nodes: list[fx.Node] = field(default_factory=list)
    origin: fx.Node | None = None

    def __repr__(self) -> str:
        """The expression written as calls."""
        inner = ", ".join([*(repr(a) for a in self.args), *(str(a) for a in self.attrs)])
        return f"{self.op}({inner})"

    @property
    def node(self) -> fx.Node:
        """The first FX node that computes this value, or of which it is a step."""
        if self.nodes:
            return self.nodes[0]
        assert self.origin is not None
        return self.origin

    @functools.cached_property
    def is_static(self) -> bool:
        """Whether all sizes are known while compiling."""
        return all(isinstance(dim, int) for dim in self.shape)

    @property
    def is_const(self) -> bool:
        """Whether this is a number known while compiling."""
        return self.op == "const"

    @property
    def value(self) -> float:
        """The number of a `const` term."""
        return float(self.attrs[0])


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two sizes are equal for every admissible input; adds no guard.

    The halves of an unknown width are: what multiplied them while tracing has guarded it.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if sympy.expand(_expression(a) - _expression(b)) == 0:
        return True
    return not isinstance(a, int) and not isinstance(b, int) and statically_known_true(a == b)


def same_shape(a: Sequence[Dim], b: Sequence[Dim]) -> bool:
    """`same_dim` for whole shapes."""
    if a is b:
        return True
    return len(a) == len(b) and all(same_dim(x, y) for x, y in zip(a, b, strict=True))


def count(shape: Sequence[Dim]) -> Any:
    """Number of elements: an int, or an expression in the graph's symbols."""
    product: Any = math.prod(dim for dim in shape if isinstance(dim, int))
    for dim in shape:
        if not isinstance(dim, int):
            product = product * _expression(dim)
    return product


def _expression(dim: Dim) -> sympy.Expr:
    return sympy.Integer(dim) if isinstance(dim, int) else dim.node.expr


def is_widening(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether every value of `source` is a value of `target`, so that the cast rounds nothing."""
    return source == target or (source in HALF_DTYPES and target == torch.float32)


def is_transparent_view(term: Term) -> bool:
    """Whether a view keeps the last dimension, or only adds or drops the 1 of reduced rows."""
    if term.op != "view":
        return False
    old, new = term.args[0].shape, term.shape
    if not old or not new:
        return False
    if same_dim(old[-1], new[-1]):
        return True
    return same_shape(new, (*old, 1)) or same_shape(old, (*new, 1))


def strip(term: Term) -> Term:
    """The value behind casts between float dtypes and views that keep the last dimension."""
    while term.op == "cast" or is_transparent_view(term):
        term = term.args[0]
    return term


def strip_widening(term: Term) -> Term:
    """The value behind casts that round nothing and views that keep the last dimension."""
    while is_transparent_view(term) or (
        term.op == "cast"
        and term.args[0].dtype is not None
        and term.dtype is not None
        and is_widening(term.args[0].dtype, term.dtype)
    ):
        term = term.args[0]
    return term


def source_of_value(y: Term) -> Term:
    """The value behind casts and views; none of them changes the order of the elements."""
    while y.op in ("cast", "view"):
        y = y.args[0]
    return y


def held_dtype(
    use: Term, is_view: Callable[[Term], bool] = is_transparent_view
) -> torch.dtype | None:
    """Dtype to which the value behind `use` is rounded when it is used there.

    Args:
        use: The value as it is read.
        is_view: Through which views to look for the value, casts apart.

    Returns:
        The dtype of the narrowest rounding between the value's own operation and this use; None
        where it is rounded twice to different dtypes, which no operator of ours reproduces.
    """
    casts: list[torch.dtype] = []
    term = use
    while term.op == "cast" or is_view(term):
        if term.op == "cast" and term.dtype is not None:
            casts.append(term.dtype)
        term = term.args[0]
    current = term.dtype
    if current is None:
        return None
    rounded: torch.dtype | None = None if current == torch.float32 else current
    for dtype in reversed(casts):
        if not is_widening(current, dtype):
            if rounded not in (None, dtype):
                return None
            rounded = dtype
        current = dtype
    return rounded or term.dtype


@functools.lru_cache(1024)
def rounded_number(value: float, dtype: torch.dtype | None) -> float:
    """A number rounded to a half dtype; any other dtype leaves it to the operator."""
    if dtype not in HALF_DTYPES:
        return value
    with outside_fake_mode():
        return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def operand_classes(operand: Term, result: Term) -> frozenset[str]:
    """How an operand is broadcast to a result: any of full, row, column, scalar.

    `row` is one value per row (`[..., 1]`), `column` one per element of the last dimension
    (`[hidden]`). A size-1 dimension can make several of them true.
    """
    if operand.is_const:
        return frozenset({"scalar"})
    if operand.is_static and result.is_static:
        return _static_classes(operand.shape, result.shape)
    return _classes(operand.shape, result.shape)


def _classes(shape: tuple[Dim, ...], out: tuple[Dim, ...]) -> frozenset[str]:
    classes = set()
    if same_shape(shape, out):
        classes.add("full")
    if all(same_dim(dim, 1) for dim in shape):
        classes.add("scalar")
    if shape and len(shape) == len(out) and same_shape(shape[:-1], out[:-1]):
        if same_dim(shape[-1], 1):
            classes.add("row")
    if shape and out and same_dim(shape[-1], out[-1]):
        if all(same_dim(dim, 1) for dim in shape[:-1]):
            classes.add("column")
    return frozenset(classes)


# The matcher asks this most, and a model has few different shapes.
_static_classes = functools.lru_cache(4096)(_classes)
