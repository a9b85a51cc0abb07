"""The graph engine: canonicalise, recognise, fuse, select, rewrite and merge, in this order.

`run` takes Inductor's post-grad graph and changes it in place. A graph that the engine does not
understand, or in which it meets an error of its own, is left as it was and runs as Inductor would
run it; the report says so.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import fx
from torch._subclasses import FakeTensor

from mi300_inductor.graph.availability import drop_unpackageable, why_not_here
from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.fuse import fuse
from mi300_inductor.graph.legality import Legality
from mi300_inductor.graph.merge import siblings
from mi300_inductor.graph.recognise import recognise
from mi300_inductor.graph.region import Plan, Region
from mi300_inductor.graph.registry import spelling, user_spellings_key
from mi300_inductor.graph.rewrite import Rewriter
from mi300_inductor.graph.rounding import keeps_roundings, mark_roundings, unmark_roundings
from mi300_inductor.graph.scalars import widen_scalars
from mi300_inductor.graph.select import drop_losers
from mi300_inductor.graph.summary import describe_fusion, describe_merge, describe_refused
from mi300_inductor.report import Fusion, Rejection

if TYPE_CHECKING:
    from mi300_inductor.autotune import Measured
    from mi300_inductor.options import Options

__all__ = ["PassResult", "mark_roundings", "run", "spelling", "user_spellings_key"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PassResult:
    """What the engine did to one graph.

    Attributes:
        fused: One entry per region, in graph order.
        rejected: One entry per candidate that was not fused, in graph order.
        regions: For each entry of `fused` the names of the replaced nodes in the graph as it was.
        calls: For each entry of `fused` the name of the operator's call in the new graph.
        replacements: Name of each node whose value an operator now produces to the name of the
            node that holds it in the new graph.
    """

    fused: tuple[Fusion, ...]
    rejected: tuple[Rejection, ...]
    regions: tuple[tuple[str, ...], ...]
    calls: tuple[str, ...] = ()
    replacements: Mapping[str, str] = field(default_factory=dict)


def run(gm: fx.GraphModule, options: Options) -> PassResult:
    """Finds and rewrites every fusion in a post-grad graph, in place.

    Args:
        gm: Inductor's post-grad graph with fake values in `meta["val"]`.
        options: `disable` and `measure` are read here.

    Returns:
        What was fused and what was not.
    """
    graph = gm.graph
    if not any(isinstance(node.meta.get("val"), FakeTensor) for node in graph.nodes):
        return PassResult((), (), ())
    backup = _parts(graph)
    try:
        result = _run(graph, options)
        widen_scalars(graph)
        return result
    except Exception as error:
        log.exception("the fusion pass failed; the graph is compiled as it was")
        _restore(graph, backup)
        reason = f"an error in the fusion pass: {type(error).__name__}: {error}"
        hint = "The graph runs unfused. Please report the model."
        return PassResult((), (Rejection("pass", "", reason, "", hint),), ())


def _run(graph: fx.Graph, options: Options) -> PassResult:
    disabled = frozenset(options.disable)
    canonical = Canonicaliser(graph)
    recognition = recognise(canonical)
    missing = why_not_here(graph) if recognition.facts else None
    if missing is not None:
        return PassResult((), (Rejection("pass", "", missing, "", "The graph runs unfused."),), ())
    legality = Legality(graph, canonical)
    plan = fuse(recognition, canonical, legality, disabled, keeps_roundings())
    order = {node: index for index, node in enumerate(graph.nodes)}
    drop_unpackageable(plan)
    drop_losers(plan)
    times: dict[Region, Measured] = {}
    if options.measure:
        from mi300_inductor.autotune import undo_losers

        times = undo_losers(plan, partial(_rewrite_alone, options))
    plan.regions.sort(key=lambda entry: min(order[node] for node in entry[1]))
    fused = tuple(
        describe_fusion(region, _ordered(nodes, order), times.get(region))
        for region, nodes in plan.regions
    )
    rejected = _rejections(plan, order, disabled)
    regions = tuple(fusion.nodes for fusion in fused)
    rewriter = Rewriter(graph)
    calls = [rewriter.rewrite(region, nodes) for region, nodes in plan.regions]
    for together in siblings(graph):
        rewriter.merge(together)
        fused = describe_merge(fused, [calls.index(call) for call in together])
    if plan.regions:
        rewriter.finish()
    unmark_roundings(graph)
    names = tuple(rewriter.call_of(call).name for call in calls)
    return PassResult(fused, rejected, regions, names, rewriter.replacements())


def _rewrite_alone(options: Options, gm: fx.GraphModule) -> int:
    """Rewrites a module of one region; returns the number of rewrites."""
    return len(_run(gm.graph, replace(options, measure=False)).fused)


def _ordered(nodes: frozenset[fx.Node], order: dict[fx.Node, int]) -> list[fx.Node]:
    return sorted(nodes, key=order.__getitem__)


def _rejections(
    plan: Plan, order: dict[fx.Node, int], disabled: frozenset[str]
) -> tuple[Rejection, ...]:
    found = [(order[r.term.node], describe_refused(r)) for r in plan.refused]
    found = [entry for entry in found if entry[1].kind not in disabled]
    return tuple(rejection for _, rejection in sorted(found, key=lambda entry: entry[0]))


def _parts(graph: fx.Graph) -> list[tuple[fx.Node, tuple[Any, ...], dict[str, Any]]]:
    """What each node is made of; arguments are immutable, so none is copied."""
    return [
        (n, (n.op, n.target, n.args, n.kwargs, n.name, n.type), dict(n.meta)) for n in graph.nodes
    ]


def _restore(
    graph: fx.Graph, backup: list[tuple[fx.Node, tuple[Any, ...], dict[str, Any]]]
) -> None:
    """Makes a graph again from its `_parts`."""
    for node in graph.nodes:  # whose order an error may have left wrong
        node.args, node.kwargs = (), {}
    for node in list(graph.nodes):
        graph.erase_node(node)
    made: dict[fx.Node, fx.Node] = {}
    for old, (op, target, args, kwargs, name, type_expr), meta in backup:
        args, kwargs = fx.map_arg((args, kwargs), made.__getitem__)
        made[old] = graph.create_node(op, target, args, kwargs, name, type_expr)
        made[old].meta = meta
