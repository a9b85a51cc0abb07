"""Roots of a mean of squares that normalise nothing, or whose mean is spelled by a variance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.term import Term, count, same_dim, strip
from mi300_inductor.graph.ways import REACH, is_variance


def unread(root: Term, hidden: Any) -> Refusal | None:
    """The note about a root of a mean of squares that nothing of the size of x is multiplied by.

    Args:
        root: The root, or its reciprocal, or what is added to it.
        hidden: Size of the dimension that the mean is over.
    """
    if root.op == "div" or same_dim(hidden, 1) or not root.nodes or not _is_result(root.nodes):
        return None
    return Refusal(
        f"the {'reciprocal root' if root.op == 'rsqrt' else 'root'} of a mean of squares is a "
        "result by itself: x is not multiplied by it, so there is no norm to fuse",
        "Nothing to change: an operator gives out normalised rows, and Inductor compiles a mean.",
        is_unsupported=True,
    )


def _is_result(nodes: list[fx.Node]) -> bool:
    """Whether nothing that follows from values is larger than what it reads of them."""
    pending, seen = list(nodes), set(nodes)
    while pending:
        node = pending.pop()
        size = count(node.meta["val"].shape)
        for user in node.users:
            value = user.meta.get("val")
            if user.op == "output" or user in seen:
                continue
            if len(seen) > REACH or not isinstance(value, torch.Tensor):
                return False
            own = count(value.shape)
            is_smaller = isinstance(own, int) and isinstance(size, int) and own < size
            if own != size and not is_smaller:
                return False
            seen.add(user)
            pending.append(user)
    return True


def from_moments(value: Term) -> Refusal | None:
    """The refusal of a mean of squares that is a variance plus the square of a mean."""
    terms = list(_summands(value))
    variance = next((t for t in terms if t.op == "leaf" and t.nodes and is_variance(t.node)), None)
    if variance is None or not any(_is_squared_mean(term) for term in terms):
        return None
    node = variance.node
    if not isinstance(node.target, torch._ops.OpOverload):  # a result of var_mean
        node = node.all_input_nodes[0]
    is_exact = node.kwargs.get("correction") == 0
    return Refusal(
        "the root is of a variance plus the square of a mean, "
        + ("which is the mean of squares" if is_exact else "but not with the correction 0"),
        "For an RMSNorm write the mean of squares itself: x.float() * rsqrt(mean(x.float()**2, -1, "
        "keepdim=True) + eps) * weight.",
        is_unsupported=not is_exact,
    )


def _summands(value: Term) -> Iterator[Term]:
    value = strip(value)
    if value.op != "add":
        yield value
        return
    for operand in value.args:
        yield from _summands(operand)


def _is_squared_mean(term: Term) -> bool:
    is_square = term.op == "mul" and term.args[0] is term.args[1]
    return is_square and bool(term.shape) and same_dim(term.shape[-1], 1)
