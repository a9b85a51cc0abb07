"""Norms whose x * rstd is read more than once: by several weights, or also without one.

Each of these results gets a norm of its own, which computes x * rstd again. That reads x once more,
as an operator behind one norm would read its stored x * rstd, and every result keeps the
quantisations behind it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import fx

from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.meaning import RmsNorm
from mi300_inductor.graph.term import Term, strip


@dataclass(frozen=True)
class SharedNorms:
    """What norms have in common.

    Attributes:
        alone: For each x * rstd that is read without a weight, too, the norm that gives it.
        common: The nodes that several norms compute, each for itself.
    """

    alone: tuple[RmsNorm, ...]
    common: frozenset[fx.Node]


def shared_norms(norms: Iterable[RmsNorm], canonical: Canonicaliser) -> SharedNorms:
    """Finds the norms that share their x * rstd, and nothing else, with other readers."""
    groups: dict[Term, list[RmsNorm]] = defaultdict(list)
    for norm in norms:
        normed = norm.match.value("normed")
        if norm.weight is not None and normed is not None and normed is not norm.root:
            groups[normed].append(norm)
    alone: list[RmsNorm] = []
    common: set[fx.Node] = set()
    for normed, members in groups.items():
        held = _held(normed, canonical)
        inner = _inner(normed, members[0].x)
        products = {node for member in members for node in member.root.nodes}
        others = {user for node in held for user in node.users} - held - products
        is_one = len(members) == 1 and not others
        if is_one or any(not set(node.users) <= inner | held for node in inner):
            continue
        if any(_is_sum_of_both(user, members, normed, canonical) for user in others):
            continue
        common |= inner | held
        if others:
            first = members[0]
            alone.append(
                replace(
                    first, root=normed, weight=None, weight_offset=0.0, norm_dtype=torch.float32
                )
            )
    return SharedNorms(tuple(alone), frozenset(common))


def _held(normed: Term, canonical: Canonicaliser) -> set[fx.Node]:
    """The nodes that hold x * rstd: itself, its casts and views."""
    held, pending = set[fx.Node](), list(normed.nodes)
    while pending:
        node = pending.pop()
        held.add(node)
        users = (user for user in node.users if user.op == "call_function")
        pending.extend(user for user in users if strip(canonical.term(user)) is normed)
    return held


def _inner(normed: Term, x: Term) -> set[fx.Node]:
    """The nodes between x and x * rstd."""
    inner, pending = set[fx.Node](), [s for node in normed.nodes for s in node.all_input_nodes]
    while pending:
        node = pending.pop()
        if node in inner or node in x.nodes or node.op != "call_function":
            continue
        inner.add(node)
        pending.extend(node.all_input_nodes)
    return inner


def _is_sum_of_both(
    user: fx.Node, members: Iterable[RmsNorm], normed: Term, canonical: Canonicaliser
) -> bool:
    """Whether x * rstd is added to its product with a weight, which is better written as one."""
    if user.op == "output":
        return False
    operands = {strip(operand) for operand in canonical.term(user).args}
    return any(operands == {member.root, normed} for member in members)
