"""The CPU's norm and SiLU operators beside eager and Inductor, and beside the machine's bandwidth.

A line has our operator called directly, eager's chain of operators, and the chain compiled by this
backend and by Inductor; `% stream` is the direct call's bytes against a measured copy. All four
take turns, in an order drawn anew for each turn, and medians count. Run as
`python -m benchmarks.cpu_ops --threads 1 2`; `--out DIR` also writes .json and .md there.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from benchmarks.header import processor
from mi300_inductor import build
from mi300_inductor.dtype_codes import code

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
    half = code(BF16)
    norm = (EPS, 0.0, half, half)
    target = (code(FN), "div", code(F32), -448.0, 448.0, False)
    per_token = (-1, "amax_div", 448.0, 1e-12, 0.0)

    def ours_norm(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        return OPS.add_rms_norm_quant.default(
            x, residual, half, half, weight, *norm, [scale], *target
        )

    def ours_norm_dynamic(x: Tensor, residual: Tensor, weight: Tensor) -> object:
        return OPS.add_rms_norm_quant_dynamic.default(
            x, residual, half, half, weight, *norm, *per_token, *target
        )

    def ours_silu(gate: Tensor, up: Tensor, scale: Tensor) -> object:
        return OPS.silu_mul_quant.default(gate, up, None, half, half, [scale], *target)

    def ours_silu_dynamic(gate: Tensor, up: Tensor) -> object:
        return OPS.silu_mul_quant_dynamic.default(gate, up, None, half, half, *per_token, *target)

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
    turns = list(calls.items())
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(times))]) < 5:
        random.shuffle(turns)  # what a call finds in the caches is left by the one before
        for name, call in turns:
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


def wake_threads(seconds: float = 0.7) -> None:
    """Keeps all threads busy for a while, so that the system puts each on a core of its own."""
    a = torch.randn(768, 768)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        a @ a


@dataclass
class Line:
    """One case: microseconds of each provider, and the share of the streaming bandwidth."""

    op: str
    hidden: int
    rows: int
    threads: int
    ours: float
    eager: float
    mi300: float | None
    inductor: float | None
    share: float

    @property
    def cells(self) -> list[object]:
        compiled = self.inductor / self.mi300 if self.mi300 and self.inductor else None
        return [
            *(self.op, self.hidden, self.rows, self.threads, self.ours, self.eager),
            *(self.eager / self.ours, self.mi300, self.inductor, compiled, 100 * self.share),
        ]


HEADS = ["op", "hidden", "rows", "threads", "ours µs", "eager µs", "eager/ours"]
HEADS += ["mi300 µs", "inductor µs", "inductor/mi300", "% stream"]


def measure(case: RowCase, stream: dict[int, float], compiled: bool, seconds: float) -> list[Line]:
    """The lines of a case, one for each number of threads in `stream`."""
    calls: dict[str, Call] = {
        "ours": lambda: case.ours(*case.inputs),
        "eager": lambda: case.eager(*case.inputs),
    }
    lines = []
    for threads, bandwidth in stream.items():
        torch.set_num_threads(threads)  # Inductor's code is made for this number
        if compiled:
            torch._dynamo.reset()
            for backend in ("mi300", "inductor"):
                chain = torch.compile(case.eager, backend=backend, dynamic=False)
                calls[backend] = lambda chain=chain: chain(*case.inputs)
                calls[backend]()
        wake_threads()
        us = interleaved_medians(calls, seconds)
        share = case.bytes_moved / us["ours"] / 1e3 / bandwidth
        both = (us.get("mi300"), us.get("inductor"))
        place = (case.name, case.hidden, case.rows, threads)
        lines.append(Line(*place, us["ours"], us["eager"], *both, share))
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 1024])
    parser.add_argument("--hidden", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled calls out")
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--name", default="cpu_rows", help="of the files in --out")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    stream = {}
    for threads in args.threads:
        torch.set_num_threads(threads)
        wake_threads()
        stream[threads] = measure_bandwidth()[1]
    lines = []
    with torch.no_grad():
        for hidden in args.hidden:
            for rows in args.rows:
                for case in row_cases(rows, hidden):
                    lines += measure(case, stream, not args.no_compile, args.seconds)
    streams = ", ".join(f"{gbs:.1f} GB/s with {threads}" for threads, gbs in stream.items())
    header = (
        f"Norm and SiLU rows on {processor()} ({build.cpu_level()}), torch {torch.__version__}. "
        f"Interleaved medians, bf16, e4m3fn; streaming (a copy, both directions) {streams} threads."
    )
    body = [line.cells for line in lines]
    table = tabulate(body, HEADS, tablefmt="github", floatfmt=".1f", missingval="")
    print(f"{header}\n\n{table}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{args.name}.md").write_text(f"{header}\n\n{table}\n")
        record = {"header": header, "rows": [asdict(line) for line in lines]}
        (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
