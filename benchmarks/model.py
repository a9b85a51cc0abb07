"""Whole steps: eager, Inductor and mi300 in their modes, decoding and prefill."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch._inductor import config as inductor_config

from benchmarks import breakdown, providers
from benchmarks.fp8_baseline import faster_fp8_matmul
from benchmarks.presets import PRESETS, Model, Step
from benchmarks.results import Result, one_line
from benchmarks.tables import counted, say
from benchmarks.timing import DryRun, Queued, Timed, Unavailable, WallClock, interleave

METHOD = (
    "One step of a stack of decoder layers with random weights and a static KV cache of 128 "
    "tokens, half full (a prefill fills its own). On a GPU the modes that capture graphs are "
    "timed by events behind a sleeping kernel, so that the host's time does not count, and so are "
    "prefills; eager and the default mode are timed by the clock on the wall, launches included. "
    "On a CPU everything is timed by the clock on the wall, in FP8 without oneDNN where torch's "
    "FP8 matmul is faster without it. Medians of rounds in which all providers take turns; "
    "quartiles are in the JSON. On a GPU Inductor chooses between two block sizes for each "
    "elementwise kernel by timing them once, and two compilations of one kernel can differ by a "
    "factor of two: for all providers the first size is taken unless --tuned-blocks is given. "
    "Compiling is the first call with Inductor's caches as they were (compile-time measures cold "
    "and warm); peak memory is what the calls allocate beyond the weights."
)
STANDARD = {"cuda": ["llama-8b", "llama-405b-tp8"], "cpu": ["tiny"]}
ROWS = {"cuda": [1, 8, 16, 32, 64], "cpu": [1, 8, 32]}
GRAPH_MODES = ("reduce-overhead", "max-autotune")


def run(options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Measures every preset at every row count; notes what cannot be had."""
    chosen = providers.chosen(options.providers, device, result.note)
    for name in (options.preset or STANDARD[device.type]) if chosen else []:
        preset = PRESETS[name]
        layers = options.layers or preset.stack
        try:
            model = Model(preset, layers, options.dtype or "fp8", device)
        except Unavailable as missing:
            result.note(f"{name}: {missing}")
            continue
        case = {"preset": name, "layers": layers, "dtype": options.dtype or "fp8"}
        lengths = {"decode": 1, "prefill": options.prompt}
        for phase in ("decode", "prefill") if options.phase == "both" else (options.phase,):
            for rows in options.rows or (ROWS[device.type] if phase == "decode" else [1]):
                where = {**case, "phase": phase, "tokens": lengths[phase], "rows": rows}
                is_fp8 = case["dtype"] != "bf16"
                try:
                    with faster_fp8_matmul(device) if is_fp8 else nullcontext():
                        measure(model, where, options, device, result)
                except Unavailable as missing:
                    result.note(f"{label_of(where)}: {missing}")
                release(device)
        del model
        release(device)


def measure(
    model: Model,
    case: dict[str, object],
    options: argparse.Namespace,
    device: torch.device,
    result: Result,
) -> None:
    """Compiles for one row count and measures all providers in turn.

    Raises:
        Unavailable: if a step of so many rows does not fit into the memory.
    """
    step = model.step(int(str(case["rows"])), int(str(case["tokens"])))
    timed: dict[str, Timed] = {}
    calls: dict[str, Callable[[], object]] = {}
    extra: dict[str, dict[str, object]] = {"compile_s": {}, "peak_mb": {}, "shares": {}}
    for provider in providers.chosen(options.providers, device, result.note):
        label = f"{label_of(case)}, {provider.name}"
        print(f"  {label}", flush=True)
        try:
            with inductor_config.patch("triton.autotune_pointwise", options.tuned_blocks):
                call = prepare(provider, step, device, extra)
        except Exception as error:  # one provider's failure is a line of the result, not its end
            result.note(f"{label}: {one_line(error)}")
            continue
        calls[provider.name] = call
        timed[provider.name] = (
            DryRun(lambda _, call=call: call(), 1)
            if options.dry
            else timer(provider, call, step, device)
        )
    if options.dry:
        extra["compile_s"].clear()  # without a clock, that of the first call too
    with torch.no_grad():
        times = interleave(timed, options.rounds, options.seconds)
        if device.type == "cuda" and options.breakdown:
            extra["shares"] = dict(profiled(calls, model, step))
    result.add(case, times, **extra)
    say(label_of(case), times)


def label_of(case: dict[str, object]) -> str:
    tokens = f" of {case['tokens']} tokens" if case["phase"] == "prefill" else ""
    return f"{case['preset']}, {case['dtype']}, {counted(case['rows'], 'row')}{tokens}"


def prepare(
    provider: providers.Provider,
    step: Step,
    device: torch.device,
    extra: dict[str, dict[str, object]],
) -> Callable[[], object]:
    """Compiles and warms up; notes the seconds of the first call and the peak memory."""
    compiled = provider.compile(step.forward)

    def call() -> Tensor:
        mark = getattr(torch.compiler, "cudagraph_mark_step_begin", None)
        if mark is not None and provider.mode in GRAPH_MODES:
            mark()
        return compiled(step.inputs)  # type: ignore[return-value]

    with torch.no_grad():
        step.prepare()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if provider.is_compiled:
            extra["compile_s"][provider.name] = round(time.perf_counter() - start, 2)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        for _ in range(3):  # the capture of graphs too
            step.prepare()
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated() - before
            extra["peak_mb"][provider.name] = round(peak / 2**20, 1)
    return call


def timer(
    provider: providers.Provider, call: Callable[[], object], step: Step, device: torch.device
) -> Timed:
    count = min(step.calls, 20)
    is_queued = device.type == "cuda" and (step.calls == 1 or provider.mode in GRAPH_MODES)
    with torch.no_grad():
        if is_queued:
            return Queued(lambda _: call(), count, step.prepare)
        count = count if device.type == "cuda" else 1
        return WallClock(lambda _: call(), device, count, step.prepare)


def profiled(
    calls: dict[str, Callable[[], object]], model: Model, step: Step
) -> dict[str, dict[str, float]]:
    """Shares of eager's step and of those that are replays of graphs."""
    found = {}
    for name, call in calls.items():
        if name != "eager" and name.partition(":")[2] not in GRAPH_MODES:
            continue

        def one(call: Callable[[], object] = call) -> object:
            return call()

        step.prepare()
        found[name] = (
            breakdown.eager_shares(one, model.module)
            if name == "eager"
            else breakdown.compiled_shares(one)
        )
    return found


def release(device: torch.device) -> None:
    """Forgets compiled code and its graphs' memory."""
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
