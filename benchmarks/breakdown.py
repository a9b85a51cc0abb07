"""Where the time of a step goes on a GPU: norm, activation, GEMM, attention and the rest.

Kernels that a graph replays are told apart by their names: ours say what they do, Inductor's list
the operators they were made of. Eager's kernels are told apart by the module that launched them.
Overlapping kernels share no time: each counts from the end of the one before it to its own end.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

SHARES = ("norm", "activation", "GEMM", "attention", "rest")
STEPS = 3

# In this order: the first that occurs in a kernel's name decides.
KERNEL_WORDS = (
    ("GEMM", ("skinny_gemm", "nvjet", "splitkreduce", "cijk_", "scaled_mm_kernel", "gemvx")),
    ("attention", ("attention", "sdpa", "flash", "cudnn", "softmax", "index_copy", "fmha", "attn")),
    ("norm", ("rms_norm", "rsqrt", "_mean_")),
    ("activation", ("silu",)),
    ("attention", ("_cos_", "cat_", "sgemm", "rotary", "bmm")),
    ("GEMM", ("gemm", "cutlass")),
)
# Which quantisation belongs to what: the linears that read a norm's output.
AFTER_NORM = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")

Kernel = tuple[float, float, str, float]  # start and duration in us, name, time of its launch


def of_kernel(name: str) -> str:
    """The share a kernel of a compiled graph belongs to, by its name."""
    lowered = name.lower()
    for share, words in KERNEL_WORDS:
        if any(word in lowered for word in words):
            return share
    return "rest"


def of_path(path: Iterable[str]) -> str:
    """The share of an operator that eager ran, by the modules and operators around it.

    `path` goes from the outermost to the innermost; modules by their class or, for a linear, their
    name. The residual additions count as norm, and each quantisation as what it quantises.
    """
    names = list(path)
    joined = " ".join(names).lower()
    if "scaled_mm" in joined or names[-1:] in (["aten::mm"], ["aten::addmm"]):
        return "GEMM"
    if any(name in AFTER_NORM for name in names) or "norm" in joined:
        return "norm"
    if "down_proj" in joined or any(name.endswith("MLP") for name in names):
        return "activation"
    if "attention" in joined or "rotary" in joined:
        return "attention"
    inside_layer = any(name.endswith("DecoderLayer") for name in names)
    return "norm" if inside_layer and names[-1].startswith("aten::add") else "rest"


def shares(kernels: list[tuple[Kernel, str]]) -> dict[str, float]:
    """Microseconds of each share in one step; `kernels` in the order of their starts."""
    found = dict.fromkeys(SHARES, 0.0)
    end = kernels[0][0][0] if kernels else 0.0
    for (start, duration, _, _), share in kernels:
        # What the card waited for the host before an eager kernel is nobody's share.
        begin = max(end, start)
        found[share] += max(start + duration - begin, 0.0)
        end = max(end, start + duration)
    return found


def compiled_shares(step: Callable[[], object]) -> dict[str, float]:
    """Profiles calls that replay a graph."""
    kernels, _ = _profile(step)
    return _median_shares([(kernel, of_kernel(kernel[2])) for kernel in kernels])


def eager_shares(step: Callable[[], object], module: nn.Module) -> dict[str, float]:
    """Profiles eager calls, each kernel by where it was launched."""
    with _named_modules(module):
        kernels, ranges = _profile(step)
    return _median_shares([(kernel, of_path(_around(kernel[3], ranges))) for kernel in kernels])


def _median_shares(kernels: list[tuple[Kernel, str]]) -> dict[str, float]:
    per_step = len(kernels) // STEPS
    found = [shares(kernels[i * per_step : (i + 1) * per_step]) for i in range(STEPS)]
    return {share: round(median(one[share] for one in found), 2) for share in SHARES}


def _profile(step: Callable[[], object]) -> tuple[list[Kernel], list[tuple[float, float, str]]]:
    """The kernels of `STEPS` calls, and the host's ranges (begin, end, name)."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(STEPS):
            step()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read_trace(json.loads(path.read_text())["traceEvents"])


def read_trace(
    events: list[dict[str, Any]],
) -> tuple[list[Kernel], list[tuple[float, float, str]]]:
    """Kernels in the order of their starts, and the host's ranges in the order of theirs."""
    launches = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    kernels = [
        (event["ts"], event["dur"], event["name"], launches.get(event["args"]["correlation"], 0.0))
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    ranges = [
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix("module: "))
        for event in events
        if event.get("cat") in ("cpu_op", "user_annotation")
    ]
    return sorted(kernels), sorted(ranges, key=lambda r: (r[0], -r[1]))


def _around(time: float, ranges: list[tuple[float, float, str]]) -> Iterator[str]:
    return (name for begin, end, name in ranges if begin <= time <= end)


@contextmanager
def _named_modules(module: nn.Module) -> Iterator[None]:
    """Every module's forward is a range in the profile while this lasts."""
    open_ranges: list[Any] = []
    handles = []
    for path, child in module.named_modules():
        leaf = path.rpartition(".")[2]
        name = leaf if leaf.endswith("_proj") else type(child).__name__

        def enter(*_: object, name: str = name) -> None:
            open_ranges.append(torch.profiler.record_function(f"module: {name}"))
            open_ranges[-1].__enter__()

        def leave(*_: object) -> None:
            open_ranges.pop().__exit__(None, None, None)

        handles += [
            child.register_forward_pre_hook(enter),
            child.register_forward_hook(leave),
        ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
