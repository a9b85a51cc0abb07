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
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from itertools import product
from statistics import median

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

import mi300_inductor.ops  # noqa: F401  (registers the operators)
from benchmarks.arguments import parse_sweep, sweep, whole
from benchmarks.header import commit, processor, recorded
from benchmarks.presets import check_memory
from benchmarks.timing import Unavailable, cache_bytes, compile_in_this_process
from mi300_inductor import build
from mi300_inductor.dtype_codes import code

BF16, F32, FN = torch.bfloat16, torch.float32, torch.float8_e4m3fn
EPS = 1e-6
OPS = torch.ops.mi300
HALF = code(BF16)
TARGET = (code(FN), "div", code(F32), -448.0, 448.0, False)
PER_TOKEN = (-1, "amax_div", 448.0, 1e-12, 0.0)
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
    """One line: the chain and its inputs, our operator on them, and the bytes it has to move."""

    name: str
    rows: int
    hidden: int
    bytes_moved: int
    chain: Callable[..., object]
    inputs: tuple[Tensor, ...]
    ours: Call


def row_cases(rows: int, hidden: int) -> Iterator[RowCase]:
    x, residual = torch.randn(2, rows, hidden).to(BF16).unbind()
    weight, scale = torch.randn(hidden).to(BF16), torch.tensor([0.02])
    gate, up = torch.randn(rows, 2 * hidden).to(BF16).chunk(2, -1)
    added, norm = (x, residual, HALF, HALF), (weight, EPS, 0.0, HALF, HALF)
    silu = (gate, up, None, HALF, HALF)
    shape, size = (rows, hidden), rows * hidden
    yield RowCase(
        *("add+norm+quant", *shape, 7 * size, norm_quant, (x, residual, weight, scale)),
        partial(OPS.add_rms_norm_quant.default, *added, *norm, [scale], *TARGET),
    )
    yield RowCase(
        *("add+norm+quant per token", *shape, 7 * size, norm_quant_dynamic, (x, residual, weight)),
        partial(OPS.add_rms_norm_quant_dynamic.default, *added, *norm, *PER_TOKEN, *TARGET),
    )
    yield RowCase(
        *("silu*mul+quant", *shape, 5 * size, silu_quant, (gate, up, scale)),
        partial(OPS.silu_mul_quant.default, *silu, [scale], *TARGET),
    )
    yield RowCase(
        *("silu*mul+quant per token", *shape, 5 * size, silu_quant_dynamic, (gate, up)),
        partial(OPS.silu_mul_quant_dynamic.default, *silu, *PER_TOKEN, *TARGET),
    )


def tiny_calls(hidden: int = 64) -> dict[str, Call]:
    """Every operator, and an addition by ATen, on one short row: what remains is the call."""
    x, residual, weight = (torch.randn(1, hidden).to(BF16) for _ in range(3))
    added, norm = (x, residual, HALF, HALF), (weight[0], EPS, 0.0, HALF, HALF)
    silu, static = (x, residual, None, HALF, HALF), ([torch.tensor([0.02])], *TARGET)
    given = {
        **{"rms_norm": (x, *norm), "add_rms_norm": (*added, *norm), "silu_mul": silu},
        "rms_norm_quant": (x, *norm, *static),
        "add_rms_norm_quant": (*added, *norm, *static),
        "silu_mul_quant": (*silu, *static),
        "rms_norm_quant_dynamic": (x, *norm, *PER_TOKEN, *TARGET),
        "add_rms_norm_quant_dynamic": (*added, *norm, *PER_TOKEN, *TARGET),
        "silu_mul_quant_dynamic": (*silu, *PER_TOKEN, *TARGET),
    }
    ours = {name: partial(getattr(OPS, name).default, *args) for name, args in given.items()}
    return {"aten.add": partial(torch.ops.aten.add.Tensor, x, residual), **ours}


def repeated(call: Call, count: int = 100) -> Call:
    """A call that is `count` calls in a row."""

    def run() -> None:
        for _ in range(count):
            call()

    return run


def measure_overheads(seconds: float) -> dict[str, float]:
    """Microseconds of one call of each operator on a tiny row, many in a row."""
    calls = {name: repeated(call) for name, call in tiny_calls().items()}
    return {name: us / 100 for name, us in interleaved_medians(calls, seconds).items()}


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
    """GB/s of reading (a sum) and of streaming (a copy) over twice the last cache."""
    a = torch.ones(cache_bytes(torch.device("cpu")) // 4)
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
    calls: dict[str, Call] = {"ours": case.ours, "eager": partial(case.chain, *case.inputs)}
    lines = []
    for threads, bandwidth in stream.items():
        torch.set_num_threads(threads)  # Inductor's code is made for this number
        if compiled:
            torch._dynamo.reset()
            for backend in ("mi300", "inductor"):
                chain = torch.compile(case.chain, backend=backend, dynamic=False)
                calls[backend] = partial(chain, *case.inputs)
                calls[backend]()
        wake_threads()
        us = interleaved_medians(calls, seconds)
        share = case.bytes_moved / us["ours"] / 1e3 / bandwidth
        both = (us.get("mi300"), us.get("inductor"))
        place = (case.name, case.hidden, case.rows, threads)
        lines.append(Line(*place, us["ours"], us["eager"], *both, share))
    return lines


def arguments() -> argparse.Namespace:
    parser = sweep("cpu_ops", __doc__.splitlines()[0], "cpu_rows", [1, 8, 64, 1024])
    parser.set_defaults(threads=[torch.get_num_threads()])
    parser.add_argument("--hidden", type=whole(), nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled calls out")
    return parse_sweep(parser)


def main() -> int:
    args = arguments()
    compile_in_this_process()
    stream, overheads, lines = {}, {}, []
    with torch.no_grad():
        for threads in args.threads:
            torch.set_num_threads(threads)
            wake_threads()
            stream[threads] = measure_bandwidth()[1]
            overheads[threads] = measure_overheads(2.0)
        for hidden, rows in product(args.hidden, args.rows):
            try:
                check_memory(60 * hidden * rows, torch.device("cpu"))
            except Unavailable as missing:
                print(f"missing: {rows} x {hidden}: {missing}")
                continue
            for case in row_cases(rows, hidden):
                lines += measure(case, stream, not args.no_compile, args.seconds)
    if not lines:
        return 1
    streams = ", ".join(f"{gbs:.1f} GB/s with {threads}" for threads, gbs in stream.items())
    header = (
        f"Norm and SiLU rows on {processor()} ({build.cpu_level()}), torch {torch.__version__}, "
        f"commit {commit()}, {date.today().isoformat()}. Interleaved medians, bf16, e4m3fn; "
        f"streaming (a copy, both directions) {streams} threads. Made by "
        f"`{recorded('benchmarks.cpu_ops', sys.argv[1:])}`."
    )
    table = tabulate(
        [line.cells for line in lines], HEADS, tablefmt="github", floatfmt=".1f", missingval=""
    )
    tiny = tabulate(
        [
            [name, *(us[name] for us in overheads.values())]
            for name in next(iter(overheads.values()))
        ],
        ["one row of 64, µs a call", *(f"{threads} threads" for threads in overheads)],
        tablefmt="github",
        floatfmt=".2f",
    )
    text = f"{header}\n\n{table}\n\n{tiny}\n"
    print(text)
    if args.out is not None:
        (args.out / f"{args.name}.md").write_text(text)
        rows = [asdict(line) for line in lines]
        record = {"header": header, "stream_gbs": stream, "rows": rows, "call_us": overheads}
        (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
