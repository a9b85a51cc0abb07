"""`python -m benchmarks mi300`: ours on an MI300 beside the published numbers, in one command.

`--dry` walks the same path on the CPU with sizes divided by 16 and no clock, so that what the card
will run is known to run; it prints no times.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import gemm, model, ops, published, tables
from benchmarks.chains import Case
from benchmarks.header import environment, open_device
from benchmarks.results import Result
from benchmarks.timing import Unavailable, measure_ceilings
from mi300_inductor import arch

DRY_SHRINK = 16
PRESET = "llama-405b-tp8"
MODEL_ROWS = [1, 8, 16, 32]
MODEL_PROVIDERS = ["eager", "inductor:reduce-overhead", "mi300:reduce-overhead"]


def open_card() -> torch.device:
    """The MI300.

    Raises:
        Unavailable: if torch sees none.
    """
    device = open_device("cuda")
    spec = arch.detect(device)
    if spec is not arch.GFX942:
        raise Unavailable(
            f"card gfx942: torch sees {torch.cuda.get_device_name()}. Run it on an MI300 with the "
            "torch for ROCm."
        )
    return device


def main(options: argparse.Namespace, command: str) -> int:
    """Runs and prints everything; returns the exit status.

    `command` is the command line that gives it again, for the results.
    """
    try:
        device = torch.device("cpu") if options.dry else open_card()
    except Unavailable as missing:
        print(f"missing: {missing}")
        return 1
    missing = 0
    for part, show in ((rows, rows_page), (matmuls, matmuls_page), (steps, tables.markdown)):
        result = part(options, device)
        result.command = command
        missing += not result.records
        if options.json:  # at once: what is measured stays if a later part is stopped
            save(result, show, options.json)
        print(f"\n{show(result)}", flush=True)
    print(f"Published: {published.SOURCE}; {published.END_TO_END}.")
    return missing


def save(result: Result, show: Callable[[Result], str], folder: Path) -> None:
    path = folder / f"mi300_{result.benchmark}.json"
    result.save(path)
    path.with_suffix(".md").write_text(show(result))


def empty(benchmark: str, method: str, device: torch.device, is_dry: bool) -> Result:
    has_ceilings = benchmark != "model" and not is_dry
    ceilings = measure_ceilings(device) if has_ceilings else None
    return Result(benchmark, "", environment(device), method, ceilings)


def rows(options: argparse.Namespace, device: torch.device) -> Result:
    """The row operators at the published sizes, in fp16 as there."""
    result = empty("ops", ops.METHOD, device, options.dry)
    shrink = DRY_SHRINK if options.dry else 1
    for family, width, table in (
        ("norm", published.HIDDEN, published.NORM),
        ("silu", published.SWIGLU_WIDTH, published.SWIGLU),
    ):
        for row in table:
            q_dtype = ops.device_fp8(device)
            case = Case(family, "static", width // shrink, row.rows, torch.float16, q_dtype)
            ops.measure(case, options, device, result)
    return result


def matmuls(options: argparse.Namespace, device: torch.device) -> Result:
    """The FP8 matmuls at the published sizes, with fp16 results as there."""
    result = empty("gemm", gemm.METHOD, device, options.dry)
    shrink = DRY_SHRINK if options.dry else 1
    for n, k in dict.fromkeys((row.n, row.k) for row in published.MATMUL):
        problem = gemm.Problem(PRESET, (n // shrink,), k // shrink)
        try:
            weights = gemm.make_weights(problem, "fp8", device, options.dry)
        except Unavailable as missing:
            result.note(f"{n} x {k}: {missing}")
            continue
        for index, row in enumerate(published.MATMUL):
            if (row.n, row.k) == (n, k):
                case = {"shape": PRESET, "n": problem.n, "k": problem.k, "rows": row.m}
                case |= {"dtype": "fp8", "out_dtype": "float16", "published": index}
                gemm.measure(case, weights, options, device, result)
    return result


def steps(options: argparse.Namespace, device: torch.device) -> Result:
    """Decode steps of one shard's layer."""
    result = empty("model", model.METHOD, device, options.dry)
    preset = "tiny" if options.dry else PRESET
    names = ["eager", "mi300"] if options.dry else MODEL_PROVIDERS
    asked = {"preset": options.preset or [preset], "rows": options.rows or MODEL_ROWS}
    given = argparse.Namespace(**{**vars(options), **asked, "providers": names})
    model.run(given, device, result)
    return result


def rows_page(result: Result) -> str:
    """Our row operators beside the published ones, matched by row count."""

    def body() -> Iterator[list[str]]:
        for (family, _, hidden, count), line in tables.lines(result):
            table = published.NORM if family == "norm" else published.SWIGLU
            width = published.HIDDEN if family == "norm" else published.SWIGLU_WIDTH
            theirs = next(row for row in table if row.rows == count)
            ours, eager = (line.get(name, {}).get("us", math.nan) for name in ("op", "eager"))
            yield [
                *(str(family), size([width], [hidden]), str(count)),
                *(tables.number(value) for value in (theirs.torch, theirs.vllm, theirs.own)),
                *(time(value) for value in (eager, ours)),
                *(gain(theirs.vllm, ours), gain(theirs.own, ours)),
            ]

    heads = ("family", "hidden", "rows", "published torch us", "vLLM us", "blog's own us")
    return page(result, list(body()), (*heads, "eager here us", "op us", "vLLM/op", "blog/op"))


def matmuls_page(result: Result) -> str:
    """Our matmuls beside the published ones, in their order."""

    def body() -> Iterator[list[str]]:
        for (_, n, k, _, count), line in tables.lines(result):
            theirs = published.MATMUL[next(iter(line.values()))["published"]]
            library = line.get("torch._scaled_mm", {}).get("us", math.nan)
            ours = line.get("op", {}).get("us", math.nan)
            yield [
                *(size([theirs.n, theirs.k], [n, k]), str(count)),
                *(tables.number(value) for value in (theirs.torch, theirs.own)),
                *(time(value) for value in (library, ours)),
                *(gain(library, ours), gain(theirs.own, ours)),
            ]

    heads = ("n x k", "rows", "published hipBLASLt us", "blog's own us", "hipBLASLt here us")
    return page(result, list(body()), (*heads, "op us", "hipBLASLt here/op", "blog/op"))


def page(result: Result, body: list[list[str]], heads: Sequence[str]) -> str:
    parts = [f"# {result.benchmark} at the published shapes", f"    {result.command}"]
    parts.append("\n".join(f"- {key}: {value}" for key, value in result.header.items()))
    if result.ceilings is not None:
        parts[-1] += "\n- " + tables.ceilings_line(result)
    parts += [result.method, tables.github(body, heads)]
    parts += [f"Missing here:\n{chr(10).join(result.notes)}"] if result.notes else []
    return "\n\n".join(parts) + "\n"


def size(published: list[int], run: list[object]) -> str:
    """The published size, and the one that was run if it is another, as in a dry run."""
    full, own = (" x ".join(map(str, sizes)) for sizes in (published, run))
    return full if full == own else f"{full} (run: {own})"


def time(value: float) -> str:
    return "not timed" if math.isnan(value) else tables.number(value)


def gain(theirs: float, ours: float) -> str:
    return "" if math.isnan(theirs / ours) else tables.ratio(theirs / ours)
