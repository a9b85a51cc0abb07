"""Matmuls that read the same rows, q, k and v or gate and up, become one call with one launch.

A matmul with few rows takes as long as a launch, or as its weights; several in one launch take as
long as one launch, or as all their weights.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor.op_schemas import MAX_MERGED, overload

_VIEWS = (
    torch.ops.aten.reshape.default,
    torch.ops.aten.view.default,
    torch.ops.aten.select.int,
    torch.ops.aten.permute.default,
    operator.getitem,
)


def siblings(graph: fx.Graph) -> list[list[fx.Node]]:
    """Groups of two or more `skinny_gemm` calls that one call can compute, in graph order.

    The rows come from one operation: one tensor, or several results of it (a norm quantised with
    several scales). Everything else must be an input of the graph that nothing writes to, so that
    the calls can be moved together.
    """
    groups: dict[Hashable, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=overload("skinny_gemm")):
        key = _key(node)
        if key is not None:
            groups.setdefault(key, []).append(node)
    return [
        calls[start : start + MAX_MERGED]
        for calls in groups.values()
        for start in range(0, len(calls), MAX_MERGED)
        if len(calls) - start > 1
    ]


def _key(call: fx.Node) -> Hashable | None:
    """Equal for calls that can be merged; None for one that cannot."""
    a, weight, scale_a, scale_b, bias, addend, out_dtype = call.args
    rows = [value for value in (a, scale_a) if value is not None]
    source = _source(rows[0])
    constants = [value for value in (weight, scale_b, bias) if value is not None]
    constants += [value for value in rows[1:] if _source(value) is not source]
    if addend is not None or not all(_is_constant(value) for value in constants):
        return None
    return (
        source,
        *((_value(value).dtype, str(tuple(_value(value).shape))) for value in rows),
        _value(weight).dtype,
        scale_b is not None and _value(scale_b).numel() == 1,
        None if bias is None else _value(bias).dtype,
        out_dtype,
    )


def _source(node: Any) -> fx.Node:
    """The operation that a tensor is a view or one of the results of."""
    while node.target in _VIEWS:
        node = node.args[0]
    assert isinstance(node, fx.Node)
    return node


def _is_constant(node: Any) -> bool:
    """Whether a tensor is, or is a view of, an input that nothing in the graph writes to."""
    source = _source(node)
    if source.target is torch.ops.aten.full.default:
        return True
    return source.op in ("placeholder", "get_attr") and not any(map(_writes, source.users))


def _writes(node: fx.Node) -> bool:
    target = node.target
    return not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable


def _value(node: Any) -> Tensor:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value
