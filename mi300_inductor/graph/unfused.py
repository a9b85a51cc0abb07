"""The kernels that Inductor would launch for a region, so that a gain is one over Inductor.

On a GPU it fuses element-wise operations into the reduction before or behind them, as long as both
go over the same rows. A row longer than its persistent kernel holds is read again in every pass.
A reduction over groups or over the whole tensor has other rows than the norm and is a kernel of its
own, one over the whole tensor two. A matmul is a library call, an addition behind it a kernel.

On a CPU the loops of an add are not those of the reduction behind it, the scales of groups are
computed between two loops, and the result of an activation (`exp` is dear there) is stored if
it is read twice. The tests compare with Inductor's own count of bytes and kernels.
"""

from __future__ import annotations

from dataclasses import replace

from mi300_inductor.cost import Kernel, Number
from mi300_inductor.graph.work import (
    AMAX_FLOPS,
    NORM_FLOPS,
    QUANT_FLOPS,
    SILU_FLOPS,
    MatmulWork,
    RowWork,
)

# Elements that one workgroup of a generated element-wise kernel takes.
FLAT_ELEMENTS = 1024
# Rows and columns of a library's tile.
TILE = 128


def row_kernels(work: RowWork, on_gpu: bool) -> tuple[Kernel, ...]:
    """The kernels of a norm or an activation."""
    if not work.is_norm:
        return _activation(work, on_gpu)
    add: tuple[Kernel, ...] = ()
    source = work.inputs
    if work.residual != 0 and work.is_residual_used and not on_gpu:
        add = (_flat("add", work.inputs, work.residual, work.elements, work.elements),)
        work = replace(work, inputs=work.residual, residual=0)
        source = work.inputs
    elif work.residual != 0 and work.is_residual_used:
        source = work.residual
    stored = work.residual if work.is_residual_used else 0
    if work.group is None or work.group == -1:
        return (*add, _one_kernel(work, source, stored))
    return (*add, *_two_rows(work, source, stored, on_gpu))


def _one_kernel(work: RowWork, source: Number, stored: Number) -> Kernel:
    """Norm or activation with everything behind it that goes over whole rows."""
    reductions = work.is_norm + (work.group is not None)
    again = 0 if work.is_persistent else reductions * source
    return Kernel(
        name="reduction",
        source="inductor",
        read=work.inputs + work.parameters,
        written=stored + work.y + work.quantised + work.scales,
        again=again,
        flops=work.flops,
        rows=work.rows,
        width=work.hidden,
        trips=2,
        cache_trips=0 if work.is_persistent else reductions,
    )


def _two_rows(work: RowWork, source: Number, stored: Number, on_gpu: bool) -> tuple[Kernel, ...]:
    """A norm whose scales are taken over groups or the whole tensor."""
    per_row = 4 * work.rows
    # Loops over groups lie inside those over rows on a CPU: each group's largest element comes too.
    has_amax = bool(work.group) and not on_gpu
    flops = NORM_FLOPS + AMAX_FLOPS if has_amax else NORM_FLOPS - 2
    parameters, largest = (work.parameters, work.scales) if has_amax else (0, 0)
    first = Kernel(
        name="reduction",
        source="inductor",
        read=work.inputs + parameters,
        written=stored + per_row + largest,
        flops=work.elements * (flops + (work.residual != 0)),
        rows=work.rows,
        width=work.hidden,
        trips=2,
    )
    weighted = source + per_row + work.parameters
    flops = work.elements * (NORM_FLOPS - 2)
    scaled = _scaled(work, weighted, flops, on_gpu)
    return (first, *(scaled[1:] if has_amax else scaled))


def _scaled(work: RowWork, source: Number, flops: Number, on_gpu: bool) -> tuple[Kernel, ...]:
    """Scales over groups or the whole tensor and the quantisation, from values read as `source`."""
    quantise = flops + work.elements * QUANT_FLOPS * work.quants
    amax = flops + work.elements * AMAX_FLOPS
    if work.group and on_gpu:
        # A group fits into registers: its largest element and its codes in one pass.
        written = work.quantised + work.scales + work.y
        both = quantise + work.elements * AMAX_FLOPS
        groups = work.elements / work.group
        return (
            Kernel(
                "group reduction", "inductor", source, written, 0, 0, both, groups, work.group, 2
            ),
        )
    one = work.scales
    largest = _rows_of("amax", source, one, amax, work)
    codes = _flat("quantise", source + one, work.quantised + work.y, quantise, work.elements)
    finish = Kernel("scale", "inductor", one, one, trips=1)
    return (largest, finish, codes)


def _activation(work: RowWork, on_gpu: bool) -> tuple[Kernel, ...]:
    read, written = work.inputs + work.parameters, work.y + work.quantised + work.scales
    if work.group is None:
        return (_flat("element-wise", read, written, work.flops, work.elements),)
    if work.group == -1:
        return (_one_kernel(work, work.inputs, 0),)
    activated = work.elements * SILU_FLOPS
    if on_gpu:
        return _scaled(work, read, activated, on_gpu)
    wide = work.activated
    store = _flat("element-wise", read, wide, activated, work.elements)
    if work.group:
        quantise = work.elements * (AMAX_FLOPS + QUANT_FLOPS * work.quants)
        return (store, _rows_of("group reduction", wide, written, quantise, work))
    return (store, *_scaled(work, wide, 0, on_gpu))


def _flat(name: str, read: Number, written: Number, flops: Number, elements: Number) -> Kernel:
    rows = elements / FLAT_ELEMENTS
    return Kernel(name, "inductor", read, written, flops=flops, rows=rows)


def _rows_of(name: str, read: Number, written: Number, flops: Number, work: RowWork) -> Kernel:
    return Kernel(
        name,
        "inductor",
        read,
        written,
        flops=flops,
        rows=work.rows,
        width=work.hidden,
        trips=2,
    )


def matmul_kernels(work: MatmulWork) -> tuple[Kernel, ...]:
    """The library's call, and a kernel for an addition and a quantisation behind it."""
    product = Kernel(
        name="matmul",
        source="library",
        read=work.activations + work.weight,
        written=work.out,
        parameters=work.weight,
        flops=2 * work.m * work.n * work.k,
        rows=work.n / TILE * 4,  # k is cut where few tiles leave units idle
        trips=4,  # load, tile, sum of the parts of k, store
        matrix=work.operand,
    )
    if work.addend == work.quantised == 0:
        return (product,)
    read, written = work.out + work.addend + work.scale, work.quantised or work.out
    name = "quantise" if work.addend == 0 else "add"
    return (product, _flat(name, read, written, work.epilogue_flops, work.m * work.n))
