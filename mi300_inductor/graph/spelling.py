"""Spellings: plain PyTorch functions compiled into matchers.

A meaning (RMSNorm, quantisation, ...) is written in `patterns/` as ordinary functions, which
`trace.py` makes into terms. Tensor parameters are variables; so are scalar parameters (eps, bounds)
and the FP8 dtype. Dtypes are no part of the pattern: where the user's graph rounds is read from the
match afterwards.

Matching is a backtracking walk from the pattern's root. Commutative operands match either way,
casts and views that keep the last dimension are looked through, and the furthest failure is kept,
because it is the reason the user gets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mi300_inductor.graph.term import Term, held_dtype, operand_classes, strip, strip_widening
from mi300_inductor.graph.words import describe, in_words, shape_text

COMMUTATIVE = frozenset({"add", "mul"})
ELEMENTWISE = frozenset({"add", "mul", "div", "sub", "max", "min"})

# Sizes of the example tensors: distinct, so that no size is mistaken for another.
ROWS, HIDDEN = 5, 112


@dataclass(frozen=True)
class Failure:
    """Why a spelling stopped matching; `progress` counts the operations matched before."""

    progress: int
    term: Term
    reason: str


@dataclass
class Match:
    """A spelling found in a graph.

    Attributes:
        spelling: The spelling that matched.
        root: Term of the user's graph at the spelling's result.
        variables: Parameter name to term: behind widening casts for tensors, a `const` for scalars.
        values: Term of the pattern to the term of the user's graph that computes it.
        uses: Term of the pattern to the unstripped term through which the user's graph reads it.
    """

    spelling: Spelling
    root: Term
    variables: dict[str, Term] = field(default_factory=dict)
    values: dict[Term, Term] = field(default_factory=dict)
    uses: dict[Term, Term] = field(default_factory=dict)

    def copy(self) -> Match:
        """A copy to backtrack to."""
        return Match(
            self.spelling, self.root, dict(self.variables), dict(self.values), dict(self.uses)
        )

    def scalar(self, name: str) -> float:
        """The number bound to a scalar parameter."""
        return self.variables[name].value

    def value(self, role: str) -> Term | None:
        """The user's term that plays a role of the meaning (see `Meaning.roles`)."""
        pattern = self.spelling.roles.get(role)
        return self.values.get(pattern) if pattern is not None else None

    def use(self, role: str) -> Term | None:
        """The user's term through which the next operation reads a role's value."""
        pattern = self.spelling.roles.get(role)
        return self.uses.get(pattern) if pattern is not None else None


@dataclass(frozen=True, eq=False)
class Spelling:
    """A compiled pattern: the spellings it stands for, and the terms that play named roles."""

    names: tuple[str, ...]
    root: Term
    variables: Mapping[Term, str]
    roles: Mapping[str, Term]

    @functools.cached_property
    def _needs(self) -> set[str]:
        """Operations that must be among the operands of the root: rules out most terms at once."""
        return {a.op for a in self.root.args if a not in self.variables and not a.is_const}

    @property
    def key(self) -> str:
        """Equal for spellings that compile to the same pattern."""
        return _pattern_text(self.root, self.variables)

    def merged(self, other: Spelling) -> Spelling:
        """This matcher, standing for another spelling with the same pattern too."""
        names = tuple(dict.fromkeys((*self.names, *other.names)))
        return Spelling(names, self.root, self.variables, self.roles)

    def match(self, term: Term, failures: list[Failure] | None = None) -> Match | None:
        """Matches the spelling with its root at `term`; notes each failure in `failures`."""
        if failures is None and not self._needs <= {strip(operand).op for operand in term.args}:
            return None
        start = Match(self, term)
        for match in _match(self, self.root, term, start, failures):
            return match
        return None


def _pattern_text(term: Term, variables: Mapping[Term, str]) -> str:
    shape = shape_text(term)
    if term in variables:
        return f"${variables[term]}{shape}"
    inner = [_pattern_text(a, variables) for a in term.args]
    return f"{term.op}{term.attrs}({', '.join(inner)}){shape}"


def _match(
    spelling: Spelling, pattern: Term, use: Term, match: Match, failures: list[Failure] | None
) -> Iterator[Match]:
    """All ways to match a pattern term with the user's term `use`."""

    def fail(reason: str, term: Term = use) -> None:
        if failures is not None:
            failures.append(Failure(len(match.values), term, reason))

    name = spelling.variables.get(pattern)
    if name is not None:
        bound = strip_widening(use)
        if pattern.is_const and not use.is_const:
            fail(f"{name} is {describe(use)}, expected a number that is known while compiling")
            return
        if pattern.is_const:
            bound = use
        previous = match.variables.get(name)
        if previous is not None and previous is not bound:
            fail(
                f"{name} is not the same value in both places where the formula reads it: "
                f"{describe(previous)} and {describe(bound)}"
            )
            return
        after = match.copy()
        after.variables[name] = bound
        after.uses[pattern] = use
        yield after
        return
    if pattern.is_const:
        if use.is_const and abs(use.value - pattern.value) <= 1e-7 * abs(pattern.value):
            yield match
        else:
            fail(f"expected the number {pattern.value:g} here, found {describe(use)}")
        return
    found = strip(use)
    known = match.values.get(pattern)
    if known is not None:
        if known is found and held_dtype(use) == held_dtype(match.uses[pattern]):
            yield match
        else:
            fail("the formula reads one value twice, the graph reads two different ones")
        return
    is_other = pattern.op != "amax" and found.attrs[:1] != pattern.attrs[:1]
    if found.op != pattern.op or is_other:
        fail(f"expected {in_words(pattern)} here, found {describe(found)}", found)
        return
    after = match.copy()
    after.values[pattern] = found
    after.uses[pattern] = use
    orders = [found.args]
    if pattern.op in COMMUTATIVE and len(found.args) == 2 and found.args[0] is not found.args[1]:
        orders.append((found.args[1], found.args[0]))
    for args in orders:
        yield from _match_operands(spelling, pattern, found, args, after, failures)


def _match_operands(
    spelling: Spelling,
    pattern: Term,
    found: Term,
    args: tuple[Term, ...],
    match: Match,
    failures: list[Failure] | None,
) -> Iterator[Match]:
    if len(args) != len(pattern.args):
        return
    if pattern.op in ELEMENTWISE:
        fitting: list[Term] = []
        for expected, operand in zip(pattern.args, args, strict=True):
            allowed, inner = operand_classes(expected, pattern), operand
            while inner.op == "expand" and not allowed & operand_classes(inner, found):
                inner = inner.args[0]
            if not allowed & operand_classes(inner, found):
                if failures is not None:
                    reason = (
                        f"an operand of {describe(found)} has shape {shape_text(operand)}, "
                        f"expected one value per {_CLASS_WORDS[min(allowed)]}"
                    )
                    failures.append(Failure(len(match.values), found, reason))
                return
            fitting.append(inner)
        args = tuple(fitting)
    matches = [match]
    for expected, operand in zip(pattern.args, args, strict=True):
        matches = [
            after
            for before in matches
            for after in _match(spelling, expected, operand, before, failures)
        ]
    yield from matches


_CLASS_WORDS = {
    "column": "element of the last dimension",
    "full": "element",
    "row": "row",
    "scalar": "tensor",
}
