"""Skinny GEMM on a GPU: microseconds by graph replay over rotating weights, beside the library.

Each provider's calls are captured into one graph that walks over distinct weights, several times
the L2 in all; the median of its replays counts. FP8 is compared with `torch._scaled_mm` (the faster
of its accumulation modes), bf16 with `torch.mm`. Run as `python -m benchmarks.gpu_gemm --out DIR`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from mi300_inductor import arch, gemm_plan, plan

BF16, F32 = torch.bfloat16, torch.float32
SHAPES = (
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)),
    *((2304, 16384), (13312, 16384), (16384, 6656), (16384, 2048)),
)
# What a Llama with separate projections gives to one launch: q, k and v; gate and up.
LISTS = (((4096, 1024, 1024), 4096), ((14336, 14336), 4096), ((6656, 6656), 16384))
ROTATED_BYTES = 600 * 10**6  # ten times an H200's L2
CEILING = 4.30e12  # bytes per second of a streaming add on an H200


@dataclass
class Row:
    """One problem: microseconds of the library, the operator and the operator with row scales."""

    operand: str
    n: int
    k: int
    m: int
    form: str
    library: float
    ours: float
    per_row: float | None
    gigabytes_per_second: float

    @property
    def speedup(self) -> float:
        return self.library / self.ours


def random_operand(rows: int, k: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, k, device="cuda").to(dtype)


def time_calls(calls: Sequence[Callable[[], object]], repeats: int) -> float:
    """Median microseconds of one call, all calls captured `repeats` times into one graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                for call in calls:
                    call()
        graph.replay()
        times = []
        for _ in range(11):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / (repeats * len(calls)))
    return statistics.median(times)


def ours(a: Tensor, weight: Tensor, scales: tuple[Tensor, Tensor] | None) -> Tensor:
    scale_a, scale_b = scales or (None, None)
    return torch.ops.mi300.skinny_gemm(a, weight, scale_a, scale_b, None, None, BF16)


def form_of(m: int, n: int, k: int, dtype: torch.dtype) -> str:
    spec = arch.detect("cuda")
    assert spec is not None
    call = gemm_plan.problem(m, n, k, dtype)
    shape = gemm_plan.plan_gemm(call, plan.device_info(spec)).shape
    return gemm_plan.Form(shape.form).name.lower()


def library(a: Tensor, weight: Tensor, one: Tensor, is_fast: bool) -> Tensor:
    if a.dtype == BF16:
        return torch.mm(a, weight.t())
    return torch._scaled_mm(a, weight.t(), one, one, out_dtype=BF16, use_fast_accum=is_fast)


def measure(n: int, k: int, m: int, weights: Sequence[Tensor]) -> Row:
    dtype, is_fp8 = weights[0].dtype, weights[0].dtype.itemsize == 1
    repeats, one = max(1, 24 // len(weights)), torch.ones(1, device="cuda")
    a = random_operand(m, k, dtype)
    vectors = (torch.rand(m, device="cuda"), torch.rand(n, device="cuda"))

    def timed(call: Callable[..., Tensor], *arguments: object) -> float:
        return time_calls([partial(call, a, weight, *arguments) for weight in weights], repeats)

    modes = (False, True) if is_fp8 else (False,)
    theirs = min(timed(library, one, is_fast) for is_fast in modes)
    own = timed(ours, (one, one) if is_fp8 else None)
    per_row = timed(ours, vectors) if is_fp8 else None
    rate = n * k * dtype.itemsize / own / 1e3
    name, form = str(dtype).removeprefix("torch."), form_of(m, n, k, dtype)
    return Row(name, n, k, m, form, theirs, own, per_row, rate)


def measure_list(widths: Sequence[int], k: int, m: int, dtype: torch.dtype) -> dict[str, Any]:
    """One launch of several products against one library call for each."""
    count = max(2, min(16, ROTATED_BYTES // (sum(widths) * k * dtype.itemsize) + 1))
    sets = [[random_operand(n, k, dtype) for n in widths] for _ in range(count)]
    repeats, one = max(1, 24 // count), torch.ones(1, device="cuda")
    a = random_operand(m, k, dtype)
    ones = [one] * len(widths) if dtype.itemsize == 1 else None

    def separately(weights: Sequence[Tensor]) -> None:
        for weight in weights:
            library(a, weight, one, False)

    def together(weights: Sequence[Tensor]) -> None:
        rows = [a] * len(weights)
        torch.ops.mi300.skinny_gemm_list(rows, weights, ones, ones, None, BF16)

    theirs = time_calls([partial(separately, weights) for weights in sets], repeats)
    own = time_calls([partial(together, weights) for weights in sets], repeats)
    name = str(dtype).removeprefix("torch.")
    return {"operand": name, "widths": list(widths), "k": k, "m": m, "library": theirs, "ours": own}


def geometric_mean(values: Sequence[float]) -> float:
    return statistics.geometric_mean(values)


def summary(rows: Sequence[Row]) -> str:
    lines = []
    for operand, m in sorted({(row.operand, row.m) for row in rows}):
        cells = [row for row in rows if (row.operand, row.m) == (operand, m)]
        speedups = [row.speedup for row in cells]
        line = f"{operand}, {m} rows: {geometric_mean(speedups):.3f}x the library in the mean"
        lines.append(f"{line}, {min(speedups):.3f}x at least")
    return "\n".join(lines)


def table(rows: Sequence[Row]) -> str:
    body = [
        (
            *(row.operand, f"{row.n} x {row.k}", row.m, row.form),
            *(f"{row.library:.2f}", f"{row.ours:.2f}", f"{row.speedup:.3f}"),
            "" if row.per_row is None else f"{row.per_row:.2f}",
            *(f"{row.gigabytes_per_second:.0f}", f"{row.gigabytes_per_second * 1e9 / CEILING:.2f}"),
        )
        for row in rows
    ]
    headers = (
        *("operands", "N x K", "rows", "form", "library us", "ours us", "speedup"),
        *("per-row scales us", "GB/s", "of 4.30 TB/s"),
    )
    return tabulate(body, headers=headers, tablefmt="github", disable_numparse=True)


def list_table(rows: Sequence[dict[str, Any]]) -> str:
    body = [
        (
            *(row["operand"], " + ".join(map(str, row["widths"])) + f" x {row['k']}", row["m"]),
            *(f"{row['library']:.2f}", f"{row['ours']:.2f}"),
            f"{row['library'] / row['ours']:.3f}",
        )
        for row in rows
    ]
    headers = ("operands", "N x K", "rows", "library us", "one launch us", "speedup")
    return tabulate(body, headers=headers, tablefmt="github", disable_numparse=True)


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--operands", nargs="+", default=["fp8", "bf16"])
    parser.add_argument("--date", default="")
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    spec = arch.detect("cuda")
    assert spec is not None, "no supported GPU"
    rows = []
    for operand in given.operands:
        dtype = spec.fp8_dtype if operand == "fp8" else BF16
        for n, k in SHAPES:
            count = max(3, min(40, ROTATED_BYTES // (n * k * dtype.itemsize) + 1))
            weights = [random_operand(n, k, dtype) for _ in range(count)]
            rows += [measure(n, k, m, weights) for m in given.rows]
    header = (
        f"Skinny GEMM on {torch.cuda.get_device_name()}, torch {torch.__version__}, "
        f"{given.date}, commit {given.commit or commit()}. Graph replay, distinct weights in "
        "rotation beyond the L2; library: torch._scaled_mm or torch.mm; the vendor form calls it."
    )
    lists = [measure_list(widths, k, m, spec.fp8_dtype) for widths, k in LISTS for m in given.rows]
    text = f"{header}\n\n{summary(rows)}\n\n{table(rows)}\n\n{list_table(lists)}\n"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu_gemm.md").write_text(text)
    record = {"header": header, "rows": [asdict(row) for row in rows], "lists": lists}
    (given.out / "gpu_gemm.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
