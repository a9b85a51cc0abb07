"""What stands between parts of a fusion that follow one another in a kernel, in words.

The kernels quantise the result of a norm or an activation as it is, and take the root of the mean
of squares as it is. Another operation on the way keeps the two apart, and this finds it, so that
the report can name it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.forms import argument
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.step_hints import LIMITS, hint_for_joins, hint_for_moves
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
_AVERAGES = ("mean", "sum", "nansum", *_EXCHANGES)
# What may stand between the mean of squares and its root, or makes the mean.
_AROUND_MEAN = ("mean", "sum", "add", "sqrt", *_SCALING)
# The operations of a model of which a variance is a part, if it is one of a LayerNorm.
_VARIANCES = ("native_layer_norm", "var", "var_mean", "std", "std_mean")


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
    steps = [node for node in way[:-1] if node.target not in _SAME_ORDER]
    found = _by_name(steps)
    # Those that may be a part of the quantisation say less than others.
    telling = {name: node for name, node in found.items() if name not in _SCALING} or found
    if not telling:
        return None
    return Refusal(
        "between the result of the norm or activation and its quantisation " + _stands(telling),
        _hint(telling, steps, lambda node: bool(_way_back(node, results.__contains__))),
    )


def _by_name(way: Iterable[fx.Node]) -> dict[str, fx.Node]:
    """The operations of a way back, each once, by name."""
    return {_name(node): node for node in way}


def _stands(operations: Mapping[str, fx.Node]) -> str:
    """`stands a slice (slice_1)`: the operations of a way back in the order of the graph."""
    shown = [f"{_MOVES.get(name, name)} ({node.name})" for name, node in operations.items()]
    return f"{'stands' if len(shown) == 1 else 'stand'} {' and '.join(reversed(shown))}"


def _hint(
    names: Collection[str], steps: Sequence[fx.Node], follows: Callable[[fx.Node], bool]
) -> str:
    if all(name in _MOVES for name in names):
        return hint_for_moves(node for node in steps if _name(node) in _MOVES)
    if all(name in (*_MOVES, *_JOINS, *LIMITS) for name in names):
        return hint_for_joins([node for node in steps if _name(node) not in _MOVES], follows)
    if all(name in _ROUNDS for name in names):
        return "Leave it out: .to(dtype) rounds to the nearest FP8 value, which is no integer."
    return (
        "No kernel makes this step. Quantise the result of the norm or activation itself if the "
        "model allows it; else there is nothing to change, and Inductor compiles the quantisation."
    )


def stands_before_root(value: Term) -> Refusal | None:
    """Names what is between squares and the root of their mean, which keeps the two apart.

    A variance is the mean of squares as well, of what is left without the mean.

    Args:
        value: What is under the root.

    Returns:
        None if no squares are near, or nothing but their mean and eps stands between.
    """
    while not value.nodes and value.args:  # an eps of zero that only the canonical form has
        value = value.args[0]
    way = _way_back(value.node, _squares_or_varies, _AVERAGES) if value.nodes else []
    if way and not _is_square(way[-1]):
        name = _name(way[-1])
        why = f"the root is of a variance, {name} ({way[-1].name})"
        return layer_norm(why) if name in _VARIANCES else None
    steps = way[:-1]
    averages = [index for index, node in enumerate(steps) if _name(node) in _AVERAGES]
    telling = _by_name(
        node
        for index, node in enumerate(steps)
        if node.target not in _SAME_ORDER
        and averages
        and (index > averages[-1] or _name(node) not in _AROUND_MEAN)
    )
    if not telling:
        return None
    return Refusal(
        f"between the squares and the reciprocal root of their mean {_stands(telling)}",
        "Normalise x whole, x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps), and "
        "move its result, or x before, instead."
        if all(name in (*_MOVES, *_EXCHANGES) for name in telling)
        else "An RMSNorm averages all squares of a row alike: if that is meant, write "
        "x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps). A mean over a part of "
        "them, or a weighted one, is not a kind of this backend; Inductor compiles it.",
        is_unsupported=True,
    )


def layer_norm(why: str) -> Refusal:
    """The note about a norm that takes the mean away, which `why` says."""
    return Refusal(
        f"{why}, so this is a LayerNorm, not an RMSNorm",
        "A LayerNorm is not a kind of this backend; Inductor compiles it. If an RMSNorm is meant, "
        "use torch.nn.RMSNorm.",
        is_unsupported=True,
    )


def _squares_or_varies(node: fx.Node) -> bool:
    return _is_square(node) or _is_variance(node)


def _is_square(node: fx.Node) -> bool:
    if node.target is aten.pow.Tensor_Scalar:
        return bool(node.args[1] == 2)
    return node.target is aten.mul.Tensor and node.args[0] is node.args[1]


def _is_variance(node: fx.Node) -> bool:
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


def _way_back(
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
