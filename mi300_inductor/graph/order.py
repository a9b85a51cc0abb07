"""The order of a graph's nodes after calls were put into it."""

from __future__ import annotations

from collections.abc import Mapping

import networkx
from torch import fx


def is_sorted(graph: fx.Graph) -> bool:
    """Whether each node stands behind its inputs."""
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if not seen.issuperset(node.all_input_nodes):
            return False
        seen.add(node)
    return True


def sort(graph: fx.Graph, order: Mapping[fx.Node, float]) -> None:
    """Puts each node behind its inputs; `order` decides where they leave a choice."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    dag: networkx.DiGraph[fx.Node] = networkx.DiGraph()
    dag.add_nodes_from(nodes)
    for node in nodes:
        dag.add_edges_from((operand, node) for operand in node.all_input_nodes)
    previous = None
    for node in list(networkx.lexicographical_topological_sort(dag, key=order.__getitem__)):
        if previous is not None and previous.next is not node:
            previous.append(node)
        previous = node
