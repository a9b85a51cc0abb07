"""How everything is timed: medians with quartiles, all candidates taking turns in one run.

A candidate is a function of the number of the buffer set that it is to use; whoever makes it has
enough sets that together they exceed the caches. On a GPU all its calls are captured into one graph
and replays are timed with events, or they are queued behind a sleeping kernel, so that the time the
host needs to launch them does not count. On a CPU, and where the host's time is meant to count,
the clock on the wall decides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, TypeVar

import torch
import torch._inductor.config

from benchmarks.host_cache import last_cache_bytes

T = TypeVar("T")
Call = Callable[[int], object]
Prepare = Callable[[], None]
GRAPH_REPLAYS_US = 2000.0  # what one measurement of a graph lasts at least
SHORTEST_US = 1000.0  # and one by the clock on the wall
# Rounds when nothing is said: so many, or where they last longer than LONG_S, not fewer than these.
ROUNDS, FEWEST_ROUNDS, LONG_S = 9, 3, 2.0
# Calls in a graph: at most the first, which bounds the sets of buffers, at least the second.
MOST_SETS, FEWEST_CALLS = 8192, 128
UNKNOWN_CACHE = 2**28  # taken for the last cache of a CPU that says nothing of it


class Unavailable(Exception):
    """Something that was asked for is not there; the text is the one line that says so."""


@dataclass(frozen=True)
class Sample:
    """Microseconds of one call: the median of all measurements and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: list[float]) -> Sample:
        if len(times) == 1:
            return cls(times[0], times[0], times[0])
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return cls(statistics.median(times), low, high)


class Timed(Protocol):
    """A candidate that is ready to be measured."""

    def run(self) -> float:
        """Measures once; returns microseconds per call."""


class WallClock:
    """Calls in a row until the device has done them, by the clock on the wall.

    `count` is the number of calls in one measurement; None takes as many as last a millisecond.
    The sets of buffers go on from one measurement to the next.
    """

    def __init__(
        self,
        call: Call,
        device: torch.device,
        count: int | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        self.call, self.device, self.prepare = call, device, prepare
        self.done, self.count = 0, count or 1
        if count is None:
            self.run()  # compiles, builds, touches pages
            self.count = max(1, int(SHORTEST_US / self.run()))

    def run(self) -> float:
        if self.prepare is not None:
            self.prepare()
        synchronize(self.device)
        start = time.perf_counter()
        for index in range(self.done, self.done + self.count):
            self.call(index)
        synchronize(self.device)
        self.done += self.count
        return (time.perf_counter() - start) * 1e6 / self.count


class GraphReplay:
    """Replays of one graph that holds a call for each set of buffers, of few sets several rounds.

    Where one graph ends and the next begins no launch overlaps the one before; of few calls that
    would be a part of their time. A round's outputs have memory of their own.
    """

    def __init__(self, call: Call, count: int) -> None:
        stream, rounds = torch.cuda.Stream(), -(-FEWEST_CALLS // count)
        with torch.cuda.stream(stream):
            for index in range(min(count, 2)):
                call(index)
            stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                for _ in range(rounds):
                    self.kept: list[object] = []
                    self.kept += [call(index) for index in range(count)]
        self.count, self.replays = rounds * count, 1
        single = self.run() * self.count
        self.replays = max(1, int(GRAPH_REPLAYS_US / single))

    def run(self) -> float:
        start, end = _events()
        self.graph.replay()  # the clocks are up and the launch is behind us when the events come
        start.record()
        for _ in range(self.replays):
            self.graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / (self.replays * self.count)


class Queued:
    """Calls that wait in the stream behind a sleeping kernel: their time without the host's."""

    def __init__(self, call: Call, count: int, prepare: Prepare | None = None) -> None:
        self.call, self.count, self.prepare = call, count, prepare
        wall = WallClock(call, torch.device("cuda"), count, prepare)
        wall.run()
        self.sleep_us = 1.5 * wall.run() * count

    def run(self) -> float:
        if self.prepare is not None:
            self.prepare()
        start, end = _events()
        torch.cuda._sleep(int(self.sleep_us * _sleep_cycles_per_us()))
        start.record()
        for index in range(self.count):
            self.call(index)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / self.count


class DryRun:
    """Calls without a clock; every time is NaN."""

    def __init__(self, call: Call, count: int) -> None:
        self.call, self.count = call, count

    def run(self) -> float:
        for index in range(self.count):
            self.call(index)
        return math.nan


def interleave(
    timed: Mapping[str, Timed], rounds: int | None = None, seconds: float = 0.0
) -> dict[str, Sample]:
    """Measures every candidate in turn, `rounds` times or for `seconds` if that is longer.

    Without `rounds` it is nine times, fewer where they last long. The first round only warms up.
    """
    times: dict[str, list[float]] = {name: [] for name in timed}
    for candidate in timed.values():
        candidate.run()
    start, done = time.perf_counter(), 0
    while not _is_enough(done, rounds, time.perf_counter() - start, seconds):
        for name, candidate in timed.items():
            times[name].append(candidate.run())
        done += 1
    return {name: Sample.of(values) for name, values in times.items()}


def _is_enough(done: int, rounds: int | None, spent: float, seconds: float) -> bool:
    wanted = rounds or (FEWEST_ROUNDS if spent > LONG_S else ROUNDS)
    return done >= wanted and spent >= seconds


def ready(call: Call, count: int, device: torch.device, is_dry: bool = False) -> Timed:
    """The usual way of timing on a device: graph replays on a GPU, the wall clock on a CPU."""
    if is_dry:
        return DryRun(call, count)
    if device.type == "cpu":
        return WallClock(call, device)
    return GraphReplay(call, count)


def compile_in_this_process() -> None:
    """Lets Inductor start no compiling processes: they take a core from what is timed on a CPU."""
    torch._inductor.config.compile_threads = 1


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def cache_bytes(device: torch.device) -> int:
    """Bytes that sets of buffers take together: at least twice the last cache."""
    if device.type == "cpu":
        return 2 * (last_cache_bytes() or UNKNOWN_CACHE)
    if torch.version.hip:
        return 512 * 2**20  # the Infinity Cache, which HIP does not count
    return 2 * int(torch.cuda.get_device_properties(device).L2_cache_size)


def set_count(bytes_per_set: int, device: torch.device, at_most: int = MOST_SETS) -> int:
    """How many sets of buffers are needed to exceed the caches."""
    return max(2, min(at_most, -(-cache_bytes(device) // max(bytes_per_set, 1))))


def take_turns(calls: Mapping[str, Callable[[T], object]], sets: Sequence[T]) -> dict[str, Call]:
    """Each of the calls as a function of a number, which says which of the sets it is given.

    No two start at the same set, so that none finds in the caches what another has just used.
    """
    turns: dict[str, Call] = {}
    for place, (name, call) in enumerate(calls.items()):
        first = place * len(sets) // len(calls)
        turns[name] = lambda at, call=call, first=first: call(sets[(first + at) % len(sets)])
    return turns


def empty_caches(device: torch.device) -> None:
    """Leaves nothing of the sets of buffers in a CPU's caches, which making them has filled."""
    if device.type == "cpu":
        torch.ones(cache_bytes(device), dtype=torch.uint8)


@dataclass(frozen=True)
class Ceilings:
    """What the machine reaches on the simplest work, measured in the same run.

    Attributes:
        read: GB/s of a sum.
        stream: GB/s of an addition, reads and writes counted.
        matmul: TFLOP/s of a large matmul, in bf16; on a CPU in fp32 if that is faster.
    """

    read: float
    stream: float
    matmul: float


def measure_ceilings(device: torch.device, rounds: int = 7) -> Ceilings:
    """Measures the machine, the fastest of some rounds; about a second on either device."""
    is_cpu = device.type == "cpu"
    count, size = (cache_bytes(device) // 4, 1024) if is_cpu else (2**28, 8192)
    a, b, out = (torch.ones(count, device=device) for _ in range(3))
    left, right = torch.randn(2, size, size, device=device).unbind()
    narrow_left, narrow_right = left.bfloat16(), right.bfloat16()
    calls: dict[str, Call] = {
        "read": lambda _: a.sum(),
        "stream": lambda _: torch.add(a, b, out=out),
        "bf16": lambda _: narrow_left @ narrow_right,
    }
    if is_cpu:
        calls["fp32"] = lambda _: left @ right
    timed = {name: ready(call, 1, device) for name, call in calls.items()}
    times = {name: min(one.run() for _ in range(rounds)) for name, one in timed.items()}
    return Ceilings(
        read=4 * count / times["read"] / 1e3,
        stream=12 * count / times["stream"] / 1e3,
        matmul=2 * size**3 / min(times[name] for name in ("bf16", "fp32") if name in times) / 1e6,
    )


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@cache
def _sleep_cycles_per_us() -> float:
    cycles = 2_000_000
    times = []
    for _ in range(3):
        start, end = _events()
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return cycles / min(times)
