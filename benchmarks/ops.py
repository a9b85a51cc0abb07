"""The row operators at the sizes of the presets: ours, eager, Inductor and other libraries.

On a GPU a kernel that only moves the bytes stands beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import torch

from benchmarks import libraries, providers, stream
from benchmarks.chains import FAMILIES, Buffers, Case
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
from mi300_inductor import arch

METHOD = (
    "Microseconds of one call over sets of buffers, weights too, that together take at least twice "
    f"the last cache (at most {MOST_SETS} sets); inputs are random with outliers. On a GPU all "
    "calls of a provider are captured into one graph and its replays are timed with events; on a "
    "CPU the clock on the wall decides. Medians of rounds in which all providers take turns; "
    "quartiles are in the JSON. `op` is our operator called directly; `mi300` and `inductor` are "
    "the eager chain compiled; `stream` is a plain kernel that moves the rows' bytes (and no "
    "weight). Launches of `op` on an sm_90 card may begin before the one before them has ended. "
    "Bytes count each input and output once; % is of the addition that was timed in the same run."
)
FORMS = ("static", "per_token")  # if nothing is said
Calls = dict[str, Callable[..., object]]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_fp8(device: torch.device) -> torch.dtype:
    """The e4m3 format that the device's own instructions take."""
    spec = arch.detect(device)
    return (spec or arch.CPU).fp8_dtype


def cases(options: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    """Both families at each preset's sizes, in the forms that are asked for."""
    dtype, q_dtype = DTYPES[options.dtype or "bf16"], device_fp8(device)
    sizes = dict.fromkeys(
        (family, PRESETS[name].hidden if family == "norm" else PRESETS[name].intermediate)
        for family in FAMILIES
        for name in options.preset or STANDARD_PRESETS[device.type]
    )
    for form in options.form or FORMS:
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
    asked = providers.chosen(options.providers, device, result.note)
    chosen = [provider for provider in asked if is_usual(provider, options)]
    count = set_count(case.bytes_moved, device, at_most=2 if options.dry else MOST_SETS)
    try:
        # Inputs in fp32 while they are made, outputs of every provider; what eager's chain holds.
        check_memory(6 * case.bytes_moved * count + 40 * case.hidden * case.rows, device)
    except Unavailable as missing:
        result.note(f"{case.family}, {case.hidden} x {case.rows}: {missing}")
        return
    buffers = case.buffers(device, count)
    calls: Calls = {"op": case.ours()}
    for provider in chosen:
        # A compilation costs seconds; one of the dynamic forms is much like the static one.
        if is_static or not provider.is_compiled or options.providers:
            calls[provider.name] = provider.compile(case.eager())
    calls.update(kernels_of_others(case, device, result.note))
    timed: dict[str, Timed] = {}
    empty_caches(device)
    with torch.no_grad():
        for name, call in take_turns(spread(calls), buffers).items():
            try:
                timed[name] = ready(call, count, device, options.dry)
            except Exception as error:
                result.note(f"{name}: {one_line(error)}")
        times = interleave(timed, options.rounds, options.seconds)
    rates = {name: round(case.bytes_moved / times[name].median / 1e3, 4) for name in times}
    ceiling = result.ceilings.stream if result.ceilings is not None else None
    percents = {name: round(100 * rate / ceiling, 1) for name, rate in rates.items() if ceiling}
    extra = {"gbps": rates, "percent": percents}
    work = {"bytes": case.bytes_moved, "flops": case.operations, "sets": count}
    result.add({**case.record(), **work}, times, **extra)
    say(f"{case.family} {case.form} {case.hidden}, {counted(case.rows, 'row')}", times)
    torch._dynamo.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def kernels_of_others(case: Case, device: torch.device, note: Callable[[str], None]) -> Calls:
    """Other libraries' kernels and the streaming one, which are all for GPUs."""
    if device.type == "cpu":
        return {}
    found = libraries.row_kernels(case, note)
    try:
        found["stream"] = stream.streamer(case)
    except Unavailable as missing:
        note(str(missing))
    except (RuntimeError, OSError) as error:
        note(f"stream: {one_line(error)}")
    return found


def spread(calls: Calls) -> dict[str, Callable[[Buffers], object]]:
    """The calls as functions of one set of buffers."""
    return {name: lambda one, call=call: call(*one) for name, call in calls.items()}


def is_usual(provider: providers.Provider, options: argparse.Namespace) -> bool:
    """Captured by us, the graph modes are the default one; they are timed if asked for by name."""
    return bool(options.providers) or provider.mode == "default"
