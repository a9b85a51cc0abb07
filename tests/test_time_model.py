"""The time model: against measurements, its limits, and what bounds a kernel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sympy
import torch

from benchmarks import modelled
from mi300_inductor import build, cpu_timing
from mi300_inductor.arch import CPU, GFX942, SM90, MatrixRate
from mi300_inductor.cost import Cost, Kernel
from mi300_inductor.graph import select, unfused
from mi300_inductor.time_model import estimate, total

s0 = sympy.Symbol("s0", integer=True, positive=True)


@pytest.mark.parametrize("table", ["rows_on_h200", "gemm_on_h200"])
def test_modelled_times_are_within_a_third_of_those_measured_on_an_h200(table: str) -> None:
    lines = list(getattr(modelled, table)())
    assert len(lines) > 50
    assert [line.case for line in lines if max(line.ratio, 1 / line.ratio) > 1.3] == []


@pytest.mark.parametrize("table", ["published_rows", "published_gemm"])
def test_modelled_times_are_within_half_of_those_published_of_mi300x(table: str) -> None:
    lines = list(getattr(modelled, table)())
    assert len(lines) > 30
    assert [line.case for line in lines if max(line.ratio, 1 / line.ratio) > 1.5] == []


@pytest.mark.parametrize("spec", [GFX942, SM90, CPU], ids=lambda spec: spec.name)
def test_more_work_never_takes_less_time(spec: object) -> None:
    work = modelled.row_work("norm", "static", 4096, 1)
    (one,) = select.row_operator("norm", work)
    base = estimate(one, spec).total
    for change in (
        {"read": one.read * 2},
        {"written": one.written * 2},
        {"again": 10**6},
        {"trips": one.trips + 1},
        {"flops": one.flops * 10**6},
    ):
        assert estimate(replace(one, **change), spec).total >= base


def test_few_rows_wait_and_many_are_bound_by_memory() -> None:
    def bound(rows: int) -> str:
        work = modelled.row_work("norm", "static", 16384, rows)
        return total(select.row_operator("norm", work), GFX942).bound

    assert bound(1) == "synchronisation"
    assert bound(8192) == "memory"
    flat = modelled.row_work("silu", "static", 64, 1)
    assert total(select.row_operator("silu", flat), SM90).bound == "launch"
    large = modelled.matmul_work(8192, 8192, 8192, torch.bfloat16)
    assert estimate(select.matmul_operator("skinny_gemm", large), GFX942).bound == "compute"


def test_one_row_does_not_fill_the_device() -> None:
    """The rows of a grid are counted: a byte of one row takes longer than one of many."""

    def seconds_per_row(rows: int) -> float:
        work = modelled.row_work("norm", "static", 16384, rows)
        return total(select.row_operator("norm", work), GFX942).total / rows

    assert seconds_per_row(1) > 50 * seconds_per_row(304)


def test_the_loops_of_one_c_function_are_called_once() -> None:
    work = modelled.row_work("norm", "static", 4096, 8)
    add, norm = unfused.row_kernels(work, on_gpu=False)
    spec = replace(CPU, timing=replace(CPU.timing, generated_launch=1.0))
    assert total((add, norm), spec).launch == 1.0
    (ours,) = select.row_operator("norm", work)
    assert total((add, ours, norm), spec).launch == 2.0 + CPU.timing.launch
    on_gpu = replace(SM90, timing=replace(SM90.timing, generated_launch=1.0))
    assert total((add, norm), on_gpu).launch == 2.0


def test_the_constants_of_a_cpu_follow_from_what_calls_took() -> None:
    calls = {
        f"{s}_{f} {n}": t
        for s, t, n in (
            ("operator", 2e-6, "call"),
            ("generated", 4e-6, "call"),
            ("operator", 12e-6, "rows"),
            ("generated", 24e-6, "rows"),
        )
        for f in ("norm", "activation")
    }
    n, k = cpu_timing._PRODUCT
    products = {
        f"{s} {size} {rows}": 2e-6 + 1e-6 + 3e-6 * rows
        for s in ("operator", "library")
        for size in (1, 2)
        for rows in (1, 64)
    }
    found = cpu_timing.timing({**calls, **products, "near": 1e-4, "far": 0.1})
    assert (found.launch, found.generated_launch) == (2e-6, 4e-6)
    assert found.generated_rate == pytest.approx(found.vector_rate / 2)
    assert found.bandwidth == 2 * 16384**2 / 0.1 and found.cache_bandwidth == 2 * 2**20 / 1e-4
    assert len(found.matrix_rates) == 4
    for rate in found.matrix_rates:
        assert rate.flops == pytest.approx(2 * n * k / 3e-6)
        assert rate.weights == pytest.approx(n * k / 1e-6)
    assert cpu_timing.without_growth({**calls, **products}) == []
    disturbed = {**calls, **products, "library 1 1": 1e-3, "operator_norm call": 1e-3}
    assert cpu_timing.without_growth(disturbed) == [
        "`operator_norm rows` and `operator_norm call`",
        "`library 1 64` and `library 1 1`",
    ]


def test_a_busy_cpu_is_said_and_not_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build.load_kernels("CPU")  # before the cache is another one
    names = list(cpu_timing.calls())
    monkeypatch.setattr(cpu_timing, "calls", lambda: dict.fromkeys(names))
    monkeypatch.setattr(cpu_timing, "time_undisturbed", lambda calls, _: [1e-3] * len(calls))
    with pytest.raises(RuntimeError, match="^cpu_timing: this CPU is too busy to be measured; got"):
        cpu_timing._write(tmp_path / "cpu_timing.json")
    assert not list(tmp_path.iterdir())


def test_symbols_take_the_numbers_they_are_given() -> None:
    kernel = Kernel("copy", "operator", 8 * s0, 8 * s0, rows=s0 / 2048)
    fixed = Kernel("copy", "operator", 8 * 10**6, 8 * 10**6, rows=10**6 // 2048)
    few, many = (estimate(kernel, SM90, ((s0, n),)).total for n in (1, 10**6))
    assert few < many
    assert many == pytest.approx(estimate(fixed, SM90).total, rel=1e-3)


def test_what_does_not_fit_the_cache_comes_from_memory() -> None:
    kernel = Kernel("copy", "operator", 10**6, 10**6, rows=1000)
    assert estimate(kernel, SM90).total < estimate(kernel, SM90, (), 10**9).total


def test_savings_are_said_in_the_graphs_symbols() -> None:
    def kernel(read: object, written: object) -> Kernel:
        return Kernel("k", "inductor", read, written)

    before = (kernel(4 * s0, 2 * s0), kernel(2 * s0, 2 * s0))
    assert Cost(before, (kernel(4 * s0, 2 * s0),)).saving == "saves 4*s0 bytes, 1 launch"
    assert Cost(before, (*before, *before)).saving == "moves 10*s0 bytes more, 2 launches more"
    assert Cost(before, before).saving == "same bytes and launches"
    assert Cost(before, (kernel(8 * s0, 4 * s0),)).saving == (
        "saves 1 launch, moves 2*s0 bytes more"
    )


def test_gpu_kernels_of_inductor_counted_by_hand() -> None:
    """One kernel for what goes over whole rows; a row longer than 1024 is read in every pass."""
    hidden, rows = 4096, 16
    elements, parameters = hidden * rows, 2 * hidden + 4

    def kernels(family: str, form: str) -> list[tuple[int, int, int]]:
        work = modelled.row_work(family, form, hidden, rows)
        return [(k.read, k.again, k.written) for k in unfused.row_kernels(work, on_gpu=True)]

    # Reads x, residual, weight and scale; writes the sum and the codes; reads the sum once more.
    assert kernels("norm", "static") == [
        (4 * elements + parameters, 2 * elements, 3 * elements),
    ]
    assert kernels("norm", "per_token") == [
        (4 * elements + 2 * hidden, 4 * elements, 3 * elements + 4 * rows),
    ]
    # The sum and rstd in the first kernel; codes and scales from them in the second.
    assert kernels("norm", "per_group") == [
        (4 * elements, 0, 2 * elements + 4 * rows),
        (2 * elements + 4 * rows + 2 * hidden, 0, elements + 4 * elements // 128),
    ]
    assert kernels("silu", "static") == [(4 * elements + 4, 0, elements)]
    assert kernels("silu", "per_token") == [(4 * elements, 4 * elements, elements + 4 * rows)]
    assert kernels("silu", "per_group") == [(4 * elements, 0, elements + 4 * elements // 128)]


def test_matmuls_counted_by_hand() -> None:
    m, n, k = 8, 96, 256
    work = modelled.matmul_work(m, n, k, torch.float8_e4m3fn)
    (library,) = unfused.matmul_kernels(work)
    operator = select.matmul_operator("skinny_gemm", work)
    for kernel in (library, operator):
        assert (kernel.read, kernel.written) == (m * k + 4 + n * k + 4, 2 * m * n)
        assert (kernel.parameters, kernel.flops) == (n * k + 4, 2 * m * n * k)
    added = replace(work, addend=sympy.Integer(2 * m * n))
    product, add = unfused.matmul_kernels(added)
    assert product == library
    assert (add.read, add.written, add.flops) == (4 * m * n, 2 * m * n, m * n)
    assert select.matmul_operator("skinny_gemm", added).read == operator.read + 2 * m * n


def test_a_measured_matmul_widens_its_weights_however_few_the_rows() -> None:
    rate = MatrixRate("operator", 1, flops=1e12, weights=1e9)
    spec = replace(CPU, timing=replace(CPU.timing, bandwidth=1e15, matrix_rates=(rate,)))

    def seconds(rows: int) -> float:
        work = modelled.matmul_work(rows, 4096, 4096, torch.float8_e4m3fn)
        return estimate(select.matmul_operator("skinny_gemm", work), spec).compute

    assert seconds(1) == pytest.approx(4096 * 4096 * (2e-12 + 1e-9), rel=1e-5)
    assert seconds(64) - seconds(1) == pytest.approx(63 * 2 * 4096 * 4096 / 1e12, rel=1e-5)
