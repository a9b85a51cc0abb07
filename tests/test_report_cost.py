"""The report's counts, as expressions in the row count, against counts by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from mi300_inductor.report import Fusion, GraphReport, Report
from mi300_inductor.report_html import report_html
from tests.patterns import engine

WIDTH, COLUMNS = 2048, 96


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """On rows longer than Inductor keeps, so that it reads each of them again."""
    return F.rms_norm(x, (WIDTH,), weight, 1e-6)


def silu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight)


# Bytes read and written and FLOPs: numbers of one row, then those that every row shares. A norm
# squares, adds up, and multiplies twice; SiLU counts 8 operations, 4 of them for the exponential.
CASES: dict[Any, tuple[tuple[int, int], ...]] = {
    norm: ((2 * WIDTH, 2 * WIDTH), (2 * WIDTH, 0), (4 * WIDTH, 0)),
    silu: ((2 * 2 * WIDTH, 0), (2 * WIDTH, 0), (8 * WIDTH, 0)),
    matmul: ((2 * WIDTH, 2 * COLUMNS * WIDTH), (2 * COLUMNS, 0), (2 * COLUMNS * WIDTH, 0)),
}


def fused(function: Any) -> Fusion:
    """The only fusion of a function whose row count is a symbol."""
    rows = engine.fresh(6, WIDTH)
    torch._dynamo.mark_dynamic(rows, 0)
    others = {norm: engine.fresh(WIDTH), silu: rows.clone(), matmul: engine.fresh(COLUMNS, WIDTH)}
    if function is silu:
        torch._dynamo.mark_dynamic(others[silu], 0)
    done = engine.run(function, rows, others[function], dynamic=None)
    (found,) = done.fused
    return found


@pytest.mark.parametrize("function", CASES)
def test_counts_are_those_by_hand(function: Any) -> None:
    fusion = fused(function)
    found = [fusion.read_after, fusion.written_after, fusion.flops_after]
    (rows,) = sympy.sympify(str(fusion.read_after)).free_symbols
    wanted = [each * rows + once for each, once in CASES[function]]
    assert [sympy.sympify(str(count)) for count in found] == wanted
    # Inductor reads the rows of the norm twice; with the others it does as much as we do.
    if function is norm:
        wanted[0] += 2 * WIDTH * rows
    found = [fusion.read_before, fusion.written_before, fusion.flops_before]
    assert [sympy.sympify(str(count)) for count in found] == wanted
    sums = [
        sympy.sympify(f"{fusion.read_before} + {fusion.written_before} - ({fusion.bytes_before})"),
        sympy.sympify(f"{fusion.read_after} + {fusion.written_after} - ({fusion.bytes_after})"),
    ]
    assert sums == [0, 0]
    # No machine is modelled on a CPU.
    assert "modelled" not in fusion.saving


def test_files_have_them() -> None:
    fusion = fused(norm)
    report = Report.of((GraphReport("0/0 inference", "inference", fused=(fusion, fusion)),))
    (item, _) = json.loads(report.to_json())["fused"]
    for name in ("read", "written", "flops"):
        for when in ("before", "after"):
            assert item[f"{name}_{when}"] == getattr(fusion, f"{name}_{when}")
    page = report_html(report)
    (symbol,) = set(re.findall(r"s\d+", str(fusion.flops_after)))
    assert "<th>FLOPs</th>" in page
    assert f"<td>16.4 kFLOP*{symbol}</td>" in page
    assert f"computes {4 * WIDTH}*{symbol} → {4 * WIDTH}*{symbol} FLOPs" in page
    assert f"reads 8192*{symbol} + 4096 → 4096*{symbol} + 4096 bytes" in page
