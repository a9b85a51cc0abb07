"""Ways from one operation of a graph to another through what computes, moves or joins values.

They are followed on FX nodes, because most operations on them have no canonical form.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.forms import argument
from mi300_inductor.graph.words import operation_name

aten = torch.ops.aten

# How many operations are looked at on the way back.
REACH = 8
# They keep every value and the order of the values.
SAME_ORDER = (
    torch.ops.prims.convert_element_type.default,
    aten.reshape.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.clone.default,
    aten.copy.default,
    operator.getitem,
)
# They scale and clamp, as a quantisation does itself.
SCALING = ("mul", "div", "reciprocal", "clamp", "clamp_min", "clamp_max", "minimum", "maximum")
# They move values, each where it was or somewhere else.
MOVES = {
    "permute": "a transposition",
    "transpose": "a transposition",
    "t": "a transposition",
    "slice": "a slice",
    "split": "a split",
    "split_with_sizes": "a split",
    "unbind": "a split",
    "select": "a selection",
    "expand": "an expansion",
    "index_select": "a selection",
    "index": "an indexing",
    "gather": "an indexing",
    "flip": "flip",
    "roll": "roll",
    "repeat": "repeat",
}
# They put several tensors together.
JOINS = (
    *("cat", "stack", "where", "masked_fill", "constant_pad_nd"),
    *("slice_scatter", "select_scatter", "index_put", "scatter"),
)


def way_back(
    start: fx.Node, is_end: Callable[[fx.Node], bool], through: Collection[str] = ()
) -> list[fx.Node]:
    """The operations from a value back to the nearest that ends the way, that included.

    Args:
        start: Where it begins.
        is_end: Whether a node ends it.
        through: Names of operations that it may pass, besides those of single elements.
    """
    ways, seen = [[start]], {start}
    for way in ways:
        node = way[-1]
        if is_end(node):
            return way
        if len(way) > REACH or not (is_light(node) or _is_named(node, through)):
            continue
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                ways.append([*way, source])
    return []


def is_light(node: fx.Node) -> bool:
    """Whether a node computes each element by itself, or only moves elements."""
    if node.target in SAME_ORDER:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    is_listed = operation_name(node) in (*MOVES, *JOINS)
    return is_listed or torch.Tag.pointwise in node.target.tags


def _is_named(node: fx.Node, names: Collection[str]) -> bool:
    return node.op == "call_function" and operation_name(node) in names


def by_name(way: Iterable[fx.Node]) -> dict[str, fx.Node]:
    """The operations of a way back, each once, by name."""
    return {operation_name(node): node for node in way}


def in_order(operations: Mapping[str, fx.Node]) -> str:
    """`stands a slice (slice_1)`: the operations of a way back in the order of the graph."""
    shown = [f"{MOVES.get(name, name)} ({node.name})" for name, node in operations.items()]
    return f"{'stands' if len(shown) == 1 else 'stand'} {' and '.join(reversed(shown))}"


def is_square(node: fx.Node) -> bool:
    """Whether a node computes squares."""
    if node.target is aten.pow.Tensor_Scalar:
        return bool(node.args[1] == 2)
    return node.target is aten.mul.Tensor and node.args[0] is node.args[1]


def is_variance(node: fx.Node) -> bool:
    """Whether a node is a variance over the last dimension, and others perhaps."""
    if node.target is operator.getitem:
        source, index = node.args
        if index != 0 or source.target is not aten.var_mean.correction:  # type: ignore[union-attr]
            return False
        node = source  # type: ignore[assignment]
    elif node.target is not aten.var.correction:
        return False
    dims: Any = argument(node, 1, "dim")
    rank = node.all_input_nodes[0].meta["val"].dim()
    return not dims or any(dim in (-1, rank - 1) for dim in dims)


_ROOTS = (aten.rsqrt.default, aten.sqrt.default)
# The derivatives of a reciprocal root and of a root are computed from these.
_OF_ROOTS = ((aten.pow.Tensor_Scalar, (3,)), (aten.mul.Scalar, (2,)))


def is_differentiated(node: fx.Node) -> bool:
    """Whether a node is a root that its own derivative reads, in one graph with it."""
    return node.target in _ROOTS and any(
        (user.target, user.args[1:]) in _OF_ROOTS for user in node.users
    )
