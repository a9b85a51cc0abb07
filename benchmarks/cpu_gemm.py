"""Skinny and prefill matmuls on a CPU: ours beside PyTorch's, medians of calls that take turns.

FP8 is compared with `torch._scaled_mm` and with bf16 `mm` on the same shape, the float dtypes with
`mm` in their own dtype. Weights rotate, so that a call finds its own in memory and not in a cache.
`% read` is the weight's bytes over the time, against the machine's own measured read bandwidth.
Run as `python -m benchmarks.cpu_gemm --threads 1 2`; `--out DIR` also writes .json and .md there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from benchmarks import fp8_baseline
from benchmarks.cpu_ops import interleaved_medians, measure_bandwidth
from benchmarks.header import environment, typed
from mi300_inductor import build

BF16, F16, F32, FN = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
DTYPES = {"fp8": FN, "bf16": BF16, "fp16": F16, "fp32": F32}
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
# `_scaled_mm` decodes every weight for every row: beyond this many it only costs time.
MOST_SCALED_MM_ROWS = 64


@dataclass
class Line:
    """One problem: microseconds of ours, of `_scaled_mm` (FP8 only) and of `mm`."""

    operand: str
    n: int
    k: int
    m: int
    threads: int
    ours: float
    scaled_mm: float | None
    mm: float
    read_share: float

    @property
    def cells(self) -> list[object]:
        gflops = 2e-3 * self.n * self.k * self.m
        over = None if self.scaled_mm is None else self.scaled_mm / self.ours
        return [
            *(self.threads, self.operand, f"{self.n} x {self.k}", self.m, self.ours, over),
            *(self.mm / self.ours, 100 * self.read_share, gflops / self.ours, gflops / self.mm),
        ]


HEADS = (
    *("threads", "operands", "n x k", "m", "ours µs", "_scaled_mm/ours", "mm/ours", "% read"),
    *("ours GFLOP/s", "mm GFLOP/s"),
)


def rotating(call: Callable[[Tensor], object], weights: Sequence[Tensor]) -> Callable[[], object]:
    turn = cycle(weights)
    return lambda: call(next(turn))


def copies(weight: Tensor, rotated_bytes: int) -> list[Tensor]:
    count = max(1, -(-rotated_bytes // weight.nbytes))
    return [weight, *(weight.clone() for _ in range(count - 1))]


def ours(a: Tensor, one: Tensor | None, weight: Tensor) -> Tensor:
    out_dtype = BF16 if one is not None else a.dtype
    return torch.ops.mi300.skinny_gemm.default(a, weight, one, one, None, None, out_dtype)


def scaled_mm(a: Tensor, one: Tensor, weight: Tensor) -> Tensor:
    return fp8_baseline.scaled_mm(a, weight.t(), one, one, out_dtype=BF16)


def library(a: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(a, weight.t())


def measure(
    operand: str, m: int, pools: dict[torch.dtype, list[Tensor]], read: float, seconds: float
) -> Line:
    """`pools` holds the weights in the operand's dtype and in that of `mm`."""
    dtype = DTYPES[operand]
    plain = BF16 if dtype == FN else dtype
    (n, k), one = pools[dtype][0].shape, torch.ones(1) if dtype == FN else None
    a = torch.randn(m, k)
    calls = {
        "ours": rotating(partial(ours, a.to(dtype), one), pools[dtype]),
        "mm": rotating(partial(library, a.to(plain)), pools[plain]),
    }
    if one is not None and m <= MOST_SCALED_MM_ROWS:
        calls["scaled_mm"] = rotating(partial(scaled_mm, a.to(FN), one), pools[FN])
    us = interleaved_medians(calls, seconds)
    share = n * k * dtype.itemsize / us["ours"] / 1e3 / read
    theirs = us.get("scaled_mm")
    return Line(operand, n, k, m, torch.get_num_threads(), us["ours"], theirs, us["mm"], share)


def lines_of(args: argparse.Namespace) -> list[Line]:
    lines = []
    reads = {}
    for threads in args.threads:
        torch.set_num_threads(threads)
        reads[threads], _ = measure_bandwidth()
    for n, k in args.shapes:
        base = torch.randn(n, k)
        for operand in args.operands:
            dtype = DTYPES[operand]
            wanted = {dtype, BF16 if dtype == FN else dtype}
            pools = {dtype: copies(base.to(dtype), args.rotated << 20) for dtype in wanted}
            for threads in args.threads:
                torch.set_num_threads(threads)
                for m in args.rows:
                    lines.append(measure(operand, m, pools, reads[threads], args.seconds))
    return lines


def shape(text: str) -> tuple[int, int]:
    n, k = text.split("x")
    return int(n), int(k)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--shapes", type=shape, nargs="+", default=SHAPES, metavar="NxK")
    parser.add_argument("--operands", nargs="+", default=["fp8", "bf16"], choices=sorted(DTYPES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    parser.add_argument("--rotated", type=int, default=300, help="MiB of weights in rotation")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--name", default="cpu_gemm", help="of the files in --out")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    lines = lines_of(args)
    facts = environment(torch.device("cpu"))
    header = (
        f"Skinny GEMM on {facts['processor']} ({build.cpu_level()}), torch {facts['torch']}, "
        f"{facts['date']}, commit {facts['commit']}. "
        f"Interleaved medians, {args.rotated} MiB of weights in rotation per dtype; FP8 is "
        "float8_e4m3fn with per-tensor scales and bf16 output, its mm is the bf16 one. Made by "
        f"`{typed('cpu_gemm')}`."
    )
    body = [line.cells for line in lines]
    table = tabulate(body, HEADS, tablefmt="github", floatfmt=".2f", missingval="")
    print(f"{header}\n\n{table}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{args.name}.md").write_text(f"{header}\n\n{table}\n")
        record = {"header": header, "rows": [asdict(line) for line in lines]}
        (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
