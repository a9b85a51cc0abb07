"""Second stage: facts about a graph, and the reasons where something only looks like one.

Every meaning's spellings are tried at every term whose operation fits the root of the pattern; the
largest match at a root wins. The result is independent of the order of nodes. A term that looks
like a meaning (its anchor) but belongs to no fact gets a `Miss` with the furthest failure.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.meaning import Fact, Meaning, Refusal
from mi300_inductor.graph.registry import matchers, meanings, user_spellings
from mi300_inductor.graph.spelling import Failure, Match, Spelling
from mi300_inductor.graph.term import Term
from mi300_inductor.graph.words import describe, in_words


@dataclass(frozen=True, eq=False)
class Miss:
    """An anchor that belongs to no fact: why, and what to change."""

    meaning: Meaning
    anchor: Term
    refusal: Refusal


@dataclass(frozen=True, eq=False)
class Recognition:
    """Everything the recogniser found in a graph; `refused` holds matches that are no fact."""

    facts: tuple[Fact, ...]
    misses: tuple[Miss, ...]
    refused: Mapping[Term, Refusal]


@functools.cache
def compiled(meaning_name: str, present: frozenset[str] | None = None) -> tuple[Spelling, ...]:
    """The matchers of a meaning, spellings of users included; equal patterns are one matcher.

    Args:
        meaning_name: Its name.
        present: Those operations of `Meaning.part` that a graph has: tracing a spelling costs as
            much as matching it a hundred times, so those that cannot match are left out. None for
            all spellings.
    """
    meaning = next(m for m in meanings() if m.name == meaning_name)
    found: dict[str, Spelling] = {}
    for function in (*meaning.spellings, *user_spellings(meaning_name)):
        part = meaning.part.get(function)
        if part is not None and present is not None and part not in present:
            continue
        for spelling in matchers(meaning_name, function):
            known = found.get(spelling.key)
            found[spelling.key] = known.merged(spelling) if known else spelling
    return tuple(found.values())


def recognise(canonical: Canonicaliser) -> Recognition:
    """Finds every fact in a graph and explains every anchor without one."""
    by_op: dict[str, list[Term]] = defaultdict(list)
    for term in canonical.terms:
        if term.nodes:
            by_op[term.op].append(term)
    facts: list[Fact] = []
    misses: list[Miss] = []
    refusals: dict[Term, Refusal] = {}
    for meaning in meanings():
        found, refused = _facts_of(meaning, by_op)
        for match, refusal in refused:  # the largest match first
            refusals.setdefault(match.root, refusal)
        facts.extend(found)
        misses.extend(_misses_of(meaning, canonical.terms, found, refused))
    return Recognition(tuple(facts), tuple(misses), refusals)


def _facts_of(
    meaning: Meaning, by_op: Mapping[str, list[Term]]
) -> tuple[list[Fact], list[tuple[Match, Refusal]]]:
    if meaning.needs and meaning.needs not in by_op:
        return [], []
    matches: list[Match] = []
    present = frozenset(op for op in meaning.part.values() if op in by_op)
    for spelling in compiled(meaning.name, present):
        for term in by_op.get(spelling.root.op, ()):
            match = spelling.match(term)
            if match is not None:
                matches.append(match)
    # The largest match first: what lies inside it is a part of the same meaning.
    matches.sort(key=lambda match: -len(match.values))
    facts: list[Fact] = []
    refused: list[tuple[Match, Refusal]] = []
    inside: set[Term] = set()
    for match in matches:
        if match.root in inside:
            continue
        fact = meaning.describe(match)
        if isinstance(fact, Refusal):
            refused.append((match, fact))
            continue
        facts.append(fact)
        inside.update(match.values.values())
    return facts, refused


def _misses_of(
    meaning: Meaning,
    terms: Sequence[Term],
    facts: Sequence[Fact],
    refused: Sequence[tuple[Match, Refusal]],
) -> list[Miss]:
    covered = {term for fact in facts for term in fact.match.values.values()}
    candidates = [t for t in terms if (t.nodes or t.origin) and t not in covered]
    anchors = {term: found for term in candidates if (found := meaning.anchor(term))}
    if not anchors:
        return []
    users = _users_of(terms)
    misses: list[Miss] = []
    for anchor, found in anchors.items():
        refusal = next((r for m, r in refused if anchor in m.values.values()), None)
        refusal = refusal or (found if isinstance(found, Refusal) else meaning.explain(anchor))
        if refusal is None:
            refusal = _diagnose(meaning, anchor, users)
        misses.append(Miss(meaning, anchor, refusal))
    return misses


def _users_of(terms: Sequence[Term]) -> Mapping[Term, list[Term]]:
    users: dict[Term, list[Term]] = defaultdict(list)
    for term in terms:
        for operand in term.args:
            users[operand].append(term)
    return users


def _diagnose(meaning: Meaning, anchor: Term, users: Mapping[Term, list[Term]]) -> Refusal:
    """The furthest failure of any spelling at any term that reads the anchor's value."""
    roots, frontier = [anchor], [anchor]
    for _ in range(_REACH):
        frontier = [user for term in frontier for user in users.get(term, ())]
        roots.extend(frontier)
    return Refusal(furthest_failure(meaning.name, roots), meaning.hint)


def furthest_failure(meaning_name: str, roots: Iterable[Term]) -> str:
    """Why no spelling of a meaning matches at any of some terms: the first condition that failed.

    Of several spellings the one that got furthest counts.
    """
    furthest: Failure | None = None
    expected: dict[str, None] = {}
    others: list[Term] = []
    for root in dict.fromkeys(roots):
        for spelling in compiled(meaning_name):
            expected[in_words(spelling.root)] = None
            if spelling.root.op != root.op:
                others.append(root)
                continue
            failures: list[Failure] = []
            spelling.match(root, failures)
            for failure in failures:
                if furthest is None or failure.progress > furthest.progress:
                    furthest = failure
    if furthest is not None:
        return furthest.reason
    return f"expected {' or '.join(expected)} here, found {describe(others[0])}"


# How many operations and casts may lie between an anchor and the result of its meaning.
_REACH = 6
