"""What to do about an operation between a norm or an activation and its quantisation.

Most of them commute with the quantisation: what moves values, puts tensors together or chooses
between them takes FP8 tensors as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.forms import argument
from mi300_inductor.graph.term import same_dim

aten = torch.ops.aten

_COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")
_BOUNDS = ("fmin", "fmax", "copysign", "nan_to_num")
# They may be a part of what keeps values in a range.
LIMITS = (*_BOUNDS, *_COMPARISONS, "isnan", "isinf", "isfinite", "abs", "sign")
# Where the arguments name the dimensions along which values move.
_DIMS: dict[Any, tuple[int, str]] = {
    aten.slice.Tensor: (1, "dim"),
    aten.select.int: (1, "dim"),
    aten.unbind.int: (1, "dim"),
    aten.index_select.default: (1, "dim"),
    aten.split.Tensor: (2, "dim"),
    aten.split_with_sizes.default: (2, "dim"),
    aten.flip.default: (1, "dims"),
    aten.roll.default: (2, "dims"),
}
_ROWS = (
    "Quantise first and move the FP8 tensor instead, with the scales of its rows where each has "
    "one; or move the input of the norm or activation."
)
_PARTS = (
    "Quantise first and move the FP8 tensor instead: quant(y, scale).t() or quant(y, scale)[..., "
    ":n]. A scale that is computed for a row is then that of the whole row."
)
_JOIN = (
    "Quantise first, each part on its own with the same scale, and put the FP8 tensors together: "
    "torch.cat, torch.stack and F.pad take them, torch.where and writes into a part their "
    ".view(torch.uint8)."
)
_CLAMP = (
    "If it keeps values in the range of the format, write it as a clamp, (y / scale).clamp(-448, "
    "448), which fuses and leaves NaN as it is."
)


def hint_for_moves(moves: Iterable[fx.Node]) -> str:
    """The hint where values are only moved, by operations on one tensor."""
    return _ROWS if all(map(_keeps_rows, moves)) else _PARTS


def hint_for_joins(steps: Sequence[fx.Node], follows: Callable[[fx.Node], bool]) -> str:
    """The hint where tensors are put together, or values chosen.

    Args:
        steps: The operations.
        follows: Whether a value is computed from the result of the norm or activation: what is
            compared with a number may be bounded by it.
    """
    bounds = [node for node in steps if _packet(node) in _BOUNDS or _name_of_model(node) in _BOUNDS]
    chosen = [node for node in steps if _is_choice(node, follows)]
    if not bounds and not chosen:
        return _JOIN
    is_all = all(node in bounds or _packet(node) in LIMITS for node in steps)
    return _CLAMP if is_all else f"{_CLAMP} Else: {_JOIN}"


def _is_choice(node: fx.Node, follows: Callable[[fx.Node], bool]) -> bool:
    """Whether a value is put where the result of a norm is beyond a number."""
    compared = [source for source in node.all_input_nodes if _packet(source) in _COMPARISONS]
    return any(_is_number(source.args[1]) and follows(source) for source in compared)


def _is_number(argument: Any) -> bool:
    if isinstance(argument, fx.Node):
        return argument.target is aten.full.default and argument.meta["val"].dim() == 0
    return isinstance(argument, (int, float))


def _keeps_rows(move: fx.Node) -> bool:
    """Whether an operation that moves values keeps each row whole, in its order."""
    source: Any = move.args[0]
    shape = source.meta["val"].shape
    last = len(shape) - 1
    index, name = _DIMS.get(move.target, (1, "dims"))
    how = argument(move, index, name, 0)
    if move.target is aten.permute.default:
        return bool(how[last] % len(shape) == last)
    if move.target is aten.index.Tensor:
        return len(how) <= last or how[last] is None
    if move.target not in _DIMS:
        return same_dim(move.meta["val"].shape[-1], shape[-1])
    dims = how if isinstance(how, (list, tuple)) else [how]
    return all(dim % len(shape) != last for dim in dims)


def _packet(node: fx.Node) -> str:
    return str(getattr(getattr(node.target, "overloadpacket", None), "__name__", ""))


def _name_of_model(node: fx.Node) -> str:
    operation = node.meta.get("original_aten")
    return str(getattr(getattr(operation, "overloadpacket", None), "__name__", ""))
