"""What the pass did: fusions, refusals with their reasons, and how they are shown.

`graph/` produces `Fusion` and `Rejection` values, the pass makes a `GraphReport` of them for each
compiled graph, and `Report` adds graphs up. `report_text.py`, `report_html.py` and
`report_graph.py` render; `contract.py` checks.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mi300_inductor.gemm_classes import GemmClass, TunedGemm
from mi300_inductor.options import KINDS, Expectation

# Reports kept in this process; a server that compiles without end must not grow without end.
HISTORY = 256


@dataclass(frozen=True)
class Fusion:
    """One region of the graph that was replaced by one operator.

    Attributes:
        kind: One of the public kinds, for example `add_rms_norm_quant`.
        nodes: Names of the replaced nodes, in graph order.
        source: `file:line: code` of the model's line, or an empty string when torch has none.
        inputs: Names of the operator's tensor inputs.
        outputs: Names of the nodes whose values the operator now produces.
        op: Name of the operator with its parameters, readable.
        spelling: Names of the spellings that matched.
        bytes_before: Bytes read and written by what Inductor would have run. As all numbers below
            an int, or an expression in the graph's symbols as text.
        bytes_after: The same for the operator.
        launches_before: Kernels that Inductor would have launched.
        launches_after: Kernels the operator launches.
        saving: The difference in words; on a GPU with the modelled times of both there.
        read_before: The part of `bytes_before` that is read, what is read again included.
        read_after: The same for the operator.
        written_before: The part of `bytes_before` that is written.
        written_after: The same for the operator.
        flops_before: Floating point operations of what Inductor would have run.
        flops_after: The same for the operator.
    """

    kind: str
    nodes: tuple[str, ...]
    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    op: str
    spelling: tuple[str, ...]
    bytes_before: int | str
    bytes_after: int | str
    launches_before: int
    launches_after: int
    saving: str = ""
    read_before: int | str = 0
    read_after: int | str = 0
    written_before: int | str = 0
    written_after: int | str = 0
    flops_before: int | str = 0
    flops_after: int | str = 0


@dataclass(frozen=True)
class Rejection:
    """A place that looked like a candidate and was not fused.

    Attributes:
        kind: The kind it would have become, which `strict` counts; `pass` for an error of the pass
            itself, which it counts too. Three are notes, which it does not count: `quant`, a
            quantisation that has no norm or activation before it; `unsupported`, another operation
            that resembles one of the kinds; and `competition`, a fusion that was made without a
            part that another fusion has taken, or not at all.
        node: Name of the node where it was recognised (the anchor).
        reason: The first condition that failed, with the values found.
        source: `file:line: code` of the model's line, or an empty string.
        hint: What to change in the model to get the fusion.
    """

    kind: str
    node: str
    reason: str
    source: str
    hint: str

    @property
    def is_note(self) -> bool:
        """Whether it only explains, so that `strict` does not count it."""
        return self.kind != "pass" and self.kind not in KINDS


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph, as it is drawn.

    Attributes:
        name: Its name in the graph.
        op: FX's word: `placeholder`, `get_attr`, `call_function`, `output`.
        target: What is called, for example `aten.mul.Tensor`.
        args: The arguments as text.
        value: Dtype and shape of its value, for example `bf16[2, 64]`.
        source: `file:line: code` of the model's line, or an empty string.
        inputs: Names of the nodes it reads, without repetition.
        fusions: Indices in `GraphReport.fused` of the fusions it belongs to: none, one, or several
            where matmuls became one call.
        kind: Kind of the first, or an empty string.
    """

    name: str
    op: str
    target: str
    args: str
    value: str
    source: str
    inputs: tuple[str, ...]
    fusions: tuple[int, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class GraphReport:
    """What the pass did to one compiled graph.

    Attributes:
        name: Dynamo's name of the compilation and the phase, for example `0/1 inference`.
        phase: `inference`, `forward` or `backward`.
        fused: The fusions, in graph order.
        rejected: The refusals, in graph order.
        before: The graph the pass was given.
        after: The graph it left.
        expected: The contracts this graph was held to.
        disabled: The kinds that were left to Inductor.
        cached: Whether Inductor's cache had the compiled graph, so that the report was read back.
        tuned: The matmuls' plans, where they were to be measured.
    """

    name: str
    phase: str
    fused: tuple[Fusion, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    before: tuple[GraphNode, ...] = ()
    after: tuple[GraphNode, ...] = ()
    expected: tuple[Expectation, ...] = ()
    disabled: tuple[str, ...] = ()
    cached: bool = False
    tuned: tuple[TunedGemm, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Number of fusions per kind; only kinds that occur."""
        return dict(Counter(fusion.kind for fusion in self.fused))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GraphReport:
        """The inverse of `dataclasses.asdict`, after a trip through JSON."""
        tuples = {
            "fused": tuple(_from_dict(Fusion, item) for item in data["fused"]),
            "rejected": tuple(_from_dict(Rejection, item) for item in data["rejected"]),
            "before": tuple(_from_dict(GraphNode, item) for item in data["before"]),
            "after": tuple(_from_dict(GraphNode, item) for item in data["after"]),
            "expected": tuple(_from_dict(Expectation, item) for item in data["expected"]),
            "disabled": tuple(data["disabled"]),
            "tuned": tuple(
                TunedGemm(**{**item, "matmul": _from_dict(GemmClass, item["matmul"])})
                for item in data["tuned"]
            ),
        }
        return cls(**{**data, **tuples})


def _from_dict(cls: type, item: dict[str, Any]) -> Any:
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in item.items()})


@dataclass(frozen=True)
class Report:
    """Fusions and refusals of one or several compiled graphs. `str()` gives the tables.

    Attributes:
        fused: The fusions.
        rejected: The refusals.
        graphs: The graphs' own reports, oldest first. From `explain`, `fused` and `rejected` are
            sums over them; from `last_report`, they are those of the newest.
        is_sum: Which of the two it is.
    """

    fused: tuple[Fusion, ...]
    rejected: tuple[Rejection, ...]
    graphs: tuple[GraphReport, ...]
    is_sum: bool = True

    @classmethod
    def of(cls, graphs: tuple[GraphReport, ...]) -> Report:
        """The sum of some graphs' reports."""
        fused = tuple(fusion for graph in graphs for fusion in graph.fused)
        rejected = tuple(rejection for graph in graphs for rejection in graph.rejected)
        return cls(fused, rejected, graphs)

    @property
    def shown(self) -> tuple[GraphReport, ...]:
        """The graphs that `fused` and `rejected` belong to."""
        return self.graphs if self.is_sum else self.graphs[-1:]

    @property
    def counts(self) -> dict[str, int]:
        """Number of fusions per kind; only kinds that occur."""
        return dict(Counter(fusion.kind for fusion in self.fused))

    def to_dict(self) -> dict[str, Any]:
        """The report as dicts, lists, strings and numbers."""
        data = asdict(self)
        for item, graph in zip(data["graphs"], self.graphs, strict=True):
            item["counts"] = graph.counts
        return {"counts": self.counts, **data}

    def to_json(self) -> str:
        """The report as JSON text: counts, fused, rejected, graphs with their nodes."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        """The tables as text."""
        from mi300_inductor.report_text import report_text

        return report_text(self)

    def save(self, directory: str | Path) -> Path:
        """Writes the report as files and returns the directory.

        report.json, report.txt and report.html (one page that needs nothing else); and for the
        graphs before and after the pass: .txt to read, .dot for Graphviz, .graphml for networkx,
        yEd and others, each with all graphs (from `last_report`, the newest). Files of the same
        names are replaced. Under torch.distributed each rank writes into its own `rank_N` below
        the directory.

        Raises:
            OSError: if the directory cannot be made or written.
        """
        from mi300_inductor.report_files import save_report

        return save_report(self, Path(directory))


_history: deque[GraphReport] = deque(maxlen=HISTORY)
_listeners: list[list[GraphReport]] = []
_lock = threading.Lock()


def record(graph: GraphReport) -> None:
    """Adds a graph's report to the process's history."""
    with _lock:
        _history.append(graph)
        for listener in _listeners:
            listener.append(graph)


@contextmanager
def listen() -> Iterator[list[GraphReport]]:
    """Collects the reports of the graphs that are compiled while the context is open."""
    listener: list[GraphReport] = []
    with _lock:
        _listeners.append(listener)
    try:
        yield listener
    finally:
        with _lock:
            _listeners[:] = [other for other in _listeners if other is not listener]


def last_report() -> Report:
    """Returns the newest graph's report in this process; its `graphs` lists all (the last 256).

    Raises:
        RuntimeError: if nothing has been compiled yet.
    """
    with _lock:
        graphs = tuple(_history)
    if not graphs:
        raise RuntimeError(
            "last_report: no graph went through the pass; got none in this process, expected at "
            'least one. Call a model compiled with torch.compile(model, backend="mi300") first; '
            "with a FusionPass set by hand nothing is reported when Inductor's cache has the graph."
        )
    return Report(graphs[-1].fused, graphs[-1].rejected, graphs, is_sum=False)
