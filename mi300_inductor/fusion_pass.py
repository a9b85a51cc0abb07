"""The two custom passes that Inductor runs for us, and what carries their reports out.

`FusionPass` is Inductor's post-grad hook: it hands the graph to `graph.run` and makes a report.
`RoundingMarks` is the joint-graph hook: it marks roundings that later passes of torch may drop.
Inside the backend the report goes to the collector of the compilation in progress; a pass that a
user has set himself reports to the process's history.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from mi300_inductor import inductor
from mi300_inductor.contract import check_graph
from mi300_inductor.gemm_tuning import tune_graph
from mi300_inductor.numerics_check import add_checks, copy_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport, Report, record
from mi300_inductor.report_graph import mark_fusions, snapshot
from mi300_inductor.report_text import refusals_text

log = logging.getLogger(__name__)

SOURCE_SUFFIXES = frozenset({".py", ".cpp", ".h", ".hip"})


@dataclass
class Collector:
    """The compilation in progress: its phase, and the reports its passes make.

    `checks_at_once` says that a graph's report is complete when its pass ends, which is not so
    when the graph has subgraphs with passes of their own. `checked` is left by the last pass, that
    of the graph itself; see `numerics_check.py`.
    """

    phase: str
    checks_at_once: bool
    reports: list[GraphReport] = field(default_factory=list)
    checked: fx.GraphModule | None = None


_collector: ContextVar[Collector | None] = ContextVar("mi300_inductor_collector", default=None)


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Sends the reports of the passes that run inside the context to `collector`."""
    token = _collector.set(collector)
    try:
        yield
    finally:
        _collector.reset(token)


class FusionPass(inductor.CustomGraphPass):
    """The fusion pass, for `torch._inductor.config.post_grad_custom_pre_pass`.

    `torch.compile(model, backend="mi300")` sets it by itself. Set it by hand to use the fusions
    with the stock `inductor` backend or beside other passes; the reports are then had from
    `last_report`. Inductor's own code then rounds as Inductor does: `inductor_configs` has this
    pass and all else that makes the result the backend's, for AOTInductor for example. Set
    `RoundingMarks()` in `joint_custom_pre_pass` as well on torch 2.11, where roundings are lost
    otherwise (such chains are refused then).

    Args:
        options: The same dict as `torch.compile(..., options=...)`; Inductor's own are refused.
    """

    def __init__(self, options: dict[str, Any] | Options | None = None) -> None:
        """See the class."""
        self._is_by_hand = not isinstance(options, Options)
        self.options = options if isinstance(options, Options) else Options.parse(options=options)
        if not self._is_by_hand:
            return
        if self.options.check_numerics:
            raise RuntimeError(
                "FusionPass: check_numerics needs the compiled function; got True, expected False. "
                'Use torch.compile(..., backend="mi300") for it.'
            )
        if self.options.inductor:
            names = ", ".join(name for name, _ in self.options.inductor)
            raise RuntimeError(
                f"FusionPass: Inductor's options are not ours to set; got {names}, expected only "
                "options of this package. Set them in torch._inductor.config."
            )

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites a post-grad graph in place and reports.

        Raises:
            ContractError: if `expect` or `strict` is not kept.
        """
        gm = _module_of(graph)
        before = snapshot(gm)
        collector = _collector.get()
        original = copy_graph(gm) if collector and self.options.check_numerics else None
        result = run_engine(gm, self.options)
        if collector and original is not None:
            collector.checked = add_checks(original, gm, result)
        phase = collector.phase if collector else _guess_phase(gm)
        report = GraphReport(
            name=f"{inductor.compile_id()} {phase}".strip(),
            phase=phase,
            fused=tuple(result.fused),
            rejected=tuple(result.rejected),
            before=mark_fusions(before, result.regions, result.fused),
            after=mark_fusions(snapshot(gm), [(name,) for name in result.calls], result.fused),
            expected=self.options.expect,
            disabled=tuple(sorted(self.options.disable)),
            tuned=tune_graph(graph) if self.options.measure else (),
        )
        if collector is None:
            finish(report, self.options)
            return
        collector.reports.append(report)
        if collector.checks_at_once:
            finish(report, self.options)

    def uuid(self) -> tuple[str, ...] | None:
        """Identifies the pass's behaviour in cache keys: files, options, user spellings, torch.

        None, which switches Inductor's cache off, for a pass set by hand that has contracts to
        keep, reports to write or plans to choose: on a hit it does not run. The backend reads the
        stored report.
        """
        from mi300_inductor.graph import user_spellings_key

        options = self.options
        effects = (options.expect, options.strict, options.debug_dir, options.measure)
        if self._is_by_hand and any(effects):
            return None
        return ("mi300", files_hash(), self.options.cache_key(), user_spellings_key(), _torch())


class RoundingMarks(inductor.CustomGraphPass):
    """Marks roundings in the joint graph, for `torch._inductor.config.joint_custom_pre_pass`."""

    def __call__(self, graph: fx.Graph) -> None:
        """Marks convert-of-convert pairs in the nodes' meta; changes nothing that runs."""
        from mi300_inductor.graph import mark_roundings

        mark_roundings(_module_of(graph))

    def uuid(self) -> tuple[str, ...]:
        """Identifies the pass's behaviour in cache keys."""
        return ("mi300_roundings", files_hash(), _torch())


def _module_of(graph: fx.Graph) -> fx.GraphModule:
    if graph.owning_module is None:
        raise RuntimeError(
            "FusionPass: the graph has no module; got a bare fx.Graph, expected the graph of an "
            "fx.GraphModule. Make fx.GraphModule(root, graph) and pass its .graph."
        )
    return graph.owning_module


def run_engine(gm: fx.GraphModule, options: Options) -> Any:
    """Runs the graph engine on a post-grad graph, in place; the only call of it.

    Returns:
        `graph.PassResult`: fused, rejected, regions.
    """
    from mi300_inductor import graph

    return graph.run(gm, options)


def finish(report: GraphReport, options: Options) -> None:
    """Publishes a graph's report and holds the graph to its contracts.

    Raises:
        ContractError: if `expect` or `strict` is not kept.
    """
    record(report)
    alone = Report.of((report,))
    kinds = ", ".join(f"{n} {kind}" for kind, n in report.counts.items()) or "nothing"
    log.info(
        "graph %s: fused %s; %s%s",
        *(report.name, kinds, refusals_text(report.rejected)),
        " (from the cache)" if report.cached else "",
    )
    log.debug("%s", alone)
    inductor.trace_artifact("mi300_inductor_report", "string", lambda: str(alone))
    inductor.trace_artifact("mi300_inductor_report_json", "json", alone.to_json)
    if options.debug_dir is not None:
        from mi300_inductor.report_files import new_directory, write_files

        write_files(alone, new_directory(Path(options.debug_dir), report.name))
    check_graph(report, options)


def files_hash() -> str:
    """Hash of every source file of the package, `patterns/` and `csrc/`, read anew each time.

    An edit during the life of the process must count, so nothing is remembered here.
    """
    from mi300_inductor import patterns
    from mi300_inductor.build import csrc_dir

    digest = hashlib.sha256()
    package = Path(__file__).parent
    for folder in (package, *(Path(p) for p in patterns.__path__), csrc_dir()):
        for path in sorted(folder.rglob("*")):
            if path.suffix in SOURCE_SUFFIXES:
                digest.update(f"{path.relative_to(folder)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _torch() -> str:
    return f"{torch.__version__} {torch.version.git_version}"


def _guess_phase(gm: fx.GraphModule) -> str:
    """AOTAutograd names the incoming gradients of a backward graph `tangents_*`."""
    names = (node.name for node in gm.graph.nodes if node.op == "placeholder")
    return "backward" if any(name.startswith("tangents_") for name in names) else "forward"
