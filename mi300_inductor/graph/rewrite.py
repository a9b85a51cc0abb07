"""Last stage, and the only place that changes the graph: a region becomes one operator call.

For each region the operator and the nodes that unpack its outputs are put behind the last of its
inputs, uses of the replaced nodes are redirected, and what nobody reads any more is erased. At the
end the graph is sorted again, keeping the original order wherever that is possible.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses import FakeTensor

from mi300_inductor.dtype_codes import as_argument
from mi300_inductor.graph.fake_values import another, layout_of
from mi300_inductor.graph.legality import CHECK
from mi300_inductor.graph.matmul_forms import VECTOR_PRODUCTS
from mi300_inductor.graph.order import is_sorted, sort
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.sizes import size_node
from mi300_inductor.graph.term import Term, same_dim, same_shape
from mi300_inductor.op_schemas import NAMESPACE, overload

_PERMUTE = torch.ops.aten.permute.default
_CONVERT = torch.ops.prims.convert_element_type.default
_RESHAPE = torch.ops.aten.reshape.default
_SLICE = torch.ops.aten.slice.Tensor
# What reads a tensor's memory by its strides, whatever they are.
_LAYOUT_READERS = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
)


class Rewriter:
    """Rewrites regions of one graph; call `finish` after the last one."""

    def __init__(self, graph: fx.Graph) -> None:
        """See the class; at least one value of the graph must be fake."""
        self._graph = graph
        self._order = {node: float(index) for index, node in enumerate(graph.nodes)}
        self._replaced: dict[fx.Node, fx.Node] = {}
        self._results: set[fx.Node] = set()
        self._merged: dict[fx.Node, fx.Node] = {}
        self._fresh: list[fx.Node] = []
        self._region: frozenset[fx.Node] = frozenset()
        self._made: dict[Any, Any] = {}
        values = (node.meta.get("val") for node in graph.nodes)
        self._fake_mode = next(v.fake_mode for v in values if isinstance(v, FakeTensor))

    def rewrite(self, region: Region, nodes: frozenset[fx.Node]) -> fx.Node:
        """Replaces a region; returns the call of the operator."""
        self._region = nodes
        sources = [self._node(term) for term in region.input_terms() if not term.is_const]
        last = max(sources, key=self._order.__getitem__, default=None)
        first_output = min(region.output_nodes(), key=self._order.__getitem__)
        before = last.next if last is not None else first_output
        with self._graph.inserting_before(before):
            call = self._call(region, first_output)
            self._redirect(region, call, first_output)
        position = self._order[last] if last is not None else self._order[first_output]
        self._number_new_nodes(position)
        self._erase_unused(nodes)
        return call

    def merge(self, calls: Sequence[fx.Node]) -> None:
        """Replaces several calls of `skinny_gemm`, of `merge.siblings`, by one call for all."""
        first = calls[0]
        *operands, _addend, out_dtype = zip(*(call.args for call in calls), strict=True)
        lists = [None if values[0] is None else list(values) for values in operands]
        with self._graph.inserting_before(first):
            merged = self._new(overload("skinny_gemm_list"), (*lists, out_dtype[0]), first)
            results = [self._new(operator.getitem, (merged, i), c) for i, c in enumerate(calls)]
        # As early as the first of the calls; sorting puts it behind its operands.
        for offset, node in enumerate((merged, *results)):
            self._order[node] = self._order[first] + offset * 1e-6
        for call, result in zip(calls, results, strict=True):
            call.replace_all_uses_with(result, propagate_meta=False)
            self._replaced[call] = result
            self._merged[call] = merged
            self._graph.erase_node(call)

    def call_of(self, call: fx.Node) -> fx.Node:
        """The node that makes a call of `rewrite` now."""
        return self._merged.get(call, call)

    def finish(self) -> None:
        """Erases what only reshapes and is not read now, sorts the graph and checks it."""
        for target in (_PERMUTE, _CONVERT, _RESHAPE, _SLICE):
            for node in self._graph.find_nodes(op="call_function", target=target):
                if not node.users:
                    self._graph.erase_node(node)
        if not is_sorted(self._graph):
            sort(self._graph, self._order)
        self._graph.lint()

    def replacements(self) -> dict[str, str]:
        """Name of each replaced node to the name of the node that holds its value now."""
        return {old.name: self._current(old).name for old in self._replaced}

    def _current(self, node: fx.Node) -> fx.Node:
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def _node(self, term: Term) -> fx.Node:
        """The earliest node that holds a term's value now, of those that the region reads.

        Another node with the same value may be inside a region, and gone.
        """
        read = [
            n for n in term.nodes if n in self._replaced or not self._region.isdisjoint(n.users)
        ]
        return self._current(min(read or term.nodes, key=self._order.__getitem__))

    def _call(self, region: Region, like: fx.Node) -> fx.Node:
        operation = overload(region.op)
        arguments: list[Any] = []
        for argument in operation._schema.arguments:
            name = argument.name
            if name in region.params:
                arguments.append(as_argument(argument, region.params[name]))
            else:
                arguments.append(self._input(region, name, region.inputs[name], like))
        return self._new(operation, tuple(arguments), like)

    def _input(
        self, region: Region, name: str, value: Term | list[Term] | None, like: fx.Node
    ) -> Any:
        shape = region.rows.shape
        if value is None:
            return None
        if isinstance(value, list):
            return [self._scale(term, like) for term in value]
        if name in ("x", "residual", "gate", "up"):
            return self._reshaped(self._node(value), shape, like)
        if name in ("scale_a", "scale_b", "scale"):
            return self._scale(value, like)
        if region.kind == "skinny_gemm":
            return self._matmul_operand(region, name, self._node(value), like)
        if name == "weight":
            return self._reshaped(self._node(value), shape[-1:], like)
        return self._node(value)

    def _matmul_operand(self, region: Region, name: str, node: fx.Node, like: fx.Node) -> fx.Node:
        """An operand of a matmul operator, whose tensors are 2-D; a batch and a vector are not."""
        shape = node.meta["val"].shape
        if name == "weight" and region.rows.op not in VECTOR_PRODUCTS:
            return self._transposed(self._reshaped(node, shape[-2:], like), like)
        if name == "a" or (name == "addend" and len(shape) > 1):
            return self._reshaped(node, (math.prod(shape[:-1]), shape[-1]), like)
        return self._reshaped(node, shape[-1:], like) if name == "bias" else node

    def _scale(self, term: Term, like: fx.Node) -> fx.Node:
        """A static scale as an fp32 tensor of one element."""
        if term.is_const:
            device = like.meta["val"].device
            return self._new(
                torch.ops.aten.full.default,
                ([1], term.value),
                like,
                {"dtype": torch.float32, "device": device, "pin_memory": False},
            )
        if term.dtype != torch.float32:
            return self._new(_CONVERT, (self._node(term), torch.float32), like)
        return self._node(term)

    def _transposed(self, node: fx.Node, like: fx.Node) -> fx.Node:
        """The [n, k] tensor of which a matmul's second operand is the transpose."""
        if node.target is _PERMUTE and list(node.args[1]) in ([1, 0], [-1, -2]):  # type: ignore[arg-type]
            source = node.args[0]
            assert isinstance(source, fx.Node)
            return source
        return self._new(_PERMUTE, (node, [1, 0]), like)

    def _redirect(self, region: Region, call: fx.Node, like: fx.Node) -> None:
        returns = [ret.name for ret in call.target._schema.returns]  # type: ignore[union-attr]
        for index, name in enumerate(returns):
            stacked = region.outputs.get(name or "out")
            if stacked is None:
                continue
            value = call
            if len(returns) > 1:
                value = self._new(operator.getitem, (call, index), like)
            for position, terms in enumerate(stacked):
                part = value
                if len(stacked) > 1:
                    select = torch.ops.aten.select.int
                    part = self._new(select, (value, 0, position), like)
                for term in terms:
                    for node in term.nodes:
                        self._replace(node, part)

    def _replace(self, node: fx.Node, value: fx.Node) -> None:
        shaped = self._reshaped(value, node.meta["val"].shape, node)
        if node.meta["val"].dtype != shaped.meta["val"].dtype:
            # A computed scale is fp32, also where it is a half in the graph.
            shaped = self._new(_CONVERT, (shaped, node.meta["val"].dtype), node)
        if any(user.target in _LAYOUT_READERS for user in node.users):
            shaped = self._laid_out(shaped, node)
        if any(user.op == "output" for user in node.users):
            # A slice of the stacked result would keep all of it alive behind the user's back, and
            # what eager returns as two tensors must not become one.
            if value.target is torch.ops.aten.select.int or value in self._results:
                shaped = self._new(torch.ops.aten.clone.default, (shaped,), node)
            self._results.add(value)
        node.replace_all_uses_with(shaped, propagate_meta=False)
        self._replaced[node] = shaped

    def _reshaped(self, node: fx.Node, shape: Sequence[Any], like: fx.Node) -> fx.Node:
        if same_shape(tuple(node.meta["val"].shape), tuple(shape)):
            return node
        symbolic = [dim for dim in shape if not isinstance(dim, int)]
        if len(symbolic) == 1 and 0 not in shape:
            sizes = [dim if isinstance(dim, int) else -1 for dim in shape]
        else:
            sizes = [self._size(dim, node) for dim in shape]
        return self._new(_RESHAPE, (node, sizes), like)

    def _laid_out(self, node: fx.Node, like: fx.Node) -> fx.Node:
        """The same values, dense in memory in the order of another node's dimensions.

        Operators give contiguous results; what they replace may have the layout of its inputs.
        """
        strides = like.meta["val"].stride()
        if same_shape(tuple(node.meta["val"].stride()), tuple(strides)):
            return node
        order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
        inverse = [order.index(dim) for dim in range(len(order))]
        ordered = self._new(_PERMUTE, (node, order), like)
        clone = torch.ops.aten.clone.default
        dense = {"memory_format": torch.contiguous_format}
        return self._new(_PERMUTE, (self._new(clone, (ordered,), like, dense), inverse), like)

    def _size(self, dim: Any, source: fx.Node) -> Any:
        """A size as an argument: a number, or a node that holds the symbol."""
        if isinstance(dim, int):
            return dim
        known = size_node(self._graph, dim)
        if known is not None:
            return known
        for tensor in (source, *self._graph.find_nodes(op="placeholder")):
            value = tensor.meta.get("val")
            for index, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
                if same_dim(size, dim):
                    return self._new(torch.ops.aten.sym_size.int, (tensor, index), source)
        raise RuntimeError(
            f"rewrite: a size cannot be expressed; got {dim}, expected a size of an input. "
            "Please report the model."
        )

    def _new(
        self,
        target: Any,
        args: tuple[Any, ...],
        like: fx.Node,
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        """A new call with the metadata that later passes rely on."""
        node = self._graph.call_function(target, args, kwargs or {})
        self._fresh.append(node)
        node.meta["val"] = self._value(target, args, kwargs or {})
        for key in ("stack_trace", "original_aten", "from_node"):
            if key in like.meta:
                node.meta[key] = like.meta[key]
        return node

    def _value(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The fake value of a call; results of an operator of ours are made after those before."""
        if target is operator.getitem:
            return args[0].meta["val"][args[1]]
        values = fx.map_arg(args, lambda node: node.meta["val"])
        key = layout_of((target, values)) if target.namespace == NAMESPACE else None
        if key in self._made:
            return another(self._made[key])
        with self._fake_mode:
            value = target(*values, **kwargs)
        if key is not None:
            self._made[key] = value
        return value

    def _number_new_nodes(self, position: float) -> None:
        """Gives new nodes places just behind a position, in the order of their creation."""
        for count, node in enumerate(self._fresh, 1):
            self._order[node] = position + count / (len(self._fresh) + 1)
        self._fresh.clear()

    def _erase_unused(self, nodes: frozenset[fx.Node]) -> None:
        for node in sorted(nodes, key=self._order.__getitem__, reverse=True):
            if any(user.target is not CHECK for user in node.users):
                continue
            for check in list(node.users):
                self._graph.erase_node(check)
            self._graph.erase_node(node)
