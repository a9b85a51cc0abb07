"""Regions and refusals in words and numbers, for the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy  # type: ignore[import-untyped]
from torch import fx

from mi300_inductor.cost import Kernel, Number, symbols_of
from mi300_inductor.graph.region import Refused, Region
from mi300_inductor.graph.select import cost, saving_text
from mi300_inductor.report import Fusion, Rejection
from mi300_inductor.report_graph import source_line


def describe_fusion(
    region: Region, nodes: Sequence[fx.Node], measured: object | None = None
) -> Fusion:
    """The report's entry for a region.

    Args:
        region: What is replaced.
        nodes: The replaced nodes, in graph order.
        measured: Times to be shown beside the modelled ones.
    """
    spent = cost(region, nodes)
    saving = saving_text(region, spent)
    return Fusion(
        kind=region.kind,
        nodes=tuple(node.name for node in nodes),
        source=source_of(region.rows.node),
        inputs=tuple(t.node.name for t in region.input_terms() if t.nodes),
        outputs=tuple(dict.fromkeys(node.name for node in region.output_nodes())),
        op=_call_text(region),
        spelling=tuple(
            dict.fromkeys(name for fact in region.facts for name in fact.match.spelling.names[:1])
        ),
        bytes_before=_number(spent.bytes_before),
        bytes_after=_number(spent.bytes_after),
        launches_before=spent.launches_before,
        launches_after=spent.launches_after,
        saving=saving if measured is None else f"{saving}; {measured}",
        read_before=_sum(spent.before, lambda kernel: kernel.read + kernel.again),
        read_after=_sum(spent.after, lambda kernel: kernel.read + kernel.again),
        written_before=_sum(spent.before, lambda kernel: kernel.written),
        written_after=_sum(spent.after, lambda kernel: kernel.written),
        flops_before=_sum(spent.before, lambda kernel: kernel.flops),
        flops_after=_sum(spent.after, lambda kernel: kernel.flops),
    )


def describe_merge(fused: Sequence[Fusion], together: Sequence[int]) -> tuple[Fusion, ...]:
    """The entries, of which some run as one call: that is one launch, counted for the first."""
    members = [fused[index] for index in together]
    first, *others = [member.outputs[0] for member in members]
    merged = {}
    for index in together:
        effect = f"saves 1 launch: it runs in that of {first}"
        if index == together[0]:
            effect = f"one launch for {', '.join(others)} as well"
        merged[index] = replace(
            fused[index],
            op=f"{fused[index].op} in one call for {', '.join([first, *others])}",
            launches_after=1 if index == together[0] else 0,
            saving=f"{effect}; alone: {fused[index].saving}",
        )
    return tuple(merged.get(index, fusion) for index, fusion in enumerate(fused))


def describe_refused(refused: Refused) -> Rejection:
    """The report's entry for something that was not fused."""
    node = refused.term.node
    return Rejection(
        refused.kind, node.name, refused.refusal.reason, source_of(node), refused.refusal.hint
    )


def source_of(node: fx.Node) -> str:
    """The model's line that a node comes from, as `file:line: code`; empty if torch kept none."""
    return source_line(node.meta.get("stack_trace") or "")


def _call_text(region: Region) -> str:
    params = ", ".join(
        f"{name}={str(value).removeprefix('torch.')}" for name, value in region.params.items()
    )
    return f"{region.op}({params})"


def _sum(kernels: Sequence[Kernel], part: Callable[[Kernel], Number]) -> int | str:
    total = sum(part(kernel) for kernel in kernels)
    return _number(sympy.expand(total) if symbols_of(total) else total)


def _number(expression: Number) -> int | str:
    return str(expression) if symbols_of(expression) else int(expression)
