"""The nodes of a graph that hold sizes which are not known while compiling, and powers of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.term import Dim, same_dim

aten = torch.ops.aten


def size_node(graph: fx.Graph, dim: Dim) -> fx.Node | None:
    """A node that holds a size: an input, or what is computed from inputs' sizes alone.

    Its place does not matter to the rewriter, because it depends on nothing that is replaced.
    """
    nodes: list[fx.Node] = [*graph.find_nodes(op="placeholder"), *graph.nodes]
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and same_dim(value, dim) and _is_of_inputs(node):
            return node
    return None


def _is_of_inputs(node: fx.Node) -> bool:
    """Whether a size is an input's, or is computed from such sizes."""
    if node.op == "placeholder":
        return True
    is_size = isinstance(node.meta.get("val"), torch.SymInt)
    return is_size and all(map(_is_of_inputs, node.all_input_nodes))


def is_power_of_size(value: float | fx.Node, dim: Dim, exponent: float) -> bool:
    """Whether an argument is a power of a size: as a number, or as torch computes it in fp64."""
    if not isinstance(value, fx.Node):
        return isinstance(dim, int) and math.isclose(value, dim**exponent, rel_tol=1e-7)
    node = _unconverted(value)
    if node.target is aten.sqrt.default:
        return exponent == 0.5 and _holds(node.args[0], dim)
    if node.target is not aten.pow.Tensor_Tensor:
        return False
    power = _unconverted(node.args[1])  # type: ignore[arg-type]
    is_exponent = power.target is aten.full.default and power.args[1] == exponent
    return bool(is_exponent) and _holds(node.args[0], dim)


def _holds(tensor: Any, dim: Dim) -> bool:
    """Whether a tensor without dimensions is a size of the graph."""
    node = _unconverted(tensor)
    if node.target is not aten.scalar_tensor.default or not isinstance(node.args[0], fx.Node):
        return False
    size = node.args[0].meta.get("val")
    return isinstance(size, torch.SymInt) and same_dim(size, dim)


def _unconverted(node: fx.Node) -> fx.Node:
    """The node behind conversions to fp32 and fp64."""
    while node.target is torch.ops.prims.convert_element_type.default:
        if node.args[1] not in (torch.float32, torch.float64):
            break
        node = node.all_input_nodes[0]
    return node
