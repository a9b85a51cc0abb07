"""The contracts of `options`: `expect` and `strict`.

A graph is checked when it is compiled, and again from its stored report when Inductor's cache has
it. Backward graphs are held to nothing: what is fused is in the forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from mi300_inductor.options import Expectation, Options
from mi300_inductor.report import GraphReport, Report
from mi300_inductor.report_text import counted


class ContractError(RuntimeError):
    """A compiled graph does not keep what `expect` or `strict` asks for."""


def check_graph(graph: GraphReport, options: Options) -> None:
    """Checks one graph against `expect` and `strict`.

    Raises:
        ContractError: with the table of what was found.
    """
    if graph.phase == "backward":
        return
    for expected in options.expect:
        found = graph.counts.get(expected.kind, 0)
        # Of a total only the upper end is known here: other graphs may follow.
        if found > expected.high or (found < expected.low and not expected.is_total):
            raise ContractError(_unmet("expect", expected, found, Report.of((graph,))))
    if options.strict:
        refused = [
            item for item in graph.rejected if not item.is_note and item.kind not in options.disable
        ]
        if refused:
            raise ContractError(
                f"strict: a candidate was not fused; got {counted(len(refused), 'refusal')} in "
                f"graph {graph.name}, expected none. Follow the hints below, or disable the "
                f"kind.\n\n{Report.of((graph,))}"
            )


def check_totals(graphs: Sequence[GraphReport]) -> None:
    """Checks what was expected over all graphs of a model.

    Raises:
        ContractError: with the table of what was found.
    """
    report = Report.of(tuple(graph for graph in graphs if graph.phase != "backward"))
    totals = {item: None for graph in graphs for item in graph.expected if item.is_total}
    for expected in totals:
        found = report.counts.get(expected.kind, 0)
        if not expected.low <= found <= expected.high:
            raise ContractError(_unmet("expect", expected, found, report))


def _unmet(what: str, expected: Expectation, found: int, report: Report) -> str:
    graphs = ", ".join(graph.name for graph in report.graphs)
    name, _, wanted = str(expected).rpartition(": ")
    return (
        f"{what}: wrong number of fusions; got {found} of {name} in graph {graphs}, expected "
        f"{wanted}. {_advice(expected, found, report)}.\n\n{report}"
    )


def _advice(expected: Expectation, found: int, report: Report) -> str:
    """What to do about another number of fusions than was expected."""
    kind, is_missing = expected.kind, found < expected.low
    if is_missing and any(kind in graph.disabled for graph in report.graphs):
        return f"{kind} is disabled: take it out of disable, or change the number"
    others = [
        f"{number} fused as {other}"
        for other, number in report.counts.items()
        if is_missing and other != kind and _family(other) == _family(kind)
    ]
    steps = []
    if others:
        those = "that kind" if len(others) == 1 else "those kinds"
        # Some of the kind are there: those of the other may be meant to be what they are.
        steps.append(f"{' and '.join(others)}: {'perhaps ' if found else ''}expect {those}")
    telling = (_family(kind), "pass")
    refused = any(_family(item.kind) in telling for item in report.rejected)
    if refused or any(item.is_note for item in report.rejected):
        what = f"{'refusals' if refused else 'notes'} below"
        steps.append(f"read the {what}" if steps else f"Read the {what}")
    if is_missing and not steps:
        elsewhere = "" if expected.is_total else f", or expect total:{kind} of all its graphs"
        return f"Nothing else looked like {kind}: change the model or the number{elsewhere}"
    return ", or ".join([*steps, "change the number" if steps else "Change the number"])


def _family(kind: str) -> str:
    """`rms_norm` for every kind with a norm in it, and so on; a note's kind as it is."""
    return kind.removeprefix("add_").removesuffix("_quant")
