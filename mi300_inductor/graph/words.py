"""Terms in words, for reasons that users read."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from mi300_inductor.graph.term import Term


def in_words(term: Term) -> str:
    """An operation in words for a reason."""
    if term.is_const:
        return f"the number {term.value:g}"
    if term.op == "mul" and term.args[1].is_const and term.args[1].value == -1.0:
        return "a negation"
    words = {
        "mul": "a multiplication",
        "add": "an addition",
        "weighted_add": "an addition with an alpha",
        "sub": "a subtraction",
        "div": "a division",
        "mean": "a mean over the last dimension",
        "mean_other": "a mean over other dimensions",
        "sum": "a sum over the last dimension",
        "sum_other": "a sum over other dimensions",
        "amax": "a maximum over the last dimension"
        if term.attrs[:1] != ("all",)
        else "a maximum over the whole tensor",
        "max": "a lower bound",
        "min": "an upper bound",
        "to_fp8": "a cast to an FP8 dtype",
        "to_double": "a cast to torch.float64",
        "cast": f"a cast to {term.dtype}",
    }
    return words.get(term.op, term.op if term.op != "leaf" else "a value")


def operation_name(node: fx.Node) -> str:
    """The operation of the model that a node is, or is a part of."""
    operation: Any = node.meta.get("original_aten") or node.target
    operation = getattr(operation, "overloadpacket", operation)
    return str(getattr(operation, "__name__", operation))


def describe(term: Term) -> str:
    """A term in words for a reason: the operation, and the node where there is one."""
    text = in_words(term)
    if not term.nodes:
        return text
    node = term.node
    target = getattr(node.target, "__name__", str(node.target))
    if _is_number(node):
        text = "a number that is not known while compiling"
    elif term.op == "leaf":
        text = "a graph input" if node.op == "placeholder" else f"the result of {target}"
    return f"{text} ({node.name})"


def _is_number(node: fx.Node) -> bool:
    """Whether a node is a Python float of the model that torch passes in as a tensor."""
    if node.target is torch.ops.prims.convert_element_type.default:
        node = node.all_input_nodes[0]
    value = node.meta.get("val")
    if node.op != "placeholder" or not isinstance(value, torch.Tensor):
        return False
    return value.dtype == torch.float64 and value.dim() == 0


def shape_text(term: Term) -> str:
    """A shape as `[2, s0, 64]`."""
    return "[" + ", ".join(str(d) for d in term.shape) + "]"
