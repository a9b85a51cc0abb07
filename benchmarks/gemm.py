"""Skinny matmuls at the sizes of the presets: ours and the vendor's library."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import mi300_inductor as mi
from benchmarks.ops import device_fp8
from benchmarks.presets import PRESETS, STANDARD_PRESETS, check_memory
from benchmarks.results import Result
from benchmarks.tables import counted, say
from benchmarks.timing import Unavailable, interleave, ready, set_count

METHOD = (
    "Microseconds of one call over distinct weights that together exceed the caches, random with "
    "outliers. On a GPU all calls are captured into one graph and its replays are timed with "
    "events; on a CPU the clock on the wall decides. Medians of rounds in which all providers take "
    "turns; quartiles are in the JSON. `op` is mi.ops.skinny_gemm, for a pair skinny_gemm_list; "
    "the others are PyTorch's: _scaled_mm (cuBLASLt or hipBLASLt; `fast` is its fast "
    "accumulation), for bf16 mm, for a pair two calls. % is "
    "of the rate at which a sum reads memory in the same run; bytes are the weight's and the "
    "activations'."
)
DTYPES = ("fp8", "fp8-per-token", "bf16")


def shapes(preset_names: list[str]) -> dict[tuple[int, int], str]:
    """[n, k] of the presets' linears, separate and merged, with the name of the first that has it.

    `n` counts outputs, `k` is reduced.
    """
    found: dict[tuple[int, int], str] = {}
    for name in preset_names:
        preset = PRESETS[name]
        for linear, shape in {**preset.linears, **preset.merged_linears}.items():
            found.setdefault(shape, f"{name} {linear}")
    return found


def run(options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Measures every shape at every row count; notes what cannot be had."""
    dtypes = [options.dtype] if options.dtype else ["fp8", "bf16"]
    for dtype in dtypes:
        for (n, k), name in shapes(options.preset or STANDARD_PRESETS[device.type]).items():
            try:
                weights = make_weights(n, k, dtype, device, options.dry)
            except Unavailable as missing:
                result.note(f"{name}: {missing}")
                continue
            for rows in options.rows or [1, 8, 16, 32]:
                case = {"n": n, "k": k, "rows": rows, "dtype": dtype}
                measure({"shape": name, **case}, weights, options, device, result)
                if name.endswith(" gate_proj"):
                    pair = {"shape": f"{name} + up_proj", **case, "together": 2}
                    measure(pair, weights, options, device, result)
            del weights
            if device.type == "cuda":
                torch.cuda.empty_cache()


def make_weights(
    n: int, k: int, dtype: str, device: torch.device, is_dry: bool = False
) -> list[Tensor]:
    """Equal weights at different places: enough of them that none is still in a cache.

    Raises:
        Unavailable: if they do not fit into the memory.
    """
    kind = torch.bfloat16 if dtype == "bf16" else device_fp8(device)
    count = set_count(n * k * kind.itemsize, device, at_most=2 if is_dry else 40)
    check_memory((4 + count * kind.itemsize) * n * k, device)
    weight = torch.randn(n, k, device=device)
    weight[:, :: max(k // 4, 1)] *= 8
    weight = weight.to(kind)
    return [weight, *(weight.clone() for _ in range(count - 1))]


def measure(
    case: dict[str, object],
    weights: list[Tensor],
    options: argparse.Namespace,
    device: torch.device,
    result: Result,
) -> None:
    """Measures one problem with every provider that the device has."""
    rows, n, k = (int(str(case[name])) for name in ("rows", "n", "k"))
    calls = fp8_calls(case, device) if case["dtype"] != "bf16" else bf16_calls(rows, k, device)
    timed = {}
    for name, call in calls.items():
        try:
            use = partial(_call, call, weights, int(str(case.get("together", 1))))
            timed[name] = ready(use, len(weights), device, options.dry)
        except RuntimeError as error:
            result.note(f"{name}, {case['dtype']}: {str(error).splitlines()[0]}")
    times = interleave(timed, options.rounds, options.seconds)
    size, together = weights[0].itemsize, int(str(case.get("together", 1)))
    moved = together * (n * k * size + rows * (k * size + 2 * n))
    flops = together * 2 * rows * n * k
    rates = {name: round(moved / sample.median / 1e3, 4) for name, sample in times.items()}
    tflops = {name: round(flops / sample.median / 1e6, 6) for name, sample in times.items()}
    ceiling = result.ceilings.read if result.ceilings is not None else None
    percents = {name: round(100 * rate / ceiling, 1) for name, rate in rates.items() if ceiling}
    work = {"bytes": moved, "flops": flops}
    result.add({**case, **work}, times, gbps=rates, tflops=tflops, percent=percents)
    say(f"{case['shape']}, {case['dtype']}, {counted(rows, 'row')}", times)


Calls = dict[str, Callable[[list[Tensor]], object]]


def fp8_calls(case: dict[str, object], device: torch.device) -> Calls:
    """Ours and the library's, the scales per tensor or per row and column."""
    rows, n, k = (int(str(case[name])) for name in ("rows", "n", "k"))
    a = torch.randn(rows, k, device=device).to(device_fp8(device))
    one = torch.ones(1, device=device)
    scale_a, scale_b = one, one
    if case["dtype"] == "fp8-per-token":
        scale_a, scale_b = (torch.rand(size, device=device) + 0.5 for size in (rows, n))
    out = {"out_dtype": getattr(torch, str(case.get("out_dtype", "bfloat16")))}

    def ours(weights: list[Tensor]) -> object:
        if len(weights) == 1:
            return mi.ops.skinny_gemm(a, weights[0], scale_a, scale_b, **out)
        lists = ([each] * len(weights) for each in (a, scale_a, scale_b))
        first, *scales = lists
        return mi.ops.skinny_gemm_list(first, weights, *scales, **out)

    calls: Calls = {"op": ours}
    theirs = (scale_a, scale_b) if scale_a is one else (scale_a[:, None], scale_b[None])
    for name, is_fast in {"torch._scaled_mm": False, "torch._scaled_mm fast": True}.items():
        if device.type == "cuda" or not is_fast:
            calls[name] = lambda weights, is_fast=is_fast: [
                torch._scaled_mm(a, w.t(), *theirs, **out, use_fast_accum=is_fast) for w in weights
            ]
    return calls


def bf16_calls(rows: int, k: int, device: torch.device) -> Calls:
    """Ours and `torch.mm`."""
    a = torch.randn(rows, k, device=device).to(torch.bfloat16)

    def ours(weights: list[Tensor]) -> object:
        if len(weights) == 1:
            return mi.ops.skinny_gemm(a, weights[0])
        return mi.ops.skinny_gemm_list([a] * len(weights), weights)

    return {"op": ours, "torch.mm": lambda weights: [torch.mm(a, w.t()) for w in weights]}


def _call(
    call: Callable[[list[Tensor]], object], weights: list[Tensor], together: int, at: int
) -> object:
    return call([weights[(at * together + i) % len(weights)] for i in range(together)])
