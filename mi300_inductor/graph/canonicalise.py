"""First stage: an FX graph (or a traced spelling) as canonical terms.

The FX graph is only read. Each node becomes a `Term`; `*forms.py` say which forms mean the same.
What it does not list becomes a `leaf`, which only a variable of a spelling matches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor.graph import cast_forms, matmul_forms, reduction_forms
from mi300_inductor.graph.forms import FORMS
from mi300_inductor.graph.term import Dim, Term
from mi300_inductor.inductor import outside_fake_mode

# These have put the forms of their operations into FORMS when they were imported.
FORM_FILES = (cast_forms, matmul_forms, reduction_forms)


def writes(node: fx.Node) -> bool:
    """Whether a node calls an operator that writes to one of its arguments."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


class Canonicaliser:
    """Terms of one FX graph; `terms` lists them in graph order, without repetition."""

    def __init__(self, graph: fx.Graph) -> None:
        """Reads a graph; nodes need fake values in `meta["val"]`."""
        self._interned: dict[Any, Term] = {}
        self._of_node: dict[fx.Node, Term] = {}
        self.terms: list[Term] = []
        self._module = graph.owning_module
        for node in graph.nodes:
            if node.op != "output":
                term = self._convert(node)
                self._of_node[node] = term
                term.nodes.append(node)

    def term(self, value: Any) -> Term:
        """The term of an FX argument: a node, or a number."""
        if isinstance(value, fx.Node):
            return self._of_node[value]
        return self.const(value)

    def tensor(self, value: Any) -> Term:
        """The term of a tensor whose shape counts, where it is filled with a number as well."""
        term = self.term(value)
        if not term.is_const or not isinstance(value, fx.Node):
            return term
        filled = value.meta["val"]
        leaf = self.make("leaf", (), (value.name,), filled.dtype, tuple(filled.shape))
        if not leaf.nodes:
            leaf.nodes.append(value)
        return leaf

    def const(self, value: Any) -> Term:
        """A number known while compiling."""
        if isinstance(value, (bool, int, float)):
            return self.make("const", (), (float(value),), None, ())
        return self.make("leaf", (), (repr(value),), None, ())

    def make(
        self,
        op: str,
        args: tuple[Term, ...],
        attrs: tuple[Any, ...],
        dtype: torch.dtype | None,
        shape: tuple[Dim, ...],
    ) -> Term:
        """The term with these parts, made once."""
        key = (op, tuple(id(a) for a in args), attrs, dtype, tuple(str(d) for d in shape))
        term = self._interned.get(key)
        if term is None:
            term = Term(op, args, attrs, dtype, shape)
            self._interned[key] = term
            self.terms.append(term)
        return term

    def like(self, node: fx.Node, op: str, *args: Term, attrs: tuple[Any, ...] = ()) -> Term:
        """A term whose value has the dtype and shape of a node's value."""
        value = node.meta["val"]
        return self.make(op, args, attrs, value.dtype, tuple(value.shape))

    def step(self, node: fx.Node, op: str, *args: Term, of: Term) -> Term:
        """A term that no node computes, with the dtype and shape of `of`."""
        term = self.make(op, args, (), of.dtype, of.shape)
        term.origin = term.origin or node
        return term

    def constant_tensor(self, node: fx.Node) -> Tensor | None:
        """The value of a `get_attr` node that is a one-element literal of the model's code.

        Parameters and buffers are attributes too where a model is compiled ahead of time; those
        stay tensors.
        """
        if not str(node.target).startswith("_tensor_constant"):
            return None
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        return value if isinstance(value, Tensor) and value.numel() == 1 else None

    def _convert(self, node: fx.Node) -> Term:
        handler = FORMS.get(node.target) if node.op == "call_function" else None
        if node.op == "get_attr":
            constant = self.constant_tensor(node)
            if constant is not None and not isinstance(constant, torch._subclasses.FakeTensor):
                with outside_fake_mode():
                    return self.const(constant.item())
        term = None
        if handler is not None and isinstance(node.meta.get("val"), Tensor):
            term = handler(self, node)
        if term is None:
            value = node.meta.get("val")
            if isinstance(value, Tensor):
                term = self.make("leaf", (), (node.name,), value.dtype, tuple(value.shape))
            else:
                term = self.make("leaf", (), (node.name,), None, ())
        return term
