"""The row operators at the sizes of the presets: ours, eager, Inductor and other libraries."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks import libraries, providers
from benchmarks.chains import FAMILIES, FORMS, Case
from benchmarks.presets import PRESETS, STANDARD_PRESETS, check_memory
from benchmarks.results import Result, one_line
from benchmarks.tables import counted, say
from benchmarks.timing import Timed, Unavailable, interleave, ready, set_count
from mi300_inductor import arch

METHOD = (
    "Microseconds of one call over sets of buffers that together exceed the caches; inputs are "
    "random with outliers. On a GPU all calls of a provider are captured into one graph and its "
    "replays are timed with events; on a CPU the clock on the wall decides. Medians of rounds in "
    "which all providers take turns; quartiles are in the JSON. `op` is our operator called "
    "directly; `mi300` and `inductor` are the eager chain compiled. Bytes count each input and "
    "output once; % is of the addition that was timed in the same run."
)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_fp8(device: torch.device) -> torch.dtype:
    """The e4m3 format that the device's own instructions take."""
    spec = arch.detect(device)
    return (spec or arch.CPU).fp8_dtype


def cases(options: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    """Static and per-token forms of both families at each preset's sizes."""
    dtype, q_dtype = DTYPES[options.dtype or "bf16"], device_fp8(device)
    sizes = dict.fromkeys(
        (family, PRESETS[name].hidden if family == "norm" else PRESETS[name].intermediate)
        for family in FAMILIES
        for name in options.preset or STANDARD_PRESETS[device.type]
    )
    for form in FORMS:
        for family, hidden in sizes:
            for rows in options.rows or [1, 8, 32, 256, 2048]:
                yield Case(family, form, hidden, rows, dtype, q_dtype)


def run(options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Measures every case; notes what cannot be had."""
    for case in cases(options, device):
        measure(case, options, device, result)


def measure(case: Case, options: argparse.Namespace, device: torch.device, result: Result) -> None:
    """Measures one case with every provider and library that is there."""
    is_static = case.form == "static"
    chosen = [p for p in providers.chosen(options.providers, device) if is_usual(p, options)]
    count = set_count(case.bytes_moved, device, at_most=2 if options.dry else 64)
    try:
        # fp32 while they are made
        check_memory(4 * case.bytes_moved * count, device)
    except Unavailable as missing:
        result.note(f"{case.family}, {case.hidden} x {case.rows}: {missing}")
        return
    buffers = case.buffers(device, count)
    calls: dict[str, Callable[..., object]] = {"op": case.ours()}
    for provider in chosen:
        # A compilation costs seconds; one of the dynamic forms is much like the static one.
        if is_static or not provider.is_compiled or options.providers:
            calls[provider.name] = provider.compile(case.eager())
    calls.update(libraries.row_kernels(case, result.note if device.type == "cuda" else None))
    timed: dict[str, Timed] = {}
    with torch.no_grad():
        for name, call in calls.items():
            try:
                timed[name] = ready(partial(_call, call, buffers), count, device, options.dry)
            except Exception as error:
                result.note(f"{name}: {one_line(error)}")
        times = interleave(timed, options.rounds, options.seconds)
    rates = {name: round(case.bytes_moved / times[name].median / 1e3, 4) for name in times}
    ceiling = result.ceilings.stream if result.ceilings is not None else None
    percents = {name: round(100 * rate / ceiling, 1) for name, rate in rates.items() if ceiling}
    extra = {"gbps": rates, "percent": percents}
    work = {"bytes": case.bytes_moved, "flops": case.operations}
    result.add({**case.record(), **work}, times, **extra)
    say(f"{case.family} {case.form} {case.hidden}, {counted(case.rows, 'row')}", times)
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_usual(provider: providers.Provider, options: argparse.Namespace) -> bool:
    """Captured by us, the graph modes are the default one; they are timed if asked for by name."""
    return bool(options.providers) or provider.mode == "default"


def _call(call: Callable[..., object], buffers: list[tuple[torch.Tensor, ...]], at: int) -> object:
    return call(*buffers[at % len(buffers)])
