"""The canonical forms of reductions: those over the last dimension, and those over others.

The largest element of a row is a reduction of its own (`amax`), and so is that of a whole tensor.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from torch import fx

from mi300_inductor.graph.forms import argument, aten, handles
from mi300_inductor.graph.term import Term

if TYPE_CHECKING:
    from mi300_inductor.graph.canonicalise import Canonicaliser


def _last_dim_only(term: Term, dims: Any) -> bool:
    dims = [dims] if isinstance(dims, int) else dims
    if not isinstance(dims, (list, tuple)) or len(dims) != 1 or not term.shape:
        return False
    return bool(dims[0] in (-1, len(term.shape) - 1))


@handles(aten.mean.dim)
def _mean(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.tensor(node.args[0])
    if not _last_dim_only(source, node.args[1]):
        return build.like(node, "mean_other", source, attrs=(str(node.args[1]),))
    return build.like(node, "mean", source)


@handles(aten.sum.dim_IntList, aten.sum.default)
def _sum(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.tensor(node.args[0])
    dims = argument(node, 1, "dim") or range(len(source.shape))
    if not _last_dim_only(source, list(dims)):
        return build.like(
            node, "sum_other", source, attrs=tuple(d % len(source.shape) for d in dims)
        )
    return build.like(node, "sum", source, attrs=("last",))


@handles(aten.amax.default)
def _amax(build: Canonicaliser, node: fx.Node) -> Term | None:
    source = build.tensor(node.args[0])
    dims = argument(node, 1, "dim", ())
    if _last_dim_only(source, dims):
        return build.like(node, "amax", source, attrs=("last",))
    if len(dims) in (0, len(source.shape)):
        return build.like(node, "amax", source, attrs=("all",))
    return None


@handles(aten.max.default)
def _max_all(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "amax", build.tensor(node.args[0]), attrs=("all",))


@handles(operator.getitem)
def _getitem(build: Canonicaliser, node: fx.Node) -> Term | None:
    producer, index = node.args
    if isinstance(producer, fx.Node) and producer.target is aten.max.dim and index == 0:
        source = build.tensor(producer.args[0])
        if _last_dim_only(source, producer.args[1]):
            return build.like(node, "amax", source, attrs=("last",))
    return None
