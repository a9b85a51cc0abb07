"""A report as files: JSON, text, HTML, and the graphs as text, DOT and GraphML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    """Creates a directory named after a graph (and rank) that nothing has used before.

    Raises:
        OSError: if it cannot be made.
    """
    rank = _rank()
    base = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
    base = base if rank is None else f"rank_{rank}_{base}"
    number = 1
    with _errors_in_words(parent):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            directory = parent / (base if number == 1 else f"{base}_{number}")
            try:
                directory.mkdir()
                return directory
            except FileExistsError:
                number += 1


def write_files(report: Report, directory: Path) -> Path:
    """Writes every file of a report into a directory and returns it.

    Raises:
        OSError: if that cannot be done.
    """
    with _errors_in_words(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in _texts(report).items():
            (directory / name).write_text(text, encoding="utf-8")
    return directory


@contextmanager
def _errors_in_words(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = NotADirectoryError if isinstance(error, FileExistsError) else type(error)
        raise kind(
            f"report: the directory {directory} cannot be written; got {error.strerror or error} "
            f"for {error.filename or directory}, expected a directory of yours or a free name. "
            "Choose another one."
        ) from error


def _texts(report: Report) -> dict[str, str]:
    """The contents of every file by its name."""
    texts = {
        "report.json": report.to_json(),
        "report.txt": f"{report}\n",
        "report.html": report_html(report),
    }
    sides: dict[str, Callable[[GraphReport], Sequence[GraphNode]]] = {
        "before": lambda graph: graph.before,
        "after": lambda graph: graph.after,
    }
    for side, nodes_of in sides.items():
        graphs: Graphs = [(graph.name, nodes_of(graph)) for graph in report.shown]
        texts[f"{side}.txt"] = "\n".join(f"## {n}\n{graph_text(nodes)}" for n, nodes in graphs)
        texts[f"{side}.dot"] = graph_dot(graphs)
        texts[f"{side}.graphml"] = graph_graphml(graphs)
    return texts
