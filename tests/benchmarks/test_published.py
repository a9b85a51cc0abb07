"""The run on an MI300 beside the published numbers: all of its path but the card."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import command_line, mi300, providers, published
from benchmarks.results import Result
from benchmarks.timing import Sample, Unavailable
from mi300_inductor import arch


@pytest.fixture
def fewer_rows(monkeypatch):
    for name in ("NORM", "SWIGLU"):
        kept = tuple(row for row in getattr(published, name) if row.rows in (1, 32))
        monkeypatch.setattr(published, name, kept)
    kept = tuple(row for row in published.MATMUL if row.m in (1, 16))
    monkeypatch.setattr(published, "MATMUL", kept)
    monkeypatch.setattr(mi300, "MODEL_ROWS", [2])


def test_published_rows_are_complete():
    for table in (published.NORM, published.SWIGLU):
        assert [row.rows for row in table] == [2**i for i in range(12)]
        for row in table:
            assert row.own < row.vllm < row.torch
    assert len(published.MATMUL) == 12
    # The source prints these speed-ups beside its times, in percent.
    printed = [127.84, 132.07, 120.02, 98.80, 141.88, 137.15, 125.45, 118.30]
    printed += [112.51, 112.17, 104.76, 101.45]
    for row, percent in zip(published.MATMUL, printed, strict=True):
        assert 100 * row.torch / row.own == pytest.approx(percent, abs=0.02)


def test_the_whole_path_runs_without_the_card(fewer_rows, monkeypatch, tmp_path, capsys):
    whole = providers.Provider.compile
    eager = providers.EAGER
    monkeypatch.setattr(providers.Provider, "compile", lambda _, function: whole(eager, function))
    assert command_line.main(["mi300", "--dry", "--rounds", "1", "--json", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {"mi300_ops", "mi300_gemm", "mi300_model"}
    rows = Result.load(tmp_path / "mi300_ops.json").records
    assert {(r["family"], r["hidden"], r["rows"], r["dtype"]) for r in rows} == {
        *(("norm", 1024, rows, "float16") for rows in (1, 32)),
        *(("silu", 512, rows, "float16") for rows in (1, 32)),
    }
    matmuls = Result.load(tmp_path / "mi300_gemm.json").records
    sizes = {(r["n"], r["k"]) for r in matmuls}
    assert sizes == {(144, 1024), (832, 1024), (1024, 416)}
    assert all(math.isnan(record["us"]) for record in rows + matmuls)
    said = capsys.readouterr().out
    for value in ("38.9", "5.51", "4.18", "1.93", "14.9", "11.7", "https://huggingface.co/blog"):
        assert value in said
    assert "nan" not in said and "cuda" not in said.lower()
    assert "first call s" not in said  # nothing is timed, compiling neither
    for name in ("ops", "gemm", "model"):
        recorded = Result.load(tmp_path / f"mi300_{name}.json").command
        assert recorded.endswith("python -m benchmarks mi300 --dry --rounds 1")
    # Beside a published time stands the size that it is of, and what was run instead of it.
    for sizes in ("16384 (run: 1024)", "8192 (run: 512)", "13312 x 16384 (run: 832 x 1024)"):
        assert f"| {sizes} " in said


def test_ours_stands_beside_the_published_row_of_its_size():
    result = Result("gemm", "", {}, "")
    case = {"shape": "s", "n": 13312, "k": 16384, "dtype": "fp8", "rows": 16, "published": 6}
    result.add(
        case, {n: Sample(t, t, t) for n, t in {"op": 30.0, "torch._scaled_mm": 45.0}.items()}
    )
    line = next(x for x in mi300.matmuls_page(result).splitlines() if x.startswith("| 13312"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["13312 x 16384", "16", "75.2", "60.0", "45.0", "30.0", "1.50x", "2.00x"]
    rows = Result("ops", "", {}, "")
    case = {"family": "silu", "form": "static", "hidden": 8192, "rows": 2}
    rows.add(case, {n: Sample(t, t, t) for n, t in {"op": 1.0, "eager": 9.0}.items()})
    line = next(x for x in mi300.rows_page(rows).splitlines() if x.startswith("| silu"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[3:] == ["29.9", "3.86", "1.94", "9.00", "1.00", "3.86x", "1.94x"]


def test_only_an_mi300_will_do(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    monkeypatch.setattr(arch, "detect", lambda _: arch.SM90)
    with pytest.raises(Unavailable, match="card gfx942: torch sees NVIDIA H200"):
        mi300.open_card()
    assert command_line.main(["mi300"]) == 1
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setattr(arch, "detect", lambda _: arch.GFX942)
    assert mi300.open_card() == torch.device("cuda")
