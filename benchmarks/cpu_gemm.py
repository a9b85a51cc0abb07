"""Skinny and prefill matmuls on a CPU: ours beside PyTorch's, medians of calls that take turns.

FP8 is compared with `torch._scaled_mm` and with bf16 `mm` on the same shape, the float dtypes with
`mm` in their own dtype. Weights rotate, so that a call finds its own in memory and not in a cache.
`% read` is the weight's bytes over the time, against the machine's own measured read bandwidth.
Run as `python -m benchmarks.cpu_gemm --threads 1 2`; `--out DIR` also writes .json and .md there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count, product

import torch
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from benchmarks import fp8_baseline
from benchmarks.arguments import parse_sweep, sweep, whole
from benchmarks.cpu_ops import Call, interleaved_medians, measure_bandwidth
from benchmarks.header import environment, recorded
from benchmarks.presets import check_memory
from benchmarks.results import one_line
from benchmarks.tables import counted
from benchmarks.timing import Unavailable, cache_bytes, empty_caches, take_turns
from mi300_inductor import build

CPU = torch.device("cpu")
BF16, F16, F32, FN = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
DTYPES = {"fp8": FN, "bf16": BF16, "fp16": F16, "fp32": F32}
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
NAMES = ("ours", "mm", "scaled_mm")
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


def rotating(name: str, call: Callable[[Tensor], object], weights: Sequence[Tensor]) -> Call:
    """A call that takes the next weight each time; each name starts at another one."""
    turn, numbers = take_turns(dict.fromkeys(NAMES, call), weights)[name], count()
    return lambda: turn(next(numbers))


def copies(weight: Tensor, rotated_bytes: int) -> list[Tensor]:
    return [weight.clone() for _ in range(copy_count(weight.nbytes, rotated_bytes))]


def copy_count(size: int, rotated_bytes: int) -> int:
    return max(1, -(-rotated_bytes // size))


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
    given: dict[str, tuple[Callable[[Tensor], object], torch.dtype]] = {
        "ours": (partial(ours, a.to(dtype), one), dtype),
        "mm": (partial(library, a.to(plain)), plain),
    }
    if one is not None and m <= MOST_SCALED_MM_ROWS:
        given["scaled_mm"] = (partial(scaled_mm, a.to(FN), one), FN)
    calls = {}
    for name, (call, own) in given.items():
        try:
            call(pools[own][0])
        except RuntimeError as error:  # _scaled_mm takes multiples of 16 alone
            print(f"missing: {name}, {operand}, {n} x {k}, {counted(m, 'row')}: {one_line(error)}")
        else:
            calls[name] = rotating(name, call, pools[own])
    empty_caches(CPU)
    us = interleaved_medians(calls, seconds)
    share = n * k * dtype.itemsize / us["ours"] / 1e3 / read
    theirs = us.get("scaled_mm")
    return Line(operand, n, k, m, torch.get_num_threads(), us["ours"], theirs, us["mm"], share)


def pools_of(
    args: argparse.Namespace, n: int, k: int, operand: str
) -> dict[torch.dtype, list[Tensor]]:
    """Copies of a random weight in the operand's dtype and in that of `mm`.

    Raises:
        Unavailable: if they, or the inputs and results beside them, do not fit into the memory.
    """
    dtype = DTYPES[operand]
    wanted = {dtype, BF16 if dtype == FN else dtype}
    sizes = [n * k * one.itemsize for one in wanted]
    weights = sum(size * copy_count(size, args.rotated << 20) for size in sizes)
    check_memory(8 * n * k + weights + 8 * max(args.rows) * (n + k), CPU)
    base = torch.randn(n, k)
    return {one: copies(base.to(one), args.rotated << 20) for one in wanted}


def lines_of(args: argparse.Namespace) -> list[Line]:
    lines = []
    reads = {}
    for threads in args.threads:
        torch.set_num_threads(threads)
        reads[threads], _ = measure_bandwidth()
    for (n, k), operand in product(args.shapes, args.operands):
        try:
            pools = pools_of(args, n, k, operand)
        except Unavailable as missing:
            print(f"missing: {operand}, {n} x {k}: {missing}")
            continue
        for threads, m in product(args.threads, args.rows):
            torch.set_num_threads(threads)
            lines.append(measure(operand, m, pools, reads[threads], args.seconds))
    return lines


def shape(text: str) -> tuple[int, int]:
    """Parses NxK."""
    n, is_pair, k = text.partition("x")
    if not is_pair:
        raise argparse.ArgumentTypeError(f"got {text or 'nothing'}, expected NxK, as 4096x4096")
    return whole()(n), whole()(k)


def arguments() -> argparse.Namespace:
    parser = sweep("cpu_gemm", __doc__.splitlines()[0], "cpu_gemm", [1, 4, 16, 64])
    parser.set_defaults(threads=[torch.get_num_threads()])
    parser.add_argument("--shapes", type=shape, nargs="+", default=SHAPES, metavar="NxK")
    parser.add_argument("--operands", nargs="+", default=["fp8", "bf16"], choices=sorted(DTYPES))
    twice = cache_bytes(CPU) >> 20
    told = f"MiB of weights in rotation; by default twice the last cache [{twice}]"
    parser.add_argument("--rotated", type=whole(0), default=twice, help=told)
    return parse_sweep(parser)


def main() -> int:
    args = arguments()
    lines = lines_of(args)
    if not lines:
        return 1
    facts = environment(torch.device("cpu"))
    header = (
        f"Skinny GEMM on {facts['processor']} ({build.cpu_level()}), torch {facts['torch']}, "
        f"{facts['date']}, commit {facts['commit']}. "
        f"Interleaved medians, {args.rotated} MiB of weights in rotation per dtype, last cache "
        f"{facts['last cache']}; FP8 is float8_e4m3fn with per-tensor scales and bf16 output, its "
        f"mm is the bf16 one. Made by `{recorded('benchmarks.cpu_gemm', sys.argv[1:])}`."
    )
    body = [line.cells for line in lines]
    table = tabulate(body, HEADS, tablefmt="github", floatfmt=".2f", missingval="")
    print(f"{header}\n\n{table}")
    if args.out is not None:
        (args.out / f"{args.name}.md").write_text(f"{header}\n\n{table}\n")
        record = {"header": header, "rows": [asdict(line) for line in lines]}
        (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
