"""Measures pieces of a graph: inputs made from metadata, Inductor's code for them, and a clock.

`roofline.py` measures every operation of a model this way, `autotune.py` an operator against the
nodes that it replaces, `gemm_tuning.py` the plans of a matmul against one another.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from mi300_inductor import build, inductor

Call = Callable[[], Any]
# Measures calls in turn on a device; returns seconds for each.
Timer = Callable[[Sequence[Call], torch.device], list[float]]

# Seconds that one call is measured for, in rounds that go over all calls.
ENOUGH = 0.05
ROUNDS = 9


def time_calls(calls: Sequence[Call], device: torch.device) -> list[float]:
    """Median seconds of each call; the calls take turns, so that a disturbance meets all alike.

    On a GPU the calls are captured into graphs, so that launches cost what they cost in a graph.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return _time_graphs(calls)
    repeats = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        repeats.append(max(1, min(1000, int(ENOUGH / ROUNDS / once))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for times, call, repeat in zip(found, calls, repeats, strict=True):
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            times.append((time.perf_counter() - start) / repeat)
    return [statistics.median(times) for times in found]


def time_undisturbed(calls: Sequence[Call], device: torch.device, runs: int = 3) -> list[float]:
    """The smallest of several medians of each call: what else the machine does only adds time."""
    found = [time_calls(calls, device) for _ in range(runs)]
    return [min(times) for times in zip(*found, strict=True)]


def _time_graphs(calls: Sequence[Call]) -> list[float]:
    replays = 20
    graphs = []
    for call in calls:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(replays):
                call()
        graph.replay()
        graphs.append(graph)
    new_event: Any = torch.cuda.Event
    start, end = (new_event(enable_timing=True) for _ in range(2))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for times, graph in zip(found, graphs, strict=True):
            torch.cuda.synchronize()
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3 / replays)
    return [statistics.median(times) for times in found]


def versions(device: torch.device) -> tuple[str, ...]:
    """What a time depends on besides what is measured: torch, this package, the device, its driver.

    Raises:
        RuntimeError: if the device is not here.
    """
    from mi300_inductor.fusion_pass import files_hash

    found = [torch.__version__, str(torch.version.git_version), files_hash()]
    if device.type != "cuda":
        return (*found, build.cpu_name(), str(torch.get_num_threads()))
    properties = torch.cuda.get_device_properties(device)
    return (*found, properties.name, str(properties.multi_processor_count), _driver_version())


def _driver_version() -> str:
    """HIP's version, or the CUDA version of the driver, which torch does not tell."""
    if torch.version.hip:
        return torch.version.hip
    number = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    if status != 0:
        raise RuntimeError(
            f"measure: the driver has no version; got CUDA error {status}, expected success. "
            "Check the driver."
        )
    return str(number.value)


def example(value: Any) -> Any:
    """A value like one of a graph's metadata: random, with hints for sizes that are symbols."""
    if isinstance(value, (list, tuple)):
        return type(value)(example(one) for one in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.hint
    if not isinstance(value, Tensor):
        return value
    sizes = [int(example(size)) for size in value.shape]
    strides = [int(example(stride)) for stride in value.stride()]
    length = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(sizes) else 0
    if value.dtype.is_floating_point:
        # Of the order of normalised activations; scales become positive below.
        base = torch.randn(length).abs_().add_(0.01)
        base = base.to(value.dtype)
    else:
        base = torch.zeros(length, dtype=value.dtype)
    return base.to(value.device).as_strided(sizes, strides)


def extract(
    nodes: Collection[fx.Node], outputs: Sequence[fx.Node]
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """Some nodes of a graph as a module of their own.

    Args:
        nodes: In graph order.
        outputs: Those of them whose values the module returns.

    Returns:
        The module, and the nodes outside that are its inputs, in order.
    """
    inside = set(nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[fx.Node] = []
    for node in nodes:
        for source in node.all_input_nodes:
            if source not in inside and source not in copies:
                inputs.append(source)
                copies[source] = graph.placeholder(source.name)
                copies[source].meta = {"val": source.meta.get("val")}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    owner = next(iter(inside)).graph.owning_module
    return fx.GraphModule(owner if owner is not None else torch.nn.Module(), graph), inputs


def compile_alone(module: fx.GraphModule, inputs: Sequence[Any]) -> Call:
    """Inductor's code for a module, without our pass, ready to be called on `inputs`."""
    with inductor.outside_fake_mode():
        try:
            compiled = inductor.compile_plain(module, inputs)
        except Exception:
            # Templates that max-autotune tries may fail: torch 2.11's take no scale of shape [1].
            library_alone = dict.fromkeys(("max_autotune", "max_autotune_gemm"), False)
            compiled = inductor.compile_plain(module, inputs, **library_alone)
    return lambda: compiled(*inputs)
