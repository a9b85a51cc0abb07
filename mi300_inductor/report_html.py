"""The report as one self-contained HTML page: tables, and the graphs before and after the pass.

The page needs no network: styles, the drawings and a few lines of script are in it. Without the
script the tooltips of the drawings still work.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from mi300_inductor.report import Fusion, GraphReport, Rejection, Report
from mi300_inductor.report_graph import KIND_COLOURS, short_source
from mi300_inductor.report_page import SCRIPT, STYLE
from mi300_inductor.report_svg import graph_svg
from mi300_inductor.report_text import (
    GAINS_NOTE,
    PLAN_HEADS,
    cached_text,
    counted,
    gains,
    gains_in_flops,
    graphs_text,
    group_fusions,
    group_rejections,
    plan_rows,
    refusals_text,
    sections,
)


def report_html(report: Report) -> str:
    """The page's text."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>mi300 fusion report</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{STYLE}</style></head><body><main>",
        "<h1>mi300 fusion report</h1>",
        f'<p class="note">{escape(graphs_text(report))} {escape(cached_text(report))}</p>',
        _cards(report),
        _kinds(report.counts),
        "<h2>Fused</h2>",
        _fused(report.fused),
    ]
    for title, rejected in sections(report.rejected).items():
        parts += [f"<h2>{title}</h2>", _rejected(rejected)]
    plans = plan_rows(report)
    if plans:
        cells = [[escape(cell) for cell in row] for row in plans]
        parts += ["<h2>Plans of the matmuls</h2>", _table(PLAN_HEADS, cells)]
    parts += [_graph(number, graph) for number, graph in enumerate(report.shown)]
    parts += ['</main><pre id="tip" hidden></pre>', f"<script>{SCRIPT}</script></body></html>"]
    return "\n".join(parts)


def _cards(report: Report) -> str:
    operations, launches, moved = gains(report.fused)
    cards = [
        ("fusions", str(len(report.fused))),
        ("refusals", str(sum(not item.is_note for item in report.rejected))),
        ("operations in the fused parts", _arrow(operations)),
        ("launches", _arrow(launches)),
        ("bytes moved by the fused parts", _arrow(moved)),
    ]
    items = (
        f"<div><strong>{escape(value)}</strong><span>{escape(label)}</span></div>"
        for label, value in cards
    )
    return f'<div class="cards">{"".join(items)}</div>'


def _chip(kind: str) -> str:
    colour = KIND_COLOURS.get(kind, "#eee")
    return f'<span class="chip" style="background:{colour}">{escape(kind)}</span>'


def _kinds(counts: dict[str, int]) -> str:
    chips = " ".join(f"<span>{_chip(kind)} × {n}</span>" for kind, n in counts.items())
    return f'<p class="kinds">{chips}</p>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _source(source: str) -> str:
    place, _, code = short_source(source).partition(": ")
    return f'<span class="place">{escape(place)}</span><code>{escape(code)}</code>'


def _fused(fused: Sequence[Fusion]) -> str:
    if not fused:
        return '<p class="note">Nothing was fused.</p>'
    rows = [
        [
            str(len(group)),
            _chip(group[0].kind),
            *(escape(_arrow(text)) for text in (*gains(group), gains_in_flops(group))),
            escape(", ".join(dict.fromkeys(s for f in group for s in f.spelling))),
            _source(group[0].source) + _details(group),
        ]
        for group in group_fusions(fused)
    ]
    heads = ["", "kind", "operations", "launches", "bytes", "FLOPs", "spellings", "source"]
    note = f'<p class="note">{escape(_arrow(GAINS_NOTE))}; FLOPs likewise</p>'
    return _table(heads, rows) + note


def _arrow(text: str) -> str:
    return text.replace("->", "→")


def _details(group: Sequence[Fusion]) -> str:
    items = "".join(
        f"<li><code>{escape(f.op)}</code><br>{escape(_arrow(f.saving))}"
        f"<br>{escape(_arrow(_counts(f)))}"
        f"<br>replaces {counted(len(f.nodes), 'node')}: "
        f"{escape(', '.join(f.nodes))}</li>"
        for f in group
    )
    return f"<details><summary>operators and replaced nodes</summary><ul>{items}</ul></details>"


def _counts(fusion: Fusion) -> str:
    """Bytes and FLOPs without and with the rewrite, in full."""
    return (
        f"reads {fusion.read_before} -> {fusion.read_after} bytes, "
        f"writes {fusion.written_before} -> {fusion.written_after} bytes, "
        f"computes {fusion.flops_before} -> {fusion.flops_after} FLOPs"
    )


def _rejected(rejected: Sequence[Rejection]) -> str:
    if not rejected:
        return '<p class="note">None.</p>'
    rows = [
        [
            str(len(group)),
            _chip(group[0].kind),
            escape(group[0].reason),
            escape(group[0].hint),
            _source(group[0].source) + f'<div class="note">{_node_names(group)}</div>',
        ]
        for group in group_rejections(rejected)
    ]
    return _table(["", "kind", "reason", "what to do", "source"], rows)


def _node_names(group: Sequence[Rejection]) -> str:
    names = ", ".join(item.node for item in group[:6])
    return escape(names + (f" and {len(group) - 6} more" if len(group) > 6 else ""))


def _graph(number: int, graph: GraphReport) -> str:
    state = "read back from Inductor's cache" if graph.cached else "compiled now"
    facts = [
        state,
        counted(len(graph.fused), "fusion"),
        refusals_text(graph.rejected),
        *(f"expected {item}" for item in graph.expected),
    ]
    sides = "".join(
        f'<figure><figcaption>{label}: {len(nodes)} nodes</figcaption><div class="pane" '
        f'data-graph="{number}">{graph_svg(nodes)}</div></figure>'
        for label, nodes in (("Before", graph.before), ("After", graph.after))
    )
    links = " ".join(
        f'<button data-graph="{number}" data-fusion="{i}" '
        f'style="background:{KIND_COLOURS.get(fusion.kind, "#eee")}" '
        f'title="{escape(f"{fusion.kind}: {short_source(fusion.source)}")}">{i}</button>'
        for i, fusion in enumerate(graph.fused)
    )
    go_to = f'<p class="links">Go to fusion {links}</p>' if links else ""
    return (
        f"<section><h2>Graph {escape(graph.name)}</h2>"
        f'<p class="note">{escape(", ".join(facts))}. Names above a box are graph inputs and '
        f"values from far away. Point at a node to see its call, shape and source line.</p>"
        f'{go_to}<div class="panes">{sides}</div></section>'
    )
