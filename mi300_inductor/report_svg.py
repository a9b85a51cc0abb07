"""A laid out graph as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mi300_inductor.report import GraphNode
from mi300_inductor.report_graph import KIND_COLOURS, short_source
from mi300_inductor.report_layout import ROW, Box, lay_out, short_target

HEIGHT = 32.0
MARGIN = 20.0


def graph_svg(nodes: Sequence[GraphNode]) -> str:
    """The drawing of a graph; its classes are styled by the page of `report_html.py`."""
    layout = lay_out(nodes)
    height = layout.rows * ROW + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {layout.width:.0f} {height:.0f}">'
    ]
    parts += [f'<path class="edge" d="{_curve(points)}"/>' for points in layout.edges]
    parts += [_box(box) for box in layout.boxes.values()]
    return "\n".join([*parts, "</svg>"])


def _top(rank: float) -> float:
    return MARGIN + rank * ROW


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """From the bottom of the first node to the top of the last, vertical at each rank."""
    (x, rank), *others = points
    y = _top(rank) + HEIGHT
    text = f"M{x:.0f} {y:.0f}"
    for i, (next_x, next_rank) in enumerate(others):
        top = _top(next_rank)
        middle = (y + top) / 2
        text += f"C{x:.0f} {middle:.0f} {next_x:.0f} {middle:.0f} {next_x:.0f} {top:.0f}"
        x, y = next_x, top
        if i + 1 < len(others):
            y += HEIGHT
            text += f"V{y:.0f}"
    return text


def _box(box: Box) -> str:
    node = box.node
    left, top = box.x - box.width / 2, _top(box.rank)
    colour = KIND_COLOURS.get(node.kind)
    fill = f' style="fill:{colour}"' if colour else ""
    fused = f' data-fusions="{" ".join(map(str, node.fusions))}"' if node.fusions else ""
    lines = [
        f'<g class="node{" fused" if colour else ""}"{fused}>',
        f"<title>{escape(_tip(node))}</title>",
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{box.width:.0f}" height="{HEIGHT:.0f}" '
        f'rx="5"{fill}/>',
        f'<text class="op" x="{box.x:.0f}" y="{top + 13:.0f}">{escape(short_target(node))}</text>',
        f'<text x="{box.x:.0f}" y="{top + 26:.0f}">{escape(node.value)}</text>',
    ]
    if box.tags:
        names = ", ".join(box.tags[:2]) + (" ..." if len(box.tags) > 2 else "")
        lines.append(
            f'<text class="tag" x="{left + 2:.0f}" y="{top - 3:.0f}">{escape(names)}</text>'
        )
    return "".join([*lines, "</g>"])


def _tip(node: GraphNode) -> str:
    call = f"{node.name} = {node.target}({node.args})"
    numbers = " and ".join(map(str, node.fusions))
    fusions = f"{node.kind}, fusion {numbers}" if numbers else node.kind
    parts = [call, node.value, fusions, short_source(node.source)]
    return "\n".join(part for part in parts if part)
