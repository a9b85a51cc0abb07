"""Whether a region may be replaced: nothing inside is needed elsewhere, no cycle, no write between.

Works on FX nodes, because terms merge nodes that compute the same value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from mi300_inductor.graph.canonicalise import Canonicaliser, writes
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.term import strip, strip_widening
from mi300_inductor.graph.ways import is_differentiated
from mi300_inductor.graph.words import in_words
from mi300_inductor.report_graph import short_source, source_line

# Put by torch.export behind casts; it only compares dtypes and devices, which stay as they are.
CHECK = torch.ops.aten._assert_tensor_metadata.default
_COPY = torch.ops.aten.copy.default


_RESULT_ALONE = (
    "A kernel gives out its result alone: in that line use the result or the input of the fused "
    "part, or compute the value there a second time."
)
_SCALE_ALONE = (
    "A kernel gives out the scale alone: scale = amax / 448 and y / scale, or scale = 448 / amax "
    "and y * scale. Compute from that scale what else is needed, 1 / scale or amax = scale * 448."
)


@dataclass(frozen=True)
class _Taken:
    kind: str
    inputs: frozenset[fx.Node]


class Legality:
    """Checks regions of one graph and remembers which nodes are taken."""

    def __init__(self, graph: fx.Graph, canonical: Canonicaliser) -> None:
        """See the class."""
        self._canonical = canonical
        self._order = {node: index for index, node in enumerate(graph.nodes)}
        self._writes = [self._order[node] for node in graph.nodes if writes(node)]
        self._is_training = any(
            node.op == "placeholder" and node.name.startswith(("primals", "tangents"))
            for node in graph.nodes
        )
        self._taken: dict[fx.Node, _Taken] = {}
        self._has_jumps = False

    def check(self, region: Region) -> Refusal | frozenset[fx.Node]:
        """The nodes a region replaces (outputs included), or the first reason why it may not."""
        outputs, inputs, nodes, derived = self._nodes_of(region)
        refusal = (
            self._overlap(nodes - derived)
            or self._needed_elsewhere(region, nodes, outputs | derived)
            or self._cycle(inputs, outputs)
            or self._write_between(nodes)
            or _several_devices(inputs, outputs)
        )
        return refusal or frozenset(nodes)

    def take(self, region: Region) -> None:
        """Counts a legal region as taken: later regions may not overlap it."""
        outputs, inputs, nodes, derived = self._nodes_of(region)
        taken = _Taken(region.kind, frozenset(inputs))
        self._taken.update(dict.fromkeys(nodes - derived, taken))
        first = min(self._order[node] for node in outputs)
        self._has_jumps |= any(self._order[node] > first for node in inputs)

    def _nodes_of(
        self, region: Region
    ) -> tuple[set[fx.Node], set[fx.Node], set[fx.Node], set[fx.Node]]:
        """Outputs, inputs, all nodes of a region, and those of them that stay cheap to compute."""
        outputs = set(region.output_nodes())
        inputs = {node for term in region.input_terms() for node in term.nodes}
        nodes = self._nodes_between(outputs, inputs)
        derived = {n for n in nodes - outputs if self._is_derived(n, outputs, inputs)}
        return outputs, inputs, nodes, derived

    def _nodes_between(self, outputs: set[fx.Node], inputs: set[fx.Node]) -> set[fx.Node]:
        nodes: set[fx.Node] = set()
        pending = list(outputs)
        while pending:
            node = pending.pop()
            if node in nodes or node in inputs or node.op in ("placeholder", "get_attr"):
                continue
            nodes.add(node)
            pending.extend(_read_by(node))
        return nodes

    def _overlap(self, nodes: Iterable[fx.Node]) -> Refusal | None:
        for node in sorted(nodes, key=self._order.__getitem__):
            if node in self._taken:
                return Refusal(
                    f"{in_words(self._canonical.term(node))} that it needs belongs to a fusion of "
                    f"kind {self._taken[node].kind} already",
                    "Nothing to change: what two fusions want goes to the one that saves more, and "
                    "to a norm before a matmul's epilogue.",
                    is_competition=True,
                )
        return None

    def _needed_elsewhere(
        self, region: Region, nodes: set[fx.Node], available: set[fx.Node]
    ) -> Refusal | None:
        for node in sorted(nodes - available, key=self._order.__getitem__):
            outside = [u for u in node.users if u not in nodes and u.target is not CHECK]
            if not outside:
                continue
            user = min(outside, key=self._order.__getitem__)
            if self._is_sum_of_both(user, node, region):
                return Refusal(
                    f"{node.name}, x * rstd, is multiplied by the weight and added to the product",
                    "Write it as h * (1 + weight) instead of h + h * weight, with 1 + weight in "
                    "float32.",
                )
            inside = f"{node.name}, {self._value_in_words(node)} inside the fusion,"
            if is_differentiated(node):
                return Refusal(
                    f"{inside} is also used by its derivative",
                    "Nothing to change where what is compiled takes a gradient itself: no kernel "
                    "gives out what that needs. A forward that is compiled alone fuses.",
                    is_unsupported=True,
                )
            if user.op != "output":
                line = short_source(source_line(user.meta.get("stack_trace") or ""))
                where = f"also used by {user.name}{f' ({line})' if line else ''}"
                return self._unrounded_sum(node, region, where) or Refusal(
                    f"{inside} is {where}",
                    _SCALE_ALONE if self._is_of_amax(node) else _RESULT_ALONE,
                )
            if self._is_training:
                return Refusal(
                    f"{inside} is saved for backward: gradients are on, and a parameter or an "
                    "input requires one",
                    "If no gradient is needed, call it under torch.no_grad() or inference_mode(), "
                    "with no torch.enable_grad() inside (explain does so for a model in eval() "
                    "mode), or turn it off: model.requires_grad_(False).",
                )
            return self._unrounded_sum(node, region, "a result of the graph") or Refusal(
                f"{inside} is a result of the graph",
                _SCALE_ALONE
                if self._is_of_amax(node)
                else "Do not return this value, or compute it a second time for that.",
            )
        return None

    def _unrounded_sum(self, node: fx.Node, region: Region, where: str) -> Refusal | None:
        """The refusal of a sum that is wanted as it is, beside a norm that reads it rounded."""
        stored = region.outputs.get("residual_out")
        read = stored[0][0] if stored else None
        total = self._canonical.term(node)
        if read is None or read.op != "cast" or strip(read) is not total or total.op != "add":
            return None
        return Refusal(
            f"{node.name}, the sum before the norm in {total.dtype}, is {where}, and the norm "
            f"reads it rounded to {read.dtype}: the operator stores what its norm reads",
            "Compute the sum a second time for that, x + residual, or normalise it unrounded.",
        )

    def _value_in_words(self, node: fx.Node) -> str:
        words = in_words(self._canonical.term(node))
        return words if words.startswith("a") else "a value"

    def _is_of_amax(self, node: fx.Node) -> bool:
        """Whether a value is on the way from a largest value to its scale."""
        term = self._canonical.term(node)
        while term.op in ("max", "min", "cast", "view", "mul", "div"):
            term = next((a for a in term.args if not a.is_const), term.args[0])
        return term.op == "amax"

    def _is_sum_of_both(self, user: fx.Node, inner: fx.Node, region: Region) -> bool:
        """Whether a value inside a norm is added to its result, as in h + h * weight."""
        if user.op != "call_function" or region.inputs.get("weight") is None:
            return False
        term = self._canonical.term(user)
        operands = {strip(operand) for operand in term.args}
        return term.op == "add" and operands == {region.rows, strip(self._canonical.term(inner))}

    def _is_derived(self, node: fx.Node, outputs: set[fx.Node], inputs: set[fx.Node]) -> bool:
        """Whether a node stays cheap to compute: a constant, or a cast or view of an end."""
        if not node.all_input_nodes:
            return True
        term = self._canonical.term(node)
        base = strip_widening(term)
        while base.op in ("view", "expand"):  # with other rows
            base = strip_widening(base.args[0])
        if base is term:
            return False
        return any(source in outputs or source in inputs for source in base.nodes)

    def _cycle(self, inputs: set[fx.Node], outputs: set[fx.Node]) -> Refusal | None:
        """Refuses when an input depends on an output, regions taken before being one node each."""
        first = min(self._order[node] for node in outputs)
        pending, seen = list(inputs), set[fx.Node]()
        while pending:
            node = pending.pop()
            if node in outputs:
                return Refusal(
                    f"an input of the fusion is computed from {node.name}, one of its results",
                    "Compute it (a scale, for example) from something else.",
                )
            # What comes before the first output cannot depend on it, unless a region taken before
            # has inputs behind its first output.
            if node in seen or (self._order[node] < first and not self._has_jumps):
                continue
            seen.add(node)
            pending.extend(node.all_input_nodes)
            if node in self._taken:
                pending.extend(self._taken[node].inputs)
        return None

    def _write_between(self, nodes: set[fx.Node]) -> Refusal | None:
        positions = [self._order[node] for node in nodes]
        if any(min(positions) < write < max(positions) for write in self._writes):
            return Refusal(
                "a write in place stands between the parts",
                "Write after the fused part, or out of place.",
            )
        return None


def _read_by(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values a node reads: a copy that fills a tensor reads none of that tensor.

    Slices of one buffer are filled one after the other, each copy into what the one before left.
    """
    return [node.args[1]] if node.target is _COPY else node.all_input_nodes  # type: ignore[list-item]


def _several_devices(inputs: Iterable[fx.Node], outputs: Iterable[fx.Node]) -> Refusal | None:
    devices = {
        node.meta["val"].device
        for node in (*inputs, *outputs)
        if isinstance(node.meta.get("val"), torch.Tensor)
    }
    if len(devices) > 1:
        names = " and ".join(sorted(str(device) for device in devices))
        return Refusal(f"the tensors are on {names}", "Move them to one device.")
    return None
