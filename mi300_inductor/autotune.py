"""Do no harm: with `mode="max-autotune"` every kind of rewrite is measured against Inductor's code.

Each distinct region (operator, parameters, shapes) is taken out of the graph twice, as it is and
rewritten; Inductor compiles both, they run in turn on the device, and a rewrite that loses is
undone. A size that is a symbol takes the value it has in this compilation. Results are cached with
the versions of everything that they depend on, so that a second process decides the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor import cache, inductor
from mi300_inductor.gemm_tuning import tune_graph
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.region import Plan, Refused, Region
from mi300_inductor.measure import compile_alone, example, extract, time_undisturbed, versions

log = logging.getLogger(__name__)

# A rewrite may be this much slower than Inductor's code; less is noise.
TOLERANCE = 1.02


@dataclass(frozen=True)
class Measured:
    """Seconds of a region as Inductor compiles it, and of the operator."""

    before: float
    after: float

    @property
    def is_loss(self) -> bool:
        """Whether the rewrite is to be undone."""
        return self.after > self.before * TOLERANCE

    def __str__(self) -> str:
        """Both times in microseconds."""
        return f"measured {self.before * 1e6:.3g} -> {self.after * 1e6:.3g} us"


# Rewrites a module that holds the nodes of one region, in place; says how many rewrites it made.
Rewrite = Callable[[fx.GraphModule], int]


def undo_losers(plan: Plan, rewrite: Rewrite) -> dict[Region, Measured]:
    """Moves regions that are slower than Inductor's code from a plan to its refusals.

    Args:
        plan: What would be rewritten.
        rewrite: The engine without this step.

    Returns:
        The times of the regions that stay. A region that cannot be measured stays, without times.
    """
    known: dict[str, Measured | None] = {}
    times: dict[Region, Measured] = {}
    kept = []
    for region, nodes in plan.regions:
        key = signature(region, nodes)
        if key not in known:
            known[key] = _measured_once(key, region, nodes, rewrite)
        found = known[key]
        if found is not None and found.is_loss:
            refusal = Refusal(
                f"{found} on {_device(region)}: slower than Inductor's code",
                "Nothing to change: the rewrite was undone.",
            )
            plan.refused.append(Refused(region.kind, region.rows, refusal))
            continue
        if found is not None:
            times[region] = found
        kept.append((region, nodes))
    plan.regions[:] = kept
    return times


def signature(region: Region, nodes: frozenset[fx.Node]) -> str:
    """Equal for regions that run the same: operator, parameters, and the tensors at their ends."""
    tensors = {name: _describe(value) for name, value in region.inputs.items()}
    outputs = {
        name: [len(_needed(terms[0].nodes, nodes)) for terms in stacked]
        for name, stacked in region.outputs.items()
    }
    return repr((region.op, sorted(region.params.items()), tensors, outputs, len(nodes)))


def _describe(value: Any) -> Any:
    if isinstance(value, list):
        return [_describe(one) for one in value]
    if value is None or not value.nodes:
        return repr(value)
    tensor = value.node.meta["val"]
    if not isinstance(tensor, Tensor):
        return repr(tensor)
    sizes = [tuple(example(size) for size in part) for part in (tensor.shape, tensor.stride())]
    return (str(tensor.dtype), *sizes)


def _measured_once(
    key: str, region: Region, nodes: frozenset[fx.Node], rewrite: Rewrite
) -> Measured | None:
    """The cached times of a region, measured if there are none; None if that is not possible."""

    def measure(path: Path) -> None:
        before, after = _measure(region, nodes, rewrite)
        path.write_text(json.dumps({"before": before, "after": after}))

    try:
        path = cache.cached(("autotune", key, *versions(_device(region))), "times.json", measure)
        return Measured(**json.loads(path.read_text()))
    except Exception as error:
        # Whatever goes wrong here must not stop a compilation that works without it.
        log.warning("%s at %s is not measured: %s", region.kind, region.rows.node.name, error)
        log.debug("the whole error", exc_info=True)
        return None


def _device(region: Region) -> torch.device:
    device: torch.device = region.rows.node.meta["val"].device
    return device


def _measure(region: Region, nodes: frozenset[fx.Node], rewrite: Rewrite) -> tuple[float, float]:
    """Seconds of Inductor's code and of the operator on the same inputs.

    Raises:
        RuntimeError: if the region alone is not rewritten as it is in the graph.
    """
    order = {node: index for index, node in enumerate(region.rows.node.graph.nodes)}
    ordered = sorted(nodes, key=order.__getitem__)
    outputs = sorted(_needed(region.output_nodes(), nodes), key=order.__getitem__)
    before, sources = extract(ordered, outputs)
    after, _ = extract(ordered, outputs)
    count = rewrite(after)
    if count != 1:
        raise RuntimeError(
            f"autotune: the region alone is rewritten otherwise; got {count} rewrites, expected 1. "
            "Please report the model."
        )
    after.recompile()
    tune_graph(after.graph)  # a matmul is compared as it will run
    with inductor.outside_fake_mode():
        inputs = [example(source.meta["val"]) for source in sources]
        calls = [compile_alone(module, inputs) for module in (before, after)]
        with torch.no_grad():
            first, second = time_undisturbed(calls, _device(region))
    return first, second


def _needed(outputs: Sequence[fx.Node], nodes: frozenset[fx.Node]) -> list[fx.Node]:
    """The results that something outside the region reads."""
    found = [node for node in outputs if any(user not in nodes for user in node.users)]
    return list(dict.fromkeys(found))
