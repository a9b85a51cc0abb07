"""`python -m mi300_inductor roofline`: what each operation of a compiled model costs, and why.

The model is compiled up to the fusion pass and run once; the rewritten graph is taken apart into
operations (`graph_kernels.py`), each of them modelled for the target (`time_model.py`). On the
device at hand each distinct operation is measured alone, too: an operator or library call as it is,
the rest as the code that Inductor makes of it. For a target that is not here it is a model only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, fx

from mi300_inductor import arch, inductor
from mi300_inductor.arch import ArchSpec
from mi300_inductor.cost import at
from mi300_inductor.graph_kernels import Operation, operations
from mi300_inductor.measure import Call, Timer, compile_alone, example, extract, time_calls
from mi300_inductor.options import Options
from mi300_inductor.time_model import Estimate, total

# Bytes of weights that are read before one of them is read again, and copies at most.
_ROTATED, _COPIES = 64e6, 64


@dataclass(frozen=True)
class Entry:
    """One kind of operation of a model at one number of rows.

    Attributes:
        rows: First dimension of the model's arguments.
        name: What it is.
        count: How many of it the model has.
        bytes_moved: Bytes that one of them reads and writes.
        flops: Floating point operations of one of them.
        modelled: Its modelled time, seconds.
        measured: Its measured time in seconds; None where the target is not this device.
        share: Its part of the model's modelled time, all of its kind together.
    """

    rows: int
    name: str
    count: int
    bytes_moved: int
    flops: int
    modelled: Estimate
    measured: float | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Roofline:
    """The entries of a model for a target, for each number of rows the dearest first."""

    spec: ArchSpec
    entries: tuple[Entry, ...]

    @property
    def is_measured(self) -> bool:
        """Whether measured times stand beside the modelled ones."""
        return any(entry.measured is not None for entry in self.entries)

    def __str__(self) -> str:
        """The table."""
        what = "modelled and measured" if self.is_measured else "a model, not measured"
        heads = ["rows", "", "operation", "bytes", "FLOPs", "bound", "modelled us", "share"]
        heads += ["measured us"] * self.is_measured
        lines = []
        for entry in self.entries:
            line: list[Any] = [entry.rows, entry.count, entry.name]
            line += [_quantity(entry.bytes_moved), _quantity(entry.flops), entry.modelled.bound]
            line += [f"{entry.modelled.total * 1e6:.2f}", f"{entry.share:.0%}"]
            if self.is_measured:
                line.append("" if entry.measured is None else f"{entry.measured * 1e6:.2f}")
            lines.append(line)
        table = tabulate(
            lines,
            heads,
            disable_numparse=True,
            colalign=("right", "right", "left", "right", "right", "left", *["right"] * 3)[
                : len(heads)
            ],
            maxcolwidths=[None, None, 48, *[None] * (len(heads) - 3)],
        )
        return f"{self.spec.name}: {what}; times are for one of each\n\n{table}\n\n{self._sums()}"

    def _sums(self) -> str:
        texts = []
        for rows in dict.fromkeys(entry.rows for entry in self.entries):
            here = [entry for entry in self.entries if entry.rows == rows]
            text = f"rows {rows}: modelled {_sum(here, lambda e: e.modelled.total):.1f} us"
            if self.is_measured:
                text += f", measured {_sum(here, lambda e: e.measured or 0.0):.1f} us"
            texts.append(text)
        return "\n".join(texts)


def _sum(entries: Sequence[Entry], seconds: Callable[[Entry], float]) -> float:
    return sum(entry.count * seconds(entry) for entry in entries) * 1e6


def _quantity(value: int) -> str:
    amount = float(value)
    for unit in ("", "k", "M", "G"):
        if amount < 1000:
            return f"{amount:.3g}{unit}"
        amount /= 1000
    return f"{amount:.3g}T"


def target(name: str | None) -> tuple[ArchSpec, torch.device | None]:
    """The constants of a target, and the device on which it can be measured here.

    Args:
        name: cpu, gfx942 or sm_90; None means the device at hand.

    Raises:
        RuntimeError: for an unknown name.
    """
    here = arch.detect()
    if name is None:
        name = here.name if here is not None else "cpu"
    if name == "cpu":
        from mi300_inductor.cpu_timing import measured_cpu

        return measured_cpu(), torch.device("cpu")
    if name not in arch.GPU_ARCHES:
        raise RuntimeError(
            f"roofline: unknown target; got {name}, expected cpu, {' or '.join(arch.GPU_ARCHES)}. "
            "Choose one of these."
        )
    is_here = here is not None and here.name == name
    return arch.GPU_ARCHES[name], torch.device("cuda") if is_here else None


def roofline(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    target_name: str | None = None,
    rows: Sequence[int] | None = None,
    timer: Timer = time_calls,
) -> Roofline:
    """Models, and where possible measures, every operation of a compiled model.

    Args:
        model: A module or function; it is run once for each number of rows, without gradients.
        args: Its arguments.
        kwargs: Its keyword arguments.
        target_name: See `target`.
        rows: Sizes of the first dimension of every tensor argument that has the size of the first
            one's, each once; None takes the arguments as they are.
        timer: Measures calls; see `measure.Timer`.

    Raises:
        RuntimeError: for an unknown target, or arguments without a row to repeat.
    """
    spec, device = target(target_name)
    given = dict(kwargs or {})
    size = _first_size(args, given)
    entries: list[Entry] = []
    for count in dict.fromkeys(rows or (size,)):
        positional = [_with_rows(value, size, count) for value in args]
        named = {name: _with_rows(value, size, count) for name, value in given.items()}
        found = _graphs(model, positional, named)
        entries += _entries(found, count, spec, device, timer)
    return Roofline(spec, tuple(entries))


def _first_size(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim() and value.shape[0]:
            return int(value.shape[0])
    raise RuntimeError(
        "roofline: no rows; got arguments without a tensor that has any, expected one whose first "
        "dimension is the batch. Give the model such an argument."
    )


def _with_rows(value: Any, size: int, rows: int) -> Any:
    """A tensor with its first rows repeated up to another number of rows."""
    if not (isinstance(value, Tensor) and value.dim() and value.shape[0] == size) or rows == size:
        return value
    return value[torch.arange(rows, device=value.device) % size]


def _graphs(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[list[Operation]]:
    """The operations of each graph that the model compiles to."""
    from mi300_inductor import graph

    found: list[list[Operation]] = []

    def visit(gm: fx.GraphModule) -> None:
        graph.run(gm, Options())
        found.append(operations(gm.graph))

    torch.compiler.reset()
    with torch.no_grad():
        inductor.capture_graphs(model, visit)(*args, **kwargs)
    return found


def _entries(
    graphs: Sequence[Sequence[Operation]],
    rows: int,
    spec: ArchSpec,
    device: torch.device | None,
    timer: Timer,
) -> list[Entry]:
    groups: dict[Any, list[Operation]] = {}
    for operation in (one for graph in graphs for one in graph):
        groups.setdefault((operation.name, operation.kernels), []).append(operation)
    found = []
    for (name, kernels), members in groups.items():
        bytes_moved = sum(round(at(kernel.bytes_moved, ())) for kernel in kernels)
        flops = sum(round(at(kernel.flops, ())) for kernel in kernels)
        entry = Entry(rows, name, len(members), bytes_moved, flops, total(kernels, spec))
        if device is not None:
            (seconds,) = timer([_call(members[0], spec)], device)
            entry = replace(entry, measured=seconds)
        found.append(entry)
    whole = sum(entry.count * entry.modelled.total for entry in found)
    shared = [
        replace(entry, share=entry.count * entry.modelled.total / max(whole, 1e-30))
        for entry in found
    ]
    return sorted(shared, key=lambda entry: -entry.share)


def _call(operation: Operation, spec: ArchSpec) -> Call:
    """The operation on inputs of its own: as it is if it is a call, else as Inductor's code.

    Weights rotate among copies that no cache holds together; other inputs are found in the cache,
    as behind the operation that computed them.
    """
    with inductor.outside_fake_mode():
        if len(operation.nodes) > 1 or operation.kernels[0].source == "inductor":
            module, sources = extract(operation.nodes, operation.outputs)
            return compile_alone(module, [example(source.meta["val"]) for source in sources])
        (node,) = operation.nodes
        weights = round(at(operation.kernels[0].parameters, ()))
        most = max(4 * spec.timing.cache_bytes, _ROTATED) if weights else 0
        copies = max(1, min(_COPIES, round(most / max(weights, 1))))
        values = [_arguments(node) for _ in range(copies)]
    turns = itertools.cycle(values)

    def call() -> Any:
        args, kwargs = next(turns)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    return call


def _arguments(node: fx.Node) -> Any:
    return fx.map_arg((node.args, node.kwargs), lambda source: example(source.meta["val"]))
