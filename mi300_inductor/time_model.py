"""Seconds that a kernel takes on a target, and what bounds it.

A kernel waits for its launch, then for its dependent round trips to memory (load, reduce, store),
then for the slowest of: memory, the shared cache, the compute units that have work (each keeps a
limited number of bytes on their way, so few rows do not fill a device), and arithmetic:

    launch + trips * latency + max(memory, cache, busy compute units, arithmetic)

What a kernel shortly before has written is in the cache if it fits there; weights are not. The
constants are the target's `Timing`. On a CPU latency is 0 and one unit takes all bytes, so that the
same formula is the overhead of a call plus the roofline.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mi300_inductor.arch import ArchSpec
from mi300_inductor.cost import Kernel, Sizes, at

# A row is spread over a cluster up to one row a compute unit, and a workgroup has at least so many
# of its elements, as usual_cluster in csrc/runtime/row_plan_usual.h; from this length on it shows.
SPREAD_WIDTH = 4096
SHARE_WIDTH = 512
# Workgroups of a generated reduction that one compute unit holds at a time.
RESIDENT_ROWS = 12


@dataclass(frozen=True)
class Estimate:
    """Modelled seconds of one or several kernels, by what they wait for."""

    launch: float
    synchronisation: float
    memory: float
    compute: float

    @property
    def total(self) -> float:
        """All of it; memory and compute overlap, and the smaller of them is 0 here."""
        return self.launch + self.synchronisation + self.memory + self.compute

    @property
    def bound(self) -> str:
        """What most of the time is spent on: memory, compute, launch or synchronisation."""
        parts = {
            "memory": self.memory,
            "compute": self.compute,
            "launch": self.launch,
            "synchronisation": self.synchronisation,
        }
        return max(parts, key=parts.__getitem__)

    def __add__(self, other: Estimate) -> Estimate:
        """One after the other."""
        return Estimate(
            self.launch + other.launch,
            self.synchronisation + other.synchronisation,
            self.memory + other.memory,
            self.compute + other.compute,
        )


NOTHING = Estimate(0.0, 0.0, 0.0, 0.0)


@functools.lru_cache(4096)
def estimate(
    kernel: Kernel, spec: ArchSpec, sizes: Sizes = (), working_set: int | None = None
) -> Estimate:
    """The modelled time of a kernel.

    Args:
        kernel: What is launched.
        spec: The target.
        sizes: A number for each symbol of the kernel's expressions.
        working_set: Bytes touched between two uses of the same data; by default those of the
            kernel's activations, so that what its producer wrote is found in the cache.
    """
    timing = spec.timing
    read, written = at(kernel.read, sizes), at(kernel.written, sizes)
    again, parameters = at(kernel.again, sizes), at(kernel.parameters, sizes)
    activations = read - parameters + written
    touched = activations if working_set is None else float(working_set)
    cold = min(1.0, max(0.0, touched / timing.cache_bytes - 1.0))
    latency = _mix(cold, timing.memory_latency, timing.cache_latency)
    if parameters > activations:
        latency = timing.memory_latency
    waits = kernel.trips * latency + kernel.cache_trips * timing.cache_latency
    is_flat = at(kernel.width, sizes) == 0
    share = timing.generated_share if kernel.source == "inductor" and is_flat else 1.0
    memory = parameters / timing.bandwidth + activations * _mix(
        cold, 1 / timing.bandwidth, 1 / timing.cache_bandwidth
    )
    near = read + written + again * timing.again_share
    memory = max(memory / share, near / timing.cache_bandwidth)
    compute = _compute(kernel, at(kernel.flops, sizes), parameters, spec)
    units = _busy_units(kernel, spec, sizes)
    busy = (read + written + again) * latency / (units * timing.bytes_in_flight)
    is_loop = kernel.source == "inductor" and not is_flat
    hidden = max(memory, compute) * (timing.loop_overlap if is_loop else 1.0)
    waits += max(0.0, busy - hidden)
    launch = timing.launch
    if kernel.source == "inductor" and timing.generated_launch is not None:
        launch = timing.generated_launch
    if compute > memory:
        return Estimate(launch, waits, 0.0, compute)
    return Estimate(launch, waits, memory, 0.0)


def total(
    kernels: Iterable[Kernel], spec: ArchSpec, sizes: Sizes = (), working_set: int | None = None
) -> Estimate:
    """The modelled time of kernels that run one after the other."""
    spent, is_called = NOTHING, False
    for kernel in kernels:
        one = estimate(kernel, spec, sizes, working_set)
        is_generated = kernel.source == "inductor" and spec.timing.is_launch_shared
        spent += replace(one, launch=0.0) if is_generated and is_called else one
        is_called = is_generated
    return spent


def _mix(cold: float, memory: float, cache: float) -> float:
    return cold * memory + (1 - cold) * cache


def _busy_units(kernel: Kernel, spec: ArchSpec, sizes: Sizes) -> float:
    """Compute units that have work.

    More units than there are stand for several workgroups on one, of which each waits by itself.
    """
    rows, width = at(kernel.rows, sizes), at(kernel.width, sizes)
    if kernel.source == "inductor" and width:
        # A loop over the row: one workgroup keeps little in flight, several make up for it.
        resident = min(rows, float(spec.cu_count * RESIDENT_ROWS))
        return max(1.0, resident) * spec.timing.generated_rows
    is_spread = kernel.source == "operator" and width >= SPREAD_WIDTH and spec.max_cluster > 1
    if is_spread and rows <= spec.cu_count:
        workgroups = min(float(spec.max_cluster), width / SHARE_WIDTH)
        return min(rows * workgroups, float(spec.cu_count))
    return max(1.0, min(rows, float(spec.cu_count)))


def _compute(kernel: Kernel, flops: float, parameters: float, spec: ArchSpec) -> float:
    """Seconds of arithmetic."""
    timing = spec.timing
    if kernel.matrix is None:
        is_generated = kernel.source == "inductor"
        return flops / (timing.generated_rate if is_generated else timing.vector_rate)
    size = kernel.matrix.itemsize
    for rate in timing.matrix_rates:
        if (rate.source, rate.itemsize) == (kernel.source, size):
            return flops / rate.flops + parameters / size / rate.weights
    peak = {1: spec.peak_fp8, 2: spec.peak_bf16}.get(size, 0.0)
    return flops / (peak * timing.matrix_share or timing.vector_rate)
