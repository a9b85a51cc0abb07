"""Modelled against measured time, over the tables in `results/` and the published ones of MI300X.

The shapes are those of the benchmarks' own tables; what the table says was measured stands beside
what `time_model.py` says of the same kernels. `python -m benchmarks.modelled` writes
`results/modelled.md`; with `--cpu` the cases are measured on this machine's CPU (modelled_cpu.py)
and stand in `results/modelled_cpu.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import sympy
import torch
from tabulate import tabulate

from benchmarks import tables
from benchmarks.arguments import check_places, folder
from benchmarks.results import Result
from mi300_inductor.arch import GFX942, SM90
from mi300_inductor.graph import select, unfused
from mi300_inductor.graph.work import MatmulWork, RowWork
from mi300_inductor.time_model import Estimate, estimate, total

RESULTS = Path(__file__).parent / "results"
FN, BF16 = torch.float8_e4m3fn, torch.bfloat16
# What is allowed between model and measurement: on devices that we measured, and on published ones.
MEASURED, PUBLISHED = 1.3, 1.5
# Outputs of a matmul that the model is for: a k_proj alone has fewer, and is never launched alone.
NARROWEST = 2048


@dataclass(frozen=True)
class Line:
    """One comparison: where it comes from, the case, and both times in microseconds."""

    table: str
    case: str
    kernel: str
    measured: float
    modelled: float
    bound: str
    limit: float

    @property
    def ratio(self) -> float:
        return self.modelled / self.measured

    @property
    def is_within(self) -> bool:
        return max(self.ratio, 1 / self.ratio) <= self.limit


def row_work(family: str, form: str, hidden: int, rows: int) -> RowWork:
    """The benchmark's norm (add, sum stored) or activation, bf16, quantised."""
    elements, is_norm = sympy.Integer(hidden * rows), family == "norm"
    group = {"static": None, "per_token": -1, "per_group": 128}[form]
    groups = {None: 0, -1: rows, 128: hidden * rows // 128}[group]
    zero = sympy.Integer(0)
    return RowWork(
        elements=elements,
        rows=sympy.Integer(rows),
        hidden=sympy.Integer(hidden),
        inputs=4 * elements,
        parameters=sympy.Integer(2 * hidden * is_norm + 4 * (group is None)),
        residual=2 * elements if is_norm else zero,
        is_residual_used=is_norm,
        activated=2 * elements,
        y=zero,
        quantised=elements,
        scales=sympy.Integer(4 * groups),
        quants=1,
        group=group,
        is_norm=is_norm,
    )


def matmul_work(m: int, n: int, k: int, operand: torch.dtype) -> MatmulWork:
    """A product with bf16 result."""
    size = operand.itemsize
    m_, n_, k_ = (sympy.Integer(value) for value in (m, n, k))
    zero = sympy.Integer(0)
    scales = 4 * (size == 1)
    return MatmulWork(
        m_,
        n_,
        k_,
        m_ * k_ * size + scales,
        n_ * k_ * size + scales,
        2 * m_ * n_,
        zero,
        zero,
        operand,
    )


def rows_on_h200() -> Iterator[Line]:
    result = Result.load(RESULTS / "ops_h200.json")
    for (family, form, hidden, rows), measured in tables.lines(result):
        work = row_work(str(family), str(form), int(str(hidden)), int(str(rows)))
        operator = select.row_operator(f"{family} {form}", work)
        for kernel, kernels in (
            ("op", operator),
            ("inductor", unfused.row_kernels(work, on_gpu=True)),
        ):
            if kernel in measured:
                record = measured[kernel]
                spent = total(kernels, SM90, (), record["sets"] * record["bytes"])
                case = f"{family} {form} {hidden} x {rows}"
                yield line("rows", case, kernel, record["us"], spent, MEASURED)


def line(
    table: str, case: str, kernel: str, measured: float, spent: Estimate, limit: float
) -> Line:
    return Line(table, case, kernel, measured, spent.total * 1e6, spent.bound, limit)


def gemm_on_h200() -> Iterator[Line]:
    for (_, n, k, dtype, rows), measured in tables.lines(Result.load(RESULTS / "gemm_h200.json")):
        ours = measured["op"]
        is_single = ours.get("together", 1) == 1
        if dtype == "fp8-per-token" or not is_single or int(str(n)) < NARROWEST:
            continue
        operand = FN if dtype == "fp8" else BF16
        work = matmul_work(int(str(rows)), int(str(n)), int(str(k)), operand)
        (library,) = unfused.matmul_kernels(work)
        operator = select.matmul_operator("skinny_gemm", work)
        if ours["plan"] == "vendor":
            operator = library
        case = f"{dtype} {rows} x {n} x {k}"
        theirs = min(record["us"] for name, record in measured.items() if name != "op")
        for name, kernel, us in (("ours", operator, ours["us"]), ("library", library, theirs)):
            yield line("gemm", case, name, us, estimate(kernel, SM90), MEASURED)


# hf-rocm-kernels' blog, "Creating custom kernels for the AMD MI300" (July 2025), its tables of
# RMSNorm, SwiGLU and skinny GEMM; fp16, hidden 16384, microseconds.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
NORM = {
    "vLLM": (5.51, 5.66, 5.69, 5.72, 5.86, 6.09, 6.46, 7.49, 11.88, 23.16, 44.81, 81.21),
    "HF": (4.18, 4.37, 4.38, 4.39, 4.48, 4.72, 5.54, 6.27, 10.74, 18.55, 34.72, 73.35),
}
SWIGLU = {
    "vLLM": (3.841, 3.862, 3.929, 3.942, 4.010, 4.024, 4.089, 4.203, 4.488, 7.485, 13.739, 25.431),
    "HF": (1.930, 1.939, 1.935, 1.993, 2.004, 1.916, 2.045, 2.618, 3.577, 5.476, 10.048, 19.896),
}
SKINNY = (
    *((m, 2304, 16384, *us) for m, us in zip(
        (1, 8, 16, 32), ((14.938, 11.685), (16.3, 12.342), (16.693, 13.909), (16.817, 17.021)),
        strict=True)),
    *((m, 13312, 16384, *us) for m, us in zip(
        (1, 8, 16, 32), ((77.636, 54.717), (80.031, 58.355), (75.236, 59.973), (82.198, 69.483)),
        strict=True)),
    *((m, 16384, 6656, *us) for m, us in zip(
        (1, 8, 16, 32), ((31.066, 27.613), (31.559, 28.134), (31.671, 30.233), (35.561, 35.052)),
        strict=True)),
)  # fmt: skip
# ROCm/rocm-libraries pull request 12329: fp16, one row, hipBLASLt and wvSpltK.
SKINNY_FP16 = (
    (13312, 17792, 118.96, 101.95),
    (76032, 13312, 497.0, 416.0),
    (8896, 13312, 71.12, 51.32),
    (4992, 13312, 43.31, 26.16),
    (8192, 12288, 61.53, 42.34),
    (4096, 11008, 32.77, 22.29),
)


def published_rows() -> Iterator[Line]:
    for family, hidden, table in (("norm", 16384, NORM), ("silu", 8192, SWIGLU)):
        for index, rows in enumerate(ROWS):
            work = row_work(family, "static", hidden, rows)
            (kernel,) = select.row_operator(family, work)
            # vLLM's kernels: one workgroup for each row, which reads it again to write the norm.
            again = work.residual if family == "norm" else 0
            vllm = replace(kernel, rows=work.rows, width=work.hidden, trips=2, again=again)
            for name, used in (("vLLM", vllm), ("HF", kernel)):
                case = f"{family} static {hidden} x {rows}"
                spent = estimate(used, GFX942)
                yield line("published", case, name, table[name][index], spent, PUBLISHED)


def published_gemm() -> Iterator[Line]:
    shapes = [(m, n, k, FN, a, b) for m, n, k, a, b in SKINNY]
    shapes += [(1, n, k, torch.float16, a, b) for n, k, a, b in SKINNY_FP16]
    for m, n, k, operand, library_us, skinny_us in shapes:
        work = matmul_work(m, n, k, operand)
        (library,) = unfused.matmul_kernels(work)
        kernel = select.matmul_operator("skinny_gemm", work)
        case = f"{str(operand).removeprefix('torch.')} {m} x {n} x {k}"
        for name, used, us in (("hipBLASLt", library, library_us), ("skinny", kernel, skinny_us)):
            yield line("published", case, name, us, estimate(used, GFX942), PUBLISHED)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.modelled", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--cpu", action="store_true", help="the CPU of this machine, measured now")
    parser.add_argument("--out", type=folder, default=RESULTS, help="folder of the table")
    arguments = parser.parse_args()
    name = "modelled_cpu.md" if arguments.cpu else "modelled.md"
    check_places(parser.error, "--out", arguments.out, [name])
    if arguments.cpu:
        from benchmarks.modelled_cpu import heading, on_cpu

        write(list(on_cpu()), heading(), arguments.out / name)
        return 0
    lines = [*rows_on_h200(), *gemm_on_h200(), *published_rows(), *published_gemm()]
    text = (
        "Rows and matmuls as measured on an H200 (ops_h200.md, gemm_h200.md), and as "
        "published of MI300X; `python -m benchmarks.modelled` writes this."
    )
    write(lines, text, arguments.out / name)
    return 0


def write(lines: list[Line], text: str, path: Path) -> None:
    path.write_text(f"{text} Times in us.\n\n{summary(lines)}\n\n{report(lines)}\n")
    print(summary(lines))


def summary(lines: list[Line]) -> str:
    rows = []
    for table in dict.fromkeys(one.table for one in lines):
        group = [one for one in lines if one.table == table]
        worst = max(group, key=lambda one: max(one.ratio, 1 / one.ratio))
        within = sum(one.is_within for one in group)
        rows.append([table, len(group), within, group[0].limit, worst.case, worst.kernel])
        rows[-1].append(round(worst.ratio, 2))
    heads = ["table", "cases", "within", "a factor of", "worst", "kernel", "modelled/measured"]
    return tabulate(rows, heads, tablefmt="github")


def report(lines: list[Line]) -> str:
    table = [
        [o.table, o.case, o.kernel, o.measured, o.modelled, o.ratio, o.bound,
         "" if o.is_within else "no"]
        for o in lines
    ]  # fmt: skip
    heads = ["table", "case", "kernel", "measured", "modelled", "ratio", "bound", "within"]
    return tabulate(table, heads, tablefmt="github", floatfmt=".2f")


if __name__ == "__main__":
    sys.exit(main())
