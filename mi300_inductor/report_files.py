"""A report as files: JSON, text, HTML, and the graphs as text, DOT and GraphML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from mi300_inductor.report import GraphNode, GraphReport, Report
from mi300_inductor.report_graph import graph_dot, graph_graphml, graph_text
from mi300_inductor.report_html import report_html

Graphs = Sequence[tuple[str, Sequence[GraphNode]]]


def save_report(report: Report, directory: Path) -> Path:
    """Writes every file of a report and returns the directory they are in.

    Under torch.distributed that is `rank_N` below `directory`.
    """
    rank = _rank()
    if rank is not None:
        directory = directory / f"rank_{rank}"
    return write_files(report, directory)


def _rank() -> int | None:
    """This process's rank under torch.distributed, None outside of it."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    return torch.distributed.get_rank()


def new_directory(parent: Path, name: str) -> Path:
    """Creates a directory named after a graph (and rank) that nothing has used before."""
    rank = _rank()
    base = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    base = base if rank is None else f"rank_{rank}_{base}"
    number = 1
    while True:
        directory = parent / (base if number == 1 else f"{base}_{number}")
        try:
            directory.mkdir(parents=True)
            return directory
        except FileExistsError:
            number += 1


def write_files(report: Report, directory: Path) -> Path:
    """Writes every file of a report into a directory and returns it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise NotADirectoryError(
            f"report: cannot make the directory; got {directory}, where a file is in the way, "
            "expected a directory or a free name. Choose another name."
        ) from error
    (directory / "report.json").write_text(report.to_json())
    (directory / "report.txt").write_text(f"{report}\n")
    (directory / "report.html").write_text(report_html(report))
    sides: dict[str, Callable[[GraphReport], Sequence[GraphNode]]] = {
        "before": lambda graph: graph.before,
        "after": lambda graph: graph.after,
    }
    for side, nodes_of in sides.items():
        graphs: Graphs = [(graph.name, nodes_of(graph)) for graph in report.shown]
        (directory / f"{side}.txt").write_text(
            "\n".join(f"## {name}\n{graph_text(nodes)}" for name, nodes in graphs)
        )
        (directory / f"{side}.dot").write_text(graph_dot(graphs))
        (directory / f"{side}.graphml").write_text(graph_graphml(graphs))
    return directory
