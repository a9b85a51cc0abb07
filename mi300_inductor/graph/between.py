"""What stands between parts of a fusion that follow one another in a kernel, in words.

The kernels quantise the result of a norm or an activation as it is, and take the root of the mean
of squares as it is. Another operation on the way keeps the two apart, and this finds it, so that
the report can name it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.term import Term

aten = torch.ops.aten

# How many operations are looked at on the way back.
_REACH = 8
# They keep every value and the order of the values.
_SAME_ORDER = (
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
_SCALING = ("mul", "div", "reciprocal", "clamp", "clamp_min", "clamp_max", "minimum", "maximum")
# They move values, each where it was or somewhere else.
_MOVES = {
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
    "flip": "flip",
    "roll": "roll",
    "repeat": "repeat",
}
# They put several tensors together.
_JOINS = (
    *("cat", "stack", "where", "masked_fill", "constant_pad_nd"),
    *("slice_scatter", "select_scatter", "index_put", "scatter"),
)
_ROUNDS = ("round", "floor", "ceil", "trunc")
# They exchange values with other devices.
_EXCHANGES = ("all_reduce", "wait_tensor")
_AVERAGES = ("mean", "sum", "nanmean", *_EXCHANGES)


def stands_between(value: Term, producers: Collection[Term]) -> Refusal | None:
    """Names what is between the results of norms and activations and a value that is quantised.

    Args:
        value: What is quantised.
        producers: The results.

    Returns:
        None if none of the results is near.
    """
    results = {node for root in producers for node in root.nodes}
    way = _way_back(value.node, results.__contains__) if value.nodes else []
    found = {_name(node): node for node in way if node.target not in _SAME_ORDER}
    # Those that may be a part of the quantisation say less than others.
    telling = [name for name in found if name not in _SCALING] or list(found)
    if not telling:
        return None
    shown = [f"{_MOVES.get(name, name)} ({found[name].name})" for name in reversed(telling)]
    return Refusal(
        f"between the result of the norm or activation and its quantisation "
        f"{'stands' if len(shown) == 1 else 'stand'} {' and '.join(shown)}",
        _hint(telling),
    )


def _hint(names: Collection[str]) -> str:
    if all(name in _MOVES for name in names):
        return "Move it behind the quantisation, or before the norm or activation."
    if all(name in (*_MOVES, *_JOINS) for name in names):
        return (
            "Quantise first, each part on its own with the same scale, and put the FP8 tensors "
            "together: torch.cat, torch.stack and torch.where take them."
        )
    if all(name in _ROUNDS for name in names):
        return "Leave it out: .to(dtype) rounds to the nearest FP8 value, which is no integer."
    return (
        "No kernel makes this step. Quantise the result of the norm or activation itself if the "
        "model allows it; else there is nothing to change, and Inductor compiles the quantisation."
    )


def moved_squares(root: Term) -> Refusal | None:
    """Names what moves values between squares, their mean and its reciprocal root, if any does."""
    way = _way_back(root.node, _is_square, _AVERAGES) if root.nodes else []
    names = {_name(node): node for node in way}
    moves = [name for name in names if name in (*_MOVES, *_EXCHANGES)]
    if not moves or not names.keys() & set(_AVERAGES):
        return None
    shown = [f"{_MOVES.get(name, name)} ({names[name].name})" for name in reversed(moves)]
    return Refusal(
        f"between the squares and the reciprocal root of their mean "
        f"{'stands' if len(shown) == 1 else 'stand'} {' and '.join(shown)}",
        "Normalise x whole, x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps), and "
        "move its result, or x before, instead.",
        is_unsupported=True,
    )


def _is_square(node: fx.Node) -> bool:
    if node.target is aten.pow.Tensor_Scalar:
        return bool(node.args[1] == 2)
    return node.target is aten.mul.Tensor and node.args[0] is node.args[1]


def _way_back(
    start: fx.Node, is_end: Callable[[fx.Node], bool], through: Collection[str] = ()
) -> list[fx.Node]:
    """The operations from a value back to the nearest that ends the way, that excluded.

    Args:
        start: Where it begins.
        is_end: Whether a node ends it.
        through: Names of operations that it may pass, besides those of single elements.
    """
    ways, seen = [[start]], {start}
    for way in ways:
        node = way[-1]
        if is_end(node):
            return way[:-1]
        if len(way) > _REACH or not (_is_light(node) or _is_named(node, through)):
            continue
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                ways.append([*way, source])
    return []


def _is_light(node: fx.Node) -> bool:
    """Whether a node computes each element by itself, or only moves elements."""
    if node.target in _SAME_ORDER:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    is_listed = _name(node) in (*_MOVES, *_JOINS)
    return is_listed or torch.Tag.pointwise in node.target.tags


def _is_named(node: fx.Node, names: Collection[str]) -> bool:
    return node.op == "call_function" and _name(node) in names


def _name(node: fx.Node) -> str:
    """The operation of the model that a node is, or is a part of."""
    operation: Any = node.meta.get("original_aten") or node.target
    return str(getattr(operation, "overloadpacket", operation).__name__)
