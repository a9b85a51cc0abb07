"""Skinny matmuls at the sizes of the presets: ours and the vendor's library."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import mi300_inductor as mi
from benchmarks.fp8_baseline import scaled_mm
from benchmarks.ops import device_fp8
from benchmarks.presets import PRESETS, STANDARD_PRESETS, check_memory
from benchmarks.results import Result, one_line
from benchmarks.tables import counted, say
from benchmarks.timing import (
    MOST_SETS,
    Timed,
    Unavailable,
    empty_caches,
    interleave,
    ready,
    set_count,
    take_turns,
)
from mi300_inductor import arch, gemm_plan, plan

METHOD = (
    "Microseconds of one call over distinct weights that together take at least twice the last "
    f"cache (at most {MOST_SETS} of them), random with outliers. On a GPU all calls are captured "
    "into one graph and its replays are timed with events; on a CPU the clock on the wall "
    "decides. Medians of rounds in which all providers take turns; quartiles are in the JSON. "
    "`op` is mi.ops.skinny_gemm, for several projections skinny_gemm_list, and `plan` is "
    "the kernel that the rule chose (vendor: it calls the library). The others are PyTorch's: "
    "_scaled_mm (cuBLASLt or hipBLASLt, `fast` is its fast accumulation; on a CPU without oneDNN "
    "where that is faster), for bf16 mm, a call for each projection. % is of the rate at which a "
    "sum reads memory in the same run; bytes are the weights' and the activations'."
)
DTYPES = ("fp8", "fp8-per-token", "bf16")
# Projections of the same rows, which a model with separate ones gives to one launch.
LISTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True)
class Problem:
    """One matmul, or several of the same rows: [n, k] weights for each n of `widths`."""

    name: str
    widths: tuple[int, ...]
    k: int

    @property
    def n(self) -> int:
        return sum(self.widths)


def problems(preset_names: list[str]) -> list[Problem]:
    """The presets' linears, separate, merged and in one launch; each size once."""
    found: dict[tuple[tuple[int, ...], int], Problem] = {}
    for name in preset_names:
        preset = PRESETS[name]
        for linear, (n, k) in {**preset.linears, **preset.merged_linears}.items():
            found.setdefault(((n,), k), Problem(f"{name} {linear}", (n,), k))
        linears = {**preset.linears, "v_proj": preset.linears["k_proj"]}
        linears["up_proj"] = linears["gate_proj"]
        for together in LISTS:
            widths = tuple(linears[linear][0] for linear in together)
            problem = Problem(f"{name} {' + '.join(together)}", widths, preset.hidden)
            found.setdefault((widths, problem.k), problem)
    return list(found.values())


def run(options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Measures every shape at every row count; notes what cannot be had."""
    for dtype in options.dtype or ["fp8", "bf16"]:
        for problem in problems(options.preset or STANDARD_PRESETS[device.type]):
            try:
                sets = make_weights(problem, dtype, device, options.dry)
            except Unavailable as missing:
                result.note(f"{problem.name}: {missing}")
                continue
            for rows in options.rows or [1, 8, 16, 32]:
                size = {"shape": problem.name, "n": problem.n, "k": problem.k, "rows": rows}
                measure({**size, "dtype": dtype}, sets, options, device, result)
            del sets
            if device.type == "cuda":
                torch.cuda.empty_cache()


def make_weights(
    problem: Problem, dtype: str, device: torch.device, is_dry: bool = False
) -> list[list[Tensor]]:
    """Equal weights at different places: enough sets of them that none is still in a cache.

    Raises:
        Unavailable: if they do not fit into the memory.
    """
    kind = torch.bfloat16 if dtype == "bf16" else device_fp8(device)
    n, k = problem.n, problem.k
    count = set_count(n * k * kind.itemsize, device, at_most=2 if is_dry else MOST_SETS)
    check_memory((8 + count * kind.itemsize) * n * k, device)
    weight = torch.randn(n, k, device=device)
    weight[:, :: max(k // 4, 1)] *= 8
    weight = weight.to(kind)
    return [list(weight.clone().split(problem.widths)) for _ in range(count)]


def measure(
    case: dict[str, object],
    sets: Sequence[list[Tensor]],
    options: argparse.Namespace,
    device: torch.device,
    result: Result,
) -> None:
    """Measures one problem with every provider that the device has."""
    rows, n, k = (int(str(case[name])) for name in ("rows", "n", "k"))
    try:
        check_memory(rows * (8 * k + 24 * n), device)
        timed = candidates(case, sets, options, device, result)
    except Unavailable as missing:
        result.note(f"{case['shape']}, {counted(rows, 'row')}: {missing}")
        return
    times = interleave(timed, options.rounds, options.seconds)
    size = sets[0][0].itemsize
    moved, flops = n * k * size + rows * (k * size + 2 * n), 2 * rows * n * k
    rates = {name: round(moved / sample.median / 1e3, 4) for name, sample in times.items()}
    tflops = {name: round(flops / sample.median / 1e6, 6) for name, sample in times.items()}
    ceiling = result.ceilings.read if result.ceilings is not None else None
    percents = {name: round(100 * rate / ceiling, 1) for name, rate in rates.items() if ceiling}
    extra: dict[str, dict[str, object]] = {"gbps": {**rates}, "tflops": {**tflops}}
    extra |= {"percent": {**percents}}
    if device.type == "cuda" and len(sets[0]) == 1 and not options.dry:
        extra["plan"] = {"op": form_of(rows, n, k, sets[0][0].dtype)}
    work = {"bytes": moved, "flops": flops, "sets": len(sets), "together": len(sets[0])}
    result.add({**case, **work}, times, **extra)
    say(f"{case['shape']}, {case['dtype']}, {counted(rows, 'row')}", times)


def candidates(
    case: dict[str, object],
    sets: Sequence[list[Tensor]],
    options: argparse.Namespace,
    device: torch.device,
    result: Result,
) -> dict[str, Timed]:
    """Every provider of a problem, ready to be timed; notes those that fail."""
    rows, k = (int(str(case[name])) for name in ("rows", "k"))
    calls = (
        fp8_calls(case, sets[0], device) if case["dtype"] != "bf16" else bf16_calls(rows, k, device)
    )
    timed = {}
    empty_caches(device)
    for name, call in take_turns(calls, sets).items():
        try:
            timed[name] = ready(call, len(sets), device, options.dry)
        except RuntimeError as error:
            result.note(f"{name}, {case['dtype']}, {counted(rows, 'row')}: {one_line(error)}")
    return timed


def form_of(rows: int, n: int, k: int, dtype: torch.dtype) -> str:
    """The plan that the rule chooses for a matmul on this card."""
    spec = arch.detect("cuda")
    if spec is None:
        return ""
    planned = gemm_plan.plan_gemm(gemm_plan.problem(rows, n, k, dtype), plan.device_info(spec))
    return gemm_plan.Form(planned.shape.form).name.lower()


Calls = dict[str, Callable[[list[Tensor]], object]]


def fp8_calls(case: dict[str, object], weights: list[Tensor], device: torch.device) -> Calls:
    """Ours and the library's, the scales per tensor or per row and column."""
    rows, k = (int(str(case[name])) for name in ("rows", "k"))
    a = torch.randn(rows, k, device=device).to(device_fp8(device))
    scale_a = one = torch.ones(1, device=device)
    scales_b = [one] * len(weights)
    if case["dtype"] == "fp8-per-token":
        scale_a, *scales_b = (
            torch.rand(size, device=device) + 0.5 for size in (rows, *map(len, weights))
        )
    out = {"out_dtype": getattr(torch, str(case.get("out_dtype", "bfloat16")))}

    def ours(weights: list[Tensor]) -> object:
        if len(weights) == 1:
            return mi.ops.skinny_gemm(a, weights[0], scale_a, scales_b[0], **out)
        first, scales_a = ([each] * len(weights) for each in (a, scale_a))
        return mi.ops.skinny_gemm_list(first, weights, scales_a, scales_b, **out)

    calls: Calls = {"op": ours}
    is_per_token = scale_a is not one
    theirs_a = scale_a[:, None] if is_per_token else one
    theirs_b = [scale[None] if is_per_token else one for scale in scales_b]
    for name, is_fast in {"torch._scaled_mm": False, "torch._scaled_mm fast": True}.items():
        if device.type == "cuda" or not is_fast:
            calls[name] = lambda weights, is_fast=is_fast: [
                scaled_mm(a, w.t(), theirs_a, scale, **out, use_fast_accum=is_fast)
                for w, scale in zip(weights, theirs_b, strict=True)
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
