"""`check_numerics`: the original nodes run beside each fused operator, on the first real inputs.

The pass keeps a copy of the graph as it leaves it, with a check put behind each fused operator; a
check holds the replaced nodes as a module of their own. At the first call this copy is interpreted
in eager on the call's inputs, and then the compiled code runs as usual. Both sides of a check get
the same inputs, so that an error is found where it arises.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from mi300_inductor import numerics
from mi300_inductor.dtype_codes import with_dtypes
from mi300_inductor.op_checks import FP8_DTYPES
from mi300_inductor.op_schemas import overload
from mi300_inductor.report import Fusion
from mi300_inductor.report_graph import short_source

log = logging.getLogger(__name__)


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of a module whose graph can be changed on its own."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def add_checks(before: fx.GraphModule, after: fx.GraphModule, result: Any) -> fx.GraphModule:
    """A copy of `after` that checks each fused operator while it is interpreted.

    Args:
        before: Copy of the graph that the pass was given.
        after: The graph that it left.
        result: `graph.PassResult`.
    """
    checked = copy_graph(after)
    nodes = {node.name: node for node in checked.graph.nodes}
    originals = {node.name: node for node in before.graph.nodes}
    position = {node: i for i, node in enumerate(checked.graph.nodes)}
    now = {name: nodes.get(result.replacements.get(name, name)) for name in originals}
    for number, (fusion, name) in enumerate(zip(result.fused, result.calls, strict=True)):
        call = nodes[name]
        outputs = [originals[o] for o in fusion.outputs if now[o] is not None]
        original, sources = _extract(before, outputs, {n for n in now if now[n] is not None})
        inputs, values = [now[s] for s in sources], [now[o.name] for o in outputs]
        roles = [_role(value, call) for value in values if value is not None]
        check = Check(fusion, call.target, original, roles, _member(values[0], call))
        checked.add_module(f"check_{number}", check)
        last = max((n for n in (*values, *inputs, call) if n), key=position.__getitem__)
        with checked.graph.inserting_after(last):
            checked.graph.call_module(f"check_{number}", (inputs, call.args, values))
    checked.recompile()
    return checked


def _extract(
    before: fx.GraphModule, outputs: Sequence[fx.Node], available: set[str]
) -> tuple[fx.GraphModule, list[str]]:
    """The nodes that compute `outputs` from values that the new graph still has.

    Returns:
        The module, and the names of its inputs in the old graph.
    """
    inputs: dict[fx.Node, None] = {}
    inner: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source in inputs or source in inner:
                continue
            if source.name in available and source not in outputs:
                inputs[source] = None
            else:
                visit(source)
        inner[node] = None

    for node in outputs:
        visit(node)
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in inner:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(before, graph), [node.name for node in inputs]


def _role(value: fx.Node, call: fx.Node) -> str:
    """Name of the operator's output that a node unpacks and reshapes."""
    returns = call.target._schema.returns  # type: ignore[union-attr]
    index = _index(value, call) if len(returns) > 1 else None
    return str(returns[index or 0].name or "out")


def _member(value: fx.Node | None, call: fx.Node) -> int | None:
    """Which result of a call for several fusions a node reshapes; None if it is for one."""
    is_for_several = call.target is overload("skinny_gemm_list")
    return _index(value, call) if is_for_several and value is not None else None


def _index(value: fx.Node, call: fx.Node) -> int | None:
    node = value
    while node is not call:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if node.target is operator.getitem and source is call:
            index = node.args[1]
            assert isinstance(index, int)
            return index
        node = source
    return None


class Check(nn.Module):
    """Compares the values of one fused operator with those of the nodes it replaced.

    Args:
        fusion: What was fused.
        target: The operator.
        original: The replaced nodes.
        roles: For each value the name of the operator's output it comes from.
        member: Which of the fusions that one call serves this is; None if it serves one.
    """

    def __init__(
        self,
        fusion: Fusion,
        target: Any,
        original: fx.GraphModule,
        roles: Sequence[str],
        member: int | None = None,
    ) -> None:
        """See the class."""
        super().__init__()
        self.fusion, self.original, self.roles = fusion, original, tuple(roles)
        self.argument_names = [argument.name for argument in target._schema.arguments]
        self.member = member

    def forward(self, inputs: list[Any], arguments: Any, values: list[Tensor]) -> None:
        """Raises `NumericsError` if a value is out of bounds."""
        wanted = fx.Interpreter(self.original).run(*inputs)
        settings = self._settings(arguments)
        same_scale = None
        by_role = list(zip(self.roles, values, wanted, strict=True))
        for role, got, want in by_role:
            if role == "scale":
                same_scale = got.reshape(-1) == want.reshape(-1)
        for role, got, want in by_role:
            where = f"{self.fusion.kind} {role} ({short_source(self.fusion.source)})"
            self._compare(role, where, got, want, settings, same_scale)

    def _settings(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """This fusion's arguments by their names, also of a call that serves several."""
        settings = with_dtypes(dict(zip(self.argument_names, arguments, strict=True)))
        if self.member is None:
            return settings
        for name, value in settings.items():
            if isinstance(value, list | tuple):
                settings[name] = value[self.member]
        return {**settings, "addend": None}

    def _compare(
        self,
        role: str,
        where: str,
        got: Tensor,
        want: Tensor,
        settings: Mapping[str, Any],
        same_scale: Tensor | None,
    ) -> None:
        roundings = numerics.count_roundings(settings)
        if self.fusion.kind == "skinny_gemm" and role == "q":
            # The sums' order may round any value otherwise, and so any code.
            numerics.check_codes(where, got, want, same_scale=torch.zeros(1, device=got.device))
        elif self.fusion.kind == "skinny_gemm":
            numerics.check_matmul(where, got, want, settings)
        elif role == "residual_out":
            numerics.check_equal(where, got, want)
        elif role == "scale":
            # Rounded forms round the reciprocal of the largest value, and the scale.
            roundings += 2 * settings["scale_form"].endswith("_rounded")
            numerics.check_scale(where, got, want, roundings, settings["y_dtype"])
        elif got.dtype in FP8_DTYPES:
            numerics.check_codes(where, got, want, same_scale)
        else:
            numerics.check_close(where, got, want, roundings)


class CheckedCall:
    """A compiled graph that is checked at its first call.

    Args:
        checked: From `add_checks`.
        compiled: Inductor's compiled function, which takes a list that it may empty.
    """

    _boxed_call = True

    def __init__(self, checked: fx.GraphModule, compiled: Callable[..., Any]) -> None:
        """See the class."""
        self._checked: fx.GraphModule | None = checked
        self._compiled = compiled

    def __call__(self, inputs: list[Any]) -> Any:
        """Runs the graph, after the checks if this is the first call."""
        if self._checked is not None:
            checked, self._checked = self._checked, None
            with torch.no_grad():
                fx.Interpreter(checked).run(*_protect(checked, inputs))
            count = sum(node.op == "call_module" for node in checked.graph.nodes)
            log.info("check_numerics: %d fused operators agree", count)
        return self._compiled(inputs)


def _protect(checked: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with copies of those that the graph may write to."""
    readers = [n for n in checked.graph.nodes if n.op == "call_function" and _may_write(n)]
    written = {source for node in readers for source in node.all_input_nodes}
    placeholders = checked.graph.find_nodes(op="placeholder")
    return [
        value.clone() if isinstance(value, Tensor) and node in written else value
        for node, value in zip(placeholders, inputs, strict=True)
    ]


def _may_write(node: fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    return isinstance(node.target, torch._ops.HigherOrderOperator)
