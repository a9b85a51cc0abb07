"""What a region costs before and after, and whether a rewrite can win at all.

Before is what Inductor would run, not eager (`unfused.py`). After is the operator: each input read
once, each output written once. A rewrite that saves neither bytes nor launches, and that the time
model finds slower for every size the graph admits, is refused. Where it wins for some sizes it is
made, and the operator takes its other path for the rest.
"""

from __future__ import annotations

import functools
from collections.abc import Collection

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from mi300_inductor import arch
from mi300_inductor.arch import ArchSpec
from mi300_inductor.cost import Cost, Kernel, Number, Sizes, at, symbols_of
from mi300_inductor.graph import unfused
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.region import Plan, Refused, Region
from mi300_inductor.graph.work import MatmulWork, RowWork, matmul_work, row_work
from mi300_inductor.time_model import total

# Stands for each size that is not known while compiling, where one number is shown.
TYPICAL_SIZE = 32
# A modelled loss below this is within the model's own error.
TOLERANCE = 1.1
# Row counts at which a rewrite is tried, within what the graph admits.
SAMPLES = (1, 2, 8, 32, 128, 512, 2048, 8192)
# Elements that one workgroup of a flat operator takes.
FLAT_ELEMENTS = 2048


def cost(region: Region, nodes: Collection[fx.Node] = ()) -> Cost:
    """The kernels of a region with and without the rewrite; `nodes` are the replaced ones."""
    on_gpu = region.rows.node.meta["val"].device.type != "cpu"
    if region.kind == "skinny_gemm":
        return _matmul_cost(region.op, matmul_work(region))
    return _row_cost(region.op, row_work(region, nodes), on_gpu)


# The layers of a model are alike, so that few regions of a graph differ in their cost.
@functools.lru_cache(4096)
def _matmul_cost(op: str, work: MatmulWork) -> Cost:
    return Cost(unfused.matmul_kernels(work), (matmul_operator(op, work),))


@functools.lru_cache(4096)
def _row_cost(op: str, work: RowWork, on_gpu: bool) -> Cost:
    return Cost(unfused.row_kernels(work, on_gpu), row_operator(op, work))


def row_operator(op: str, work: RowWork) -> tuple[Kernel, ...]:
    """The launches of a norm or activation operator."""
    written = work.residual + work.y + work.quantised + work.scales
    read = work.inputs + work.parameters
    is_flat = not work.is_norm and (work.group is None or work.group > 0)
    if work.group == 0:
        # The rows are written unquantised, one workgroup finds the scale, the rest is flat.
        wide = 4 * work.elements
        return (
            _rows(op, work, read, work.residual + work.y + wide),
            Kernel(f"{op}: scale", "operator", 4 * work.rows, work.scales, width=1, trips=2),
            Kernel(
                f"{op}: quantise",
                "operator",
                wide + work.scales,
                work.quantised,
                rows=work.elements / FLAT_ELEMENTS,
            ),
        )
    if is_flat:
        rows = work.elements / FLAT_ELEMENTS
        trips = int(work.group is not None)  # a group's largest element, found by several lanes
        return (
            Kernel(
                *(op, "operator", read, written),
                flops=work.flops,
                rows=rows,
                cache_trips=trips,
            ),
        )
    return (_rows(op, work, read, written),)


def _rows(op: str, work: RowWork, read: Number, written: Number) -> Kernel:
    """A row in registers: load, reduce, store."""
    return Kernel(
        op,
        "operator",
        read,
        written,
        flops=work.flops,
        rows=work.rows,
        width=work.hidden,
        trips=2,
        cache_trips=int(work.is_norm and work.group not in (None, 0)),
    )


def matmul_operator(op: str, work: MatmulWork) -> Kernel:
    """The launch of a matmul operator that does not call the library."""
    return Kernel(
        name=op,
        source="operator",
        read=work.activations + work.weight + work.addend + work.scale,
        written=work.quantised or work.out,
        parameters=work.weight,
        flops=2 * work.m * work.n * work.k + work.epilogue_flops,
        rows=work.n,  # tiles and parts of k fill every unit; see gemm_plan.h
        trips=2,
        cache_trips=2,
        matrix=work.operand,
    )


def drop_losers(plan: Plan) -> None:
    """Moves the regions of a plan that cannot win to its refusals."""
    kept = []
    for region, nodes in plan.regions:
        refusal = refuse(region, cost(region, nodes))
        if refusal is None:
            kept.append((region, nodes))
        else:
            plan.refused.append(Refused(region.kind, region.rows, refusal))
    plan.regions[:] = kept


def refuse(region: Region, spent: Cost) -> Refusal | None:
    """Why a region is not worth rewriting for any size that the graph admits, or None."""
    spec = _target(region)
    value = region.rows.node.meta["val"]
    best = float("inf")
    for sizes in admissible_sizes(spent, value):
        if at(spent.bytes_after, sizes) < at(spent.bytes_before, sizes):
            return None
        if spent.launches_after < spent.launches_before:
            return None
        before, after = total(spent.before, spec, sizes), total(spent.after, spec, sizes)
        best = min(best, after.total / before.total)
    if best <= TOLERANCE:
        return None
    return Refusal(
        f"it saves neither bytes nor launches, and is modelled {best:.2f} times slower than "
        f"Inductor's code on {spec.name} for every size",
        "Nothing to change: Inductor's code is faster here.",
    )


def saving_text(region: Region, spent: Cost) -> str:
    """What a rewrite saves; on a GPU the modelled times of both, `TYPICAL_SIZE` for each symbol."""
    spec = _target(region)
    if spec is arch.CPU:
        return spent.saving  # its constants are of no machine: they only compare
    sizes: Sizes = tuple((symbol, TYPICAL_SIZE) for symbol in _symbols(spent))
    before, after = total(spent.before, spec, sizes), total(spent.after, spec, sizes)
    where = "".join(f", {symbol} = {size}" for symbol, size in sizes)
    return (
        f"{spent.saving}; modelled {before.total * 1e6:.3g} -> {after.total * 1e6:.3g} us "
        f"({spec.name}{where})"
    )


def _target(region: Region) -> ArchSpec:
    """The target of a region; gfx942 if it is a GPU that this machine does not have."""
    device: torch.device = region.rows.node.meta["val"].device
    return arch.detect(device) or arch.GFX942


def _symbols(spent: Cost) -> list[sympy.Symbol]:
    kernels = (*spent.before, *spent.after)
    # Of no rows no byte is moved, but a row has its width all the same.
    used = [symbols_of(k.bytes_moved) | symbols_of(k.rows) | symbols_of(k.width) for k in kernels]
    return sorted(set().union(*used), key=str)


def admissible_sizes(spent: Cost, value: torch.Tensor) -> list[Sizes]:
    """Numbers for the symbols of a cost: samples within the ranges that the graph admits.

    Args:
        spent: The cost.
        value: A fake tensor of the graph, which knows its symbols' ranges.
    """
    symbols = _symbols(spent)
    if not symbols:
        return [()]
    ranges = _ranges(value)
    found: list[Sizes] = []
    for sample in SAMPLES:
        sizes = []
        for symbol in symbols:
            low, high = ranges.get(symbol, (1, SAMPLES[-1]))
            sizes.append((symbol, int(min(max(sample, low), high))))
        if tuple(sizes) not in found:
            found.append(tuple(sizes))
    return found


def _ranges(value: torch.Tensor) -> dict[sympy.Symbol, tuple[float, float]]:
    for size in value.shape:
        if isinstance(size, torch.SymInt):
            known = size.node.shape_env.var_to_range
            return {s: (float(r.lower), float(r.upper)) for s, r in known.items()}
    return {}
