"""The report as text tables."""

from __future__ import annotations

from collections.abc import Sequence

import sympy  # type: ignore[import-untyped]
from tabulate import tabulate

from mi300_inductor.report import Fusion, Rejection, Report
from mi300_inductor.report_graph import short_source

WIDTH = 64
NO_GRAPHS = (
    "0 graphs (the model has no operations, another backend compiled it, or it is hidden from "
    "torch.compile: by torch.compiler.disable, TorchScript)"
)


def report_text(report: Report) -> str:
    """Tables of the fusions, the refusals and the notes, equal ones counted together."""
    fusions = counted(len(report.fused), "fusion")
    parts = [f"{graphs_text(report)}: {fusions}, {refusals_text(report.rejected)}"]
    parts += [cached_text(report)] if cached_text(report) else []
    if report.fused:
        parts += ["Fused", _fused_table(report.fused)]
    for title, rejected in sections(report.rejected).items():
        if rejected:
            parts += [title, _rejected_table(rejected)]
    plans = plan_rows(report)
    if plans:
        parts += ["Plans of the matmuls", tabulate(plans, PLAN_HEADS, disable_numparse=True)]
    return "\n\n".join(parts)


def sections(rejected: Sequence[Rejection]) -> dict[str, list[Rejection]]:
    """Refusals and notes, each under its title."""
    return {
        "Not fused": [item for item in rejected if not item.is_note],
        "Notes": [item for item in rejected if item.is_note],
    }


def refusals_text(rejected: Sequence[Rejection]) -> str:
    """`1 refusal, 3 notes`."""
    refusals, notes = sections(rejected).values()
    more = f", {counted(len(notes), 'note')}" if notes else ""
    return counted(len(refusals), "refusal") + more


def graphs_text(report: Report) -> str:
    """`2 graphs (0/0 inference, 0/1 inference)`, or which one it is of all."""
    if not report.is_sum:
        return f"{report.graphs[-1].name}, the newest of {len(report.graphs)} graphs"
    if not report.graphs:
        return NO_GRAPHS
    names = ", ".join(graph.name for graph in report.graphs[:8])
    more = len(report.graphs) - 8
    graphs = counted(len(report.graphs), "graph")
    return f"{graphs} ({names}{f' and {more} more' if more > 0 else ''})"


def cached_text(report: Report) -> str:
    """Says of which program the lines are, where Inductor's cache had a graph; else empty."""
    cached = [graph for graph in report.shown if graph.cached and (graph.fused or graph.rejected)]
    if not cached:
        return ""
    which = "The graph" if len(report.shown) == 1 else f"{counted(len(cached), 'graph')} of these"
    return (
        f"{which} came from Inductor's cache: source lines and names of nodes are those of the "
        "program that compiled the same graph first."
    )


def counted(number: int, noun: str) -> str:
    """`1 graph`, `2 graphs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def add_counts(values: Sequence[int | str]) -> int | str:
    """Sum of counts, some of which may be expressions in sizes unknown at compile time."""
    if all(isinstance(value, int) for value in values):
        return sum(int(value) for value in values)
    total = sympy.Add(*(sympy.sympify(value) for value in values))
    return int(total) if total.is_Integer else str(total)


def count_text(value: int | str, unit: str = "B") -> str:
    """A count for people: `3.2 MB`, or `2.4 MB*s0 + 25 MB` for an expression in sizes."""
    if isinstance(value, int):
        return _amount_text(value, unit)
    terms = sympy.Add.make_args(sympy.sympify(value))
    parts = [term.as_coeff_Mul() for term in sorted(terms, key=lambda term: term.is_number)]
    if not all(number.is_Integer and number > 0 for number, _ in parts):
        return value
    return " + ".join(
        _amount_text(int(number), unit) + (f"*{rest}" if rest != 1 else "")
        for number, rest in parts
    )


def _amount_text(value: int, unit: str) -> str:
    amount = float(value)
    for prefix in ("", "k", "M", "G"):
        if abs(amount) < 1000 or prefix == "G":
            return f"{amount:.3g} {prefix}{unit}" if prefix else f"{value} {unit}"
        amount /= 1000
    raise AssertionError("unreachable")


def group_fusions(fused: Sequence[Fusion]) -> list[list[Fusion]]:
    """Fusions of one kind that come from one line of the model, together."""
    groups: dict[tuple[str, str], list[Fusion]] = {}
    for fusion in fused:
        groups.setdefault((fusion.kind, fusion.source), []).append(fusion)
    return list(groups.values())


def gains(group: Sequence[Fusion]) -> tuple[str, str, str]:
    """What fusions change, added up: the graph's operations, kernel launches, bytes moved.

    Operations are those of the model's graph. Launches and bytes compare with what Inductor alone
    would run; one value means that they stay.
    """
    return (
        _change(sum(len(f.nodes) for f in group), len(group)),
        _change(sum(f.launches_before for f in group), sum(f.launches_after for f in group)),
        _change(
            count_text(add_counts([f.bytes_before for f in group])),
            count_text(add_counts([f.bytes_after for f in group])),
        ),
    )


def gains_in_flops(group: Sequence[Fusion]) -> str:
    """What fusions change in floating point operations, added up; mostly they stay."""
    return _change(
        count_text(add_counts([f.flops_before for f in group]), "FLOP"),
        count_text(add_counts([f.flops_after for f in group]), "FLOP"),
    )


GAINS_NOTE = (
    "operations: of the model's graph; launches and bytes: Inductor alone -> mi300, one value "
    "where they are equal"
)


def _change(before: int | str, after: int | str) -> str:
    return f"{before} -> {after}" if before != after else str(after)


def _fused_table(fused: Sequence[Fusion]) -> str:
    rows = [
        [len(group), group[0].kind, *gains(group), short_source(group[0].source) or "-"]
        for group in group_fusions(fused)
    ]
    table = tabulate(
        rows,
        ["", "kind", "operations", "launches", "bytes", "source"],
        maxcolwidths=[None, None, None, None, WIDTH // 2, WIDTH],
        disable_numparse=[2, 3, 4],
    )
    return f"{table}\n{GAINS_NOTE}"


PLAN_HEADS = ("rows", "matmul", "plan", "us", "rule's us", "library's us")


def plan_rows(report: Report) -> list[list[str]]:
    """How each kind of matmul is launched where that was to be measured; under `PLAN_HEADS`."""
    rows = []
    for tuned in dict.fromkeys(one for graph in report.shown for one in graph.tuned):
        first, last = tuned.matmul.first_rows, tuned.matmul.rows
        span = str(last) if first == last else f"{first} to {last}"
        times = [tuned.time, tuned.rule_time, tuned.library_time]
        plan = f"{tuned.plan}; not measured: {tuned.note}" if tuned.note else tuned.plan
        shown = ["-" if tuned.note else f"{time:.3g}" for time in times]
        rows.append([span, str(tuned.matmul), plan, *shown])
    return rows


def group_rejections(rejected: Sequence[Rejection]) -> list[list[Rejection]]:
    """Refusals that differ in nothing but the node, together."""
    groups: dict[tuple[str, ...], list[Rejection]] = {}
    for item in rejected:
        key = (item.kind, item.reason, item.hint, item.source)
        groups.setdefault(key, []).append(item)
    return list(groups.values())


def _rejected_table(rejected: Sequence[Rejection]) -> str:
    rows = [
        [
            len(group),
            group[0].kind,
            group[0].reason,
            group[0].hint,
            short_source(group[0].source) or "-",
        ]
        for group in group_rejections(rejected)
    ]
    return tabulate(
        rows,
        ["", "kind", "reason", "what to do", "source"],
        maxcolwidths=[None, None, WIDTH // 2, WIDTH // 2, WIDTH // 2],
    )
