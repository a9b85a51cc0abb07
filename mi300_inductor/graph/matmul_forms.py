"""The canonical forms of matmuls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

from mi300_inductor.graph.forms import argument, aten, handles
from mi300_inductor.graph.term import Term, same_dim, same_shape

if TYPE_CHECKING:
    from mi300_inductor.graph.canonicalise import Canonicaliser


@handles(aten.mm.default)
def _mm(build: Canonicaliser, node: fx.Node) -> Term:
    return build.like(node, "mm", build.term(node.args[0]), build.term(node.args[1]))


@handles(aten.bmm.default)
def _bmm(build: Canonicaliser, node: fx.Node) -> Term | None:
    operands = [build.term(node.args[0]), build.term(node.args[1])]
    if not same_dim(operands[0].shape[0], 1):
        return None
    for index, operand in enumerate(operands):
        if operand.op == "view" and same_shape(operand.args[0].shape, operand.shape[1:]):
            operands[index] = operand.args[0]
    return build.like(node, "mm", *operands)


@handles(aten.addmm.default)
def _addmm(build: Canonicaliser, node: fx.Node) -> Term | None:
    if node.kwargs.get("alpha", 1) != 1 or node.kwargs.get("beta", 1) != 1:
        return None
    return build.like(node, "addmm", *(build.term(a) for a in node.args[:3]))


@handles(aten._scaled_mm.default)
def _scaled_mm(build: Canonicaliser, node: fx.Node) -> Term | None:
    bias, result_scale = argument(node, 4, "bias"), argument(node, 5, "scale_result")
    if result_scale is not None:
        return None
    operands = [build.term(a) for a in node.args[:4]]
    if bias is not None:
        operands.append(build.term(bias))
    return build.like(node, "scaled_mm", *operands)
