"""The CPU's operators: ours beside eager and Inductor, and beside the machine's own bandwidth.

Norm and SiLU rows: our operator called directly, eager's chain of operators, the chain compiled by
this backend and by Inductor; `% stream` is the direct call's bytes against a measured copy.
Skinny matmuls: our operator, PyTorch's `_scaled_mm` (FP8) and bf16 `mm`; `% read` is the weight's
bytes against a measured read. All providers of a line run in turn, many times; medians count.
Run as `python -m benchmarks.cpu_ops rows` or `... gemm`, with `--threads 1 2`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)

BF16, F32, FN = torch.bfloat16, torch.float32, torch.float8_e4m3fn
EPS = 1e-6
OPS = torch.ops.mi300
Call = Callable[[], object]


def norm_quant(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    h = x + residual
    normed = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + EPS)
    y = weight * normed.to(BF16)
    return (y.float() / scale).clamp(-448.0, 448.0).to(FN), h


def norm_quant_dynamic(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    h = x + residual
    normed = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + EPS)
    y = (weight * normed.to(BF16)).float()
    scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return (y / scale).clamp(-448.0, 448.0).to(FN), scale, h


def silu_quant(gate: Tensor, up: Tensor, scale: Tensor) -> Tensor:
    y = F.silu(gate) * up
    return (y.float() / scale).clamp(-448.0, 448.0).to(FN)


def silu_quant_dynamic(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    y = (F.silu(gate) * up).float()
    scale = y.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    return (y / scale).clamp(-448.0, 448.0).to(FN), scale


@dataclass(frozen=True)
class RowCase:
    """One line: the eager chain, our operator on the same inputs, and the bytes it has to move."""

    name: str
    rows: int
    hidden: int
    bytes_moved: int
    eager: Callable[..., object]
    ours: Callable[..., object]
    inputs: tuple[Tensor, ...]


def row_cases(rows: int, hidden: int) -> Iterator[RowCase]:
    x, residual = torch.randn(2, rows, hidden).to(BF16).unbind()
    weight, scale = torch.randn(hidden).to(BF16), torch.tensor([0.02])
    gate, up = torch.randn(rows, 2 * hidden).to(BF16).chunk(2, -1)
    norm = (EPS, 0.0, BF16, BF16)
    target = (FN, "div", F32, -448.0, 448.0, False)
    per_token = (-1, "amax_div", 448.0, 1e-12, 0.0)

    def ours_norm(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        return OPS.add_rms_norm_quant.default(
            x, residual, BF16, BF16, weight, *norm, [scale], *target
        )

    def ours_norm_dynamic(x: Tensor, residual: Tensor, weight: Tensor) -> object:
        return OPS.add_rms_norm_quant_dynamic.default(
            x, residual, BF16, BF16, weight, *norm, *per_token, *target
        )

    def ours_silu(gate: Tensor, up: Tensor, scale: Tensor) -> object:
        return OPS.silu_mul_quant.default(gate, up, None, BF16, BF16, [scale], *target)

    def ours_silu_dynamic(gate: Tensor, up: Tensor) -> object:
        return OPS.silu_mul_quant_dynamic.default(gate, up, None, BF16, BF16, *per_token, *target)

    size = rows * hidden
    shape = (rows, hidden)
    added = (x, residual, weight)
    yield RowCase("add+norm+quant", *shape, 7 * size, norm_quant, ours_norm, (*added, scale))
    yield RowCase(
        "add+norm+quant per token", *shape, 7 * size, norm_quant_dynamic, ours_norm_dynamic, added
    )
    yield RowCase("silu*mul+quant", *shape, 5 * size, silu_quant, ours_silu, (gate, up, scale))
    yield RowCase(
        "silu*mul+quant per token",
        *shape,
        5 * size,
        silu_quant_dynamic,
        ours_silu_dynamic,
        (gate, up),
    )


def interleaved_medians(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Median microseconds of each call; the calls take turns for `seconds` altogether."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) * 1e6 for name, values in times.items()}


def measure_bandwidth() -> tuple[float, float]:
    """GB/s of reading (a sum) and of streaming (a copy, both directions) over 512 MB."""
    a = torch.ones(2**27)
    b = torch.empty_like(a)
    times = interleaved_medians({"read": a.sum, "copy": lambda: b.copy_(a)}, 3.0)
    size = a.numel() * a.element_size()
    return size / times["read"] / 1e3, 2 * size / times["copy"] / 1e3


def row_table(rows: list[int], hiddens: list[int], compiled: bool, seconds: float) -> str:
    _, stream = measure_bandwidth()
    lines = []
    for hidden in hiddens:
        for count in rows:
            for case in row_cases(count, hidden):
                calls: dict[str, Call] = {
                    "ours": lambda case=case: case.ours(*case.inputs),
                    "eager": lambda case=case: case.eager(*case.inputs),
                }
                if compiled:
                    torch._dynamo.reset()
                    for backend in ("mi300", "inductor"):
                        chain = torch.compile(case.eager, backend=backend, dynamic=False)
                        calls[backend] = lambda case=case, chain=chain: chain(*case.inputs)
                with torch.no_grad():
                    us = interleaved_medians(calls, seconds)
                ratio = us["inductor"] / us["mi300"] if compiled else float("nan")
                lines.append(
                    [case.name, hidden, count, us["ours"], us["eager"], us["eager"] / us["ours"]]
                    + [us.get("mi300"), us.get("inductor"), ratio]
                    + [case.bytes_moved / us["ours"] / 1e3 / stream * 100]
                )
    heads = ["op", "hidden", "rows", "ours µs", "eager µs", "eager/ours", "mi300 µs"]
    heads += ["inductor µs", "inductor/mi300", "% stream"]
    title = f"{torch.get_num_threads()} threads, streaming {stream:.1f} GB/s\n"
    return title + tabulate(lines, heads, floatfmt=".1f")


def gemm_table(rows: list[int], shapes: list[tuple[int, int]], seconds: float) -> str:
    read, _ = measure_bandwidth()
    lines = []
    one = torch.ones(1)
    for n, k in shapes:
        weight16 = torch.randn(n, k).to(BF16)
        weight8 = weight16.to(FN)
        for m in rows:
            a16 = torch.randn(m, k).to(BF16)
            a8 = a16.to(FN)
            calls: dict[str, Call] = {
                "ours": lambda a=a8, w=weight8: OPS.skinny_gemm.default(
                    a, w, one, one, None, None, BF16
                ),
                "scaled_mm": lambda a=a8, w=weight8: torch._scaled_mm(
                    a, w.t(), one, one, out_dtype=BF16
                ),
                "ours16": lambda a=a16, w=weight16: OPS.skinny_gemm.default(
                    a, w, None, None, None, None, BF16
                ),
                "mm": lambda a=a16, w=weight16: torch.mm(a, w.t()),
            }
            us = interleaved_medians(calls, seconds)
            lines.append(
                [f"{n} x {k}", m, us["ours"], us["scaled_mm"] / us["ours"], us["mm"] / us["ours"]]
                + [n * k / us["ours"] / 1e3 / read * 100, us["ours16"], us["mm"] / us["ours16"]]
            )
    heads = ["n x k", "m", "FP8 µs", "_scaled_mm/ours", "bf16 mm/ours", "% read", "bf16 µs"]
    heads += ["bf16 mm/ours bf16"]
    title = f"{torch.get_num_threads()} threads, reading {read:.1f} GB/s\n"
    return title + tabulate(lines, heads, floatfmt=".1f")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=["rows", "gemm"])
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--rows", type=int, nargs="+", help="1 8 64 1024, or 1 4 16 64 for gemm")
    parser.add_argument("--hidden", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled calls out")
    args = parser.parse_args()
    for threads in args.threads:
        torch.set_num_threads(threads)
        if args.table == "rows":
            rows = args.rows or [1, 8, 64, 1024]
            print(row_table(rows, args.hidden, not args.no_compile, args.seconds))
        else:
            shapes = [(4096, 4096), (14336, 4096), (4096, 14336)]
            print(gemm_table(args.rows or [1, 4, 16, 64], shapes, args.seconds))


if __name__ == "__main__":
    main()
