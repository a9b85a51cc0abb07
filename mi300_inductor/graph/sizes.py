"""The nodes of a graph that hold sizes which are not known while compiling."""

from __future__ import annotations

import torch
from torch import fx

from mi300_inductor.graph.term import Dim, same_dim


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
