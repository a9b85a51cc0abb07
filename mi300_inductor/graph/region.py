"""Regions: what one operator replaces, as values between `fuse.py` and `rewrite.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx

from mi300_inductor.graph.meaning import Fact, Refusal
from mi300_inductor.graph.term import Term


@dataclass(frozen=True, eq=False)
class Region:
    """What one operator replaces.

    Attributes:
        kind: Public kind.
        op: Operator of `ops.py`.
        inputs: Tensor arguments by name: a term, a list of terms, or None.
        params: The other arguments by name.
        outputs: Output name of the operator to the terms that have its value (with another shape
            perhaps); a list of such lists for the stacked `q` of several static scales.
        rows: The term whose shape the operator works on.
        facts: The facts that were composed.
    """

    kind: str
    op: str
    inputs: dict[str, Term | list[Term] | None]
    params: dict[str, Any]
    outputs: dict[str, list[list[Term]]]
    rows: Term
    facts: tuple[Fact, ...]

    @property
    def parts(self) -> int:
        """How many parts of the graph are merged: its facts, and an addition before or behind."""
        additions = [self.inputs.get(name) for name in ("residual", "addend")]
        return len(self.facts) + sum(addition is not None for addition in additions)

    def input_terms(self) -> list[Term]:
        """All input terms, flat."""
        terms: list[Term] = []
        for value in self.inputs.values():
            terms.extend(value if isinstance(value, list) else [] if value is None else [value])
        return terms

    def output_nodes(self) -> list[fx.Node]:
        """All nodes whose values the operator produces."""
        return [
            node
            for stacked in self.outputs.values()
            for terms in stacked
            for term in terms
            for node in term.nodes
        ]


@dataclass(frozen=True, eq=False)
class Refused:
    """A fusion that was not made: its kind, where, and why."""

    kind: str
    term: Term
    refusal: Refusal


@dataclass
class Plan:
    """The regions of a graph, each with the nodes inside it, and what was refused."""

    regions: list[tuple[Region, frozenset[fx.Node]]] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def refuse(self, kind: str, term: Term, refusal: Refusal) -> None:
        """Notes a refusal."""
        self.refused.append(Refused(kind, term, refusal))
