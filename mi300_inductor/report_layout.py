"""Where the nodes of a graph are drawn: layers from top to bottom, as in Sugiyama's method.

Ranks are longest paths; long edges run through one dummy per rank; the order inside a rank comes
from barycentre sweeps, the x positions from the mean of the neighbours with the overlaps resolved.
Two things keep a model of many layers readable. Graph inputs are no boxes: each reader of one shows
its name. Neither are edges drawn that span very many ranks or fan out to many readers (a rotary
table, a mask): the reader shows the value's name instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import networkx as nx

from mi300_inductor.report import GraphNode

ROW = 56.0
GAP = 14.0
DUMMY_WIDTH = 4.0
CHARACTER = 6.4
MAX_SPAN = 60
MANY_READERS = 6
MANY_SPAN = 4
SWEEPS = 6


@dataclass
class Box:
    """A placed node: centre `x`, row `rank`, `width`, and the values it names instead of edges."""

    node: GraphNode
    width: float
    rank: int = 0
    x: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Layout:
    """Placed nodes by name, edges as lists of (x, rank) points, and the size in pixels."""

    boxes: dict[str, Box]
    edges: list[list[tuple[float, float]]]
    width: float
    rows: int


def lay_out(nodes: Sequence[GraphNode]) -> Layout:
    """Places the nodes of a graph."""
    # What neither reads a box nor is read (a dead view of a weight) would only take room.
    read = {name for node in nodes for name in node.inputs}
    inner = {n.name for n in nodes if n.op not in ("placeholder", "get_attr")}
    boxes = {
        n.name: Box(n, _width(n))
        for n in nodes
        if n.name in inner and (n.name in read or any(i in inner for i in n.inputs))
    }
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(boxes)
    graph.add_edges_from((i, n.name) for n in nodes for i in n.inputs if i in boxes)
    for box in boxes.values():
        box.tags = [name for name in box.node.inputs if name not in boxes]
    # Cutting an edge lets its reader move down, which makes other edges longer: hence twice.
    for _ in range(2):
        ranks = _rank(graph)
        _cut_long_edges(graph, ranks, boxes)
    ranks = _rank(graph)
    for name, box in boxes.items():
        box.rank = ranks[name]
    widths = {name: box.width for name, box in boxes.items()}
    paths = _add_dummies(graph, ranks, widths)
    rows = _order(graph, ranks)
    xs = _place(graph, rows, widths)
    for name, box in boxes.items():
        box.x = xs[name]
    edges = [[(xs[name], float(ranks[name])) for name in path] for path in paths]
    right = max((xs[n] + widths[n] / 2 for n in xs), default=0.0)
    return Layout(boxes, edges, right + GAP, len(rows))


def short_target(node: GraphNode) -> str:
    """The word that is shown in a node's box."""
    parts = node.target.split(".")
    return parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "mi300") else node.target


def _width(node: GraphNode) -> float:
    return max(44.0, CHARACTER * max(len(short_target(node)), len(node.value)) + 14)


def _rank(graph: nx.DiGraph[str]) -> dict[str, int]:
    order = list(nx.topological_sort(graph))
    ranks: dict[str, int] = {}
    for name in order:
        ranks[name] = max((ranks[i] + 1 for i in graph.predecessors(name)), default=0)
    # What is needed late stands just above its first reader, if that makes no more long edges.
    for name in reversed(order):
        readers = [ranks[r] for r in graph.successors(name)]
        if readers and graph.in_degree(name) <= len(readers):
            ranks[name] = min(readers) - 1
    top = min(ranks.values(), default=0)
    return {name: rank - top for name, rank in ranks.items()}


def _cut_long_edges(graph: nx.DiGraph[str], ranks: dict[str, int], boxes: dict[str, Box]) -> None:
    crowded = {name for name in graph if graph.out_degree(name) > MANY_READERS}
    for source, reader in list(graph.edges):
        span = ranks[reader] - ranks[source]
        if span > MAX_SPAN or (source in crowded and span > MANY_SPAN):
            graph.remove_edge(source, reader)
            boxes[reader].tags.append(source)


def _add_dummies(
    graph: nx.DiGraph[str], ranks: dict[str, int], widths: dict[str, float]
) -> list[list[str]]:
    """Splits edges over several ranks; returns the nodes along each edge."""
    paths = []
    for number, (source, target) in enumerate(list(graph.edges)):
        path = [source]
        for rank in range(ranks[source] + 1, ranks[target]):
            dummy = f"{number}:{rank}"
            ranks[dummy], widths[dummy] = rank, DUMMY_WIDTH
            path.append(dummy)
        path.append(target)
        paths.append(path)
        if len(path) > 2:
            graph.remove_edge(source, target)
            nx.add_path(graph, path)
    return paths


def _order(graph: nx.DiGraph[str], ranks: dict[str, int]) -> list[list[str]]:
    """The nodes of each rank from left to right."""
    rows: list[list[str]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for name in nx.dfs_preorder_nodes(nx.Graph(graph)) if graph else ():
        rows[ranks[name]].append(name)
    for sweep in range(SWEEPS):
        neighbours = graph.pred if sweep % 2 == 0 else graph.succ
        position = {name: i for row in rows for i, name in enumerate(row)}
        for row in rows if sweep % 2 == 0 else reversed(rows):
            centre = {n: _mean([position[m] for m in neighbours[n]], position[n]) for n in row}
            row.sort(key=centre.__getitem__)
            position.update((name, i) for i, name in enumerate(row))
    return rows


def _place(
    graph: nx.DiGraph[str], rows: Sequence[Sequence[str]], widths: dict[str, float]
) -> dict[str, float]:
    xs: dict[str, float] = {}
    for row in rows:
        xs.update(zip(row, _separate(row, [0.0] * len(row), widths), strict=True))
    for sweep in range(2 * SWEEPS):
        neighbours = graph.pred if sweep % 2 == 0 else graph.succ
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_mean([xs[m] for m in neighbours[name]], xs[name]) for name in row]
            xs.update(zip(row, _separate(row, wanted, widths), strict=True))
    left = min((xs[name] - widths[name] / 2 for name in xs), default=0.0)
    return {name: x - left + GAP for name, x in xs.items()}


def _separate(row: Sequence[str], wanted: Sequence[float], widths: dict[str, float]) -> list[float]:
    """Positions in the given order without overlap, nearest to the wanted ones in the mean square.

    Shifted by the room that the nodes to the left need, "no overlap" means "not decreasing", so
    neighbours that are out of order are merged into blocks that share their mean.
    """
    offsets = []
    offset = 0.0
    for i, name in enumerate(row):
        if i:
            offset += (widths[row[i - 1]] + widths[name]) / 2 + GAP
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for x, shift in zip(wanted, offsets, strict=True):
        total, count = x - shift, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            last = blocks.pop()
            total, count = total + last[0], count + last[1]
        blocks.append((total, count))
    shifted = [total / count for total, count in blocks for _ in range(count)]
    return [x + shift for x, shift in zip(shifted, offsets, strict=True)]


def _mean(values: Iterable[float], default: float) -> float:
    found = list(values)
    return sum(found) / len(found) if found else default
