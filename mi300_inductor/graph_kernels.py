"""A rewritten graph as a list of operations with their kernels, for the roofline.

Operators of this package, matmuls, attention and the like are operations of their own. What is left
are element-wise operations and reductions, which Inductor fuses: nodes that depend on one another
with no library call between them are taken as one kernel, with each outside value read once and
each value that is needed outside written once. Views move nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import networkx
import torch
from torch import Tensor, fx

from mi300_inductor.cost import Kernel
from mi300_inductor.graph.call_work import call_kernels, is_operator

# Matrix products, with the place of the operand whose last dimension is summed over.
_MATMULS = {"mm": 0, "bmm": 0, "_scaled_mm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
_LIBRARY = ("attention", "convolution", "sort", "topk", "fft", "linalg")
# Operations that touch as much of their first input as they return or are given.
_GATHERS = frozenset({"embedding", "index", "gather", "index_select"})
_SCATTERS = frozenset(
    {"index_put", "index_put_", "slice_scatter", "select_scatter", "copy_", "scatter"}
)
# Operations that bring values elsewhere, or into another format, and compute nothing.
_MOVES = frozenset(
    {"cat", "clone", "constant_pad_nd", "convert_element_type", "empty", "expand", "flip", "full"}
    | {"repeat", "rev", "roll", "where"}
)
_REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "argmax", "argmin", "max", "min", "var", "var_mean", "prod"}
)
# Elements that one workgroup of a generated element-wise kernel takes.
_FLAT_ELEMENTS = 1024


@dataclass(frozen=True)
class Operation:
    """Something that runs as a whole.

    Attributes:
        name: What it is, for people.
        kernels: What it launches.
        nodes: Its nodes, in graph order.
        outputs: Those of them that are needed outside.
    """

    name: str
    kernels: tuple[Kernel, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def operations(graph: fx.Graph) -> list[Operation]:
    """The operations of a graph of fixed shapes, in an order in which they can run."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    found: list[tuple[int, Operation]] = []
    order = {node: index for index, node in enumerate(graph.nodes)}
    for nodes in _clusters(calls):
        operation = _cluster(sorted(nodes, key=order.__getitem__))
        if operation is not None:
            found.append((order[operation.nodes[-1]], operation))
    for node in calls:
        if _runs_alone(node):
            found.append((order[node], _alone(node)))
    return [operation for _, operation in sorted(found, key=lambda entry: entry[0])]


def _name(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.partition("::")[2]
    return getattr(target, "__name__", str(target))


def _runs_alone(node: fx.Node) -> bool:
    name = _name(node)
    return is_operator(node) or name in _MATMULS or any(word in name for word in _LIBRARY)


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return not isinstance(node.meta.get("val"), Tensor)
    returns = node.target._schema.returns
    alias = returns[0].alias_info if returns else None
    return alias is not None and not alias.is_write


def _clusters(calls: Collection[fx.Node]) -> Iterator[set[fx.Node]]:
    """Connected nodes with the same number of library calls before them: none can need another."""
    level: dict[fx.Node, int] = {}
    together: networkx.Graph[fx.Node] = networkx.Graph()
    for node in calls:
        sources = [source for source in node.all_input_nodes if source in level]
        level[node] = max((level[s] + _runs_alone(s) for s in sources), default=0)
        if _runs_alone(node):
            continue
        together.add_node(node)
        for source in sources:
            if level[source] == level[node] and not _runs_alone(source):
                together.add_edge(source, node)
    yield from networkx.connected_components(together)


def _cluster(nodes: list[fx.Node]) -> Operation | None:
    """The kernel of some nodes, or None if they are views only."""
    inside = set(nodes)
    working = [node for node in nodes if not _is_view(node) and _tensors(node)]
    if not working:
        return None
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    written = {_base(node) for node in outputs}
    reads: dict[fx.Node, int] = {}
    for node in working:
        for source in _read_by(node):
            base = _base(source)
            if base not in inside:
                size = min(_size(source), _size(base)) if _tensors(base) else _size(source)
                reads[base] = max(reads.get(base, 0), size)
    gathered = sum(_size(node) for node in working if _name(node) in _GATHERS)
    reductions = [node for node in working if _name(node) in _REDUCTIONS]
    width = max((_width(node) for node in reductions), default=0)
    elements = max(_elements(node) for node in working)
    widest = max((_elements(n.all_input_nodes[0]) for n in reductions), default=elements)
    kernel = Kernel(
        name=_title(working),
        source="inductor",
        read=sum(reads.values()) + gathered,
        written=sum(_written(node) for node in written if node in inside),
        flops=sum(_flops(node) for node in working),
        rows=max(1, widest // width) if width else max(1, elements // _FLAT_ELEMENTS),
        width=width,
        trips=2 if width else 1,
    )
    return Operation(kernel.name, (kernel,), tuple(nodes), tuple(outputs))


def _alone(node: fx.Node) -> Operation:
    name = _name(node)
    if is_operator(node):
        return Operation(name, call_kernels(node), (node,), (node,))
    sources = node.all_input_nodes
    parameters = sum(_size(s) for s in sources if _base(s).op in ("placeholder", "get_attr"))
    kernel = Kernel(
        name=name,
        source="library",
        read=sum(_size(source) for source in sources),
        written=_size(node),
        parameters=parameters if name in _MATMULS else 0,
        flops=_library_flops(node, name),
        rows=max(1, _elements(node) // 4096),
        trips=4,
        matrix=_operand(node),
    )
    return Operation(name, (kernel,), (node,), (node,))


def _flops(node: fx.Node) -> int:
    """Floating point operations of an element-wise operation or a reduction."""
    values = [value for one in (node, *node.all_input_nodes) for value in _tensors(one)]
    if not any(value.is_floating_point() for value in values):
        return 0
    name = _name(node)
    if name.startswith("index_put") and node.args[3:4] == (True,):
        return _elements(node.all_input_nodes[-1])  # it accumulates
    if name in _GATHERS | _SCATTERS | _MOVES:
        return 0
    return max(_elements(node), _elements_read(node))


def _library_flops(node: fx.Node, name: str) -> int:
    tensors = [s.meta["val"] for s in node.all_input_nodes if _tensors(s)]
    if name in _MATMULS:
        return 2 * _elements(node) * int(_factor(node).shape[-1])
    if "attention" in name and len(tensors) > 1:
        query, key = tensors[:2]
        return 4 * int(math.prod(query.shape)) * int(key.shape[-2])
    if name == "convolution":
        value, weight = tensors[:2]
        is_transposed = bool(node.args[6])
        positions = value.shape if is_transposed else node.meta["val"].shape
        each = int(math.prod(weight.shape[1:]))
        return 2 * int(math.prod(positions)) * each
    return max(_elements(node), _elements_read(node))


def _factor(node: fx.Node) -> Tensor:
    """The left operand of a matrix product."""
    operand = node.args[_MATMULS[_name(node)]]
    assert isinstance(operand, fx.Node)
    value: Tensor = operand.meta["val"]
    return value


def _operand(node: fx.Node) -> torch.dtype | None:
    name = _name(node)
    if name in _MATMULS:
        return _factor(node).dtype
    if "attention" not in name and "convolution" not in name:
        return None
    tensors = [s.meta["val"] for s in node.all_input_nodes if _tensors(s)]
    return tensors[0].dtype if tensors else None


def _tensors(node: fx.Node) -> list[Tensor]:
    value: Any = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [one for one in values if isinstance(one, Tensor)]


def _elements(node: fx.Node) -> int:
    return sum(math.prod(int(size) for size in t.shape) for t in _tensors(node))


def _elements_read(node: fx.Node) -> int:
    return max((_elements(source) for source in node.all_input_nodes), default=0) * (
        _name(node) in _REDUCTIONS
    )


def _size(node: fx.Node) -> int:
    return sum(math.prod(int(n) for n in t.shape) * t.dtype.itemsize for t in _tensors(node))


def _written(node: fx.Node) -> int:
    """Bytes written by a node; of an update in place, those of the new part."""
    if _name(node) in _SCATTERS:
        parts = [_size(source) for source in node.all_input_nodes[1:]]
        return max(parts, default=_size(node))
    return _size(node)


def _read_by(node: fx.Node) -> list[fx.Node]:
    """The inputs that a node reads as a whole."""
    partly = _name(node) in _GATHERS | _SCATTERS
    return list(node.all_input_nodes[1:] if partly else node.all_input_nodes)


def _base(node: fx.Node) -> fx.Node:
    """What a view is a view of."""
    while node.op == "call_function" and _is_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _width(node: fx.Node) -> int:
    """Elements that a reduction adds up for each result."""
    return max(1, _elements_read(node) // max(1, _elements(node)))


def _title(nodes: Collection[fx.Node]) -> str:
    names = list(dict.fromkeys(_name(node) for node in nodes))
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
