"""Multiplies and divides halves by a wider tensor without dimensions as eager does on a CPU.

There `y * s` and `y / s`, y in bf16 or fp16 and s in fp32 or fp64 with no dimensions, take s in
fp32. Inductor with `emulate_precision_casts` rounds s to the dtype of y first, as eager does in
`s * y`, `s / y` and all other operations. So these two are spelled out in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor

_CONVERT = torch.ops.prims.convert_element_type.default
_SCALED = (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor)
_HALVES = (torch.bfloat16, torch.float16)
_WIDE = (torch.float32, torch.float64)


def widen_scalars(graph: fx.Graph) -> None:
    """Rewrites such nodes of a post-grad graph in place; they keep their names."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _SCALED and _takes_wide_scalar(node):
            _widen(node)


def _takes_wide_scalar(node: fx.Node) -> bool:
    if len(node.args) != 2 or node.kwargs:
        return False
    value, scalar = (
        part.meta.get("val") if isinstance(part, fx.Node) else None for part in node.args
    )
    if not isinstance(value, FakeTensor) or not isinstance(scalar, FakeTensor):
        return False
    is_on_cpu = value.device.type == "cpu" and scalar.device.type == "cpu"
    is_half = value.dtype in _HALVES and value.dim() > 0
    return is_on_cpu and is_half and scalar.dtype in _WIDE and scalar.dim() == 0


def _widen(node: fx.Node) -> None:
    graph, dtype, whence = node.graph, node.meta["val"].dtype, dict(node.meta)
    parts: list[Any] = list(node.args)
    with graph.inserting_before(node):
        wide = [graph.call_function(_CONVERT, (part, torch.float32)) for part in parts]
        result = graph.call_function(node.target, tuple(wide))  # type: ignore[arg-type]
    for new, like in zip([*wide, result], [*parts, parts[0]], strict=True):
        new.meta = {**whence, "val": like.meta["val"].to(torch.float32)}
    node.target, node.args = _CONVERT, (result, dtype)
