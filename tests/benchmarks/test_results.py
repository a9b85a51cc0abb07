"""Results survive their files, and tables say what the records say."""

from __future__ import annotations

import math

import pytest

from benchmarks import plots, tables
from benchmarks.results import Result, merge, one_line
from benchmarks.timing import Ceilings, Sample

HEADER = {"card": "a card", "torch": "2.13", "commit": "abc"}


def model_result() -> Result:
    result = Result("model", "python -m benchmarks model", dict(HEADER), "method")
    times = {
        "eager": (900.0, 500.0),
        "inductor": (300.0, 200.0),
        "inductor:reduce-overhead": (110.0, 132.0),
        "mi300": (250.0, 100.0),
        "mi300:reduce-overhead": (100.0, 120.0),
    }
    for index, rows in enumerate((1, 8)):
        case = {"preset": "tiny", "layers": 2, "dtype": "fp8", "phase": "decode"}
        samples = {n: Sample(t[index], t[index] - 1, t[index] + 1) for n, t in times.items()}
        others = dict.fromkeys(("GEMM", "attention", "rest"), 1.0)
        full = {
            "eager": {"norm": 9.0, "activation": 1.0, **others},
            "mi300:reduce-overhead": {"norm": 1.0, "activation": 1.0 + index, **others},
        }
        compile_s = {"mi300": 3.5, "inductor": 3.25}
        result.add({**case, "tokens": 1, "rows": rows}, samples, shares=full, compile_s=compile_s)
    return result


def test_a_result_is_read_back_as_it_was_written(tmp_path):
    result = model_result()
    result.ceilings = Ceilings(1.0, 2.0, 3.0)
    result.save(tmp_path / "deep" / "model.json")
    assert Result.load(tmp_path / "deep" / "model.json") == result
    assert len(result.records) == 10


def test_a_run_that_is_stopped_leaves_what_it_measured(tmp_path):
    kept = tmp_path / "deep" / "x.json"
    result = Result("gemm", "command", dict(HEADER), "method", kept=kept)
    case = {"shape": "s", "n": 1, "k": 1, "dtype": "fp8"}
    for rows in (1, 8):
        result.add({**case, "rows": rows}, {"op": Sample(1.0, 1.0, 1.0)})
        assert [r["rows"] for r in Result.load(kept).records] == [1, 8][: 1 + (rows == 8)]
    assert "kept" not in kept.read_text() and Result.load(kept) == result


def test_a_compilation_that_is_stopped_later_is_kept(tmp_path):
    result = Result("compile-time", "command", dict(HEADER), "method", kept=tmp_path / "x.json")
    result.append({"preset": "tiny", "layers": 1, "backend": "mi300", "cold_s": 1.0})
    assert Result.load(tmp_path / "x.json") == result


def test_what_is_missing_is_said_once(capsys):
    result = model_result()
    result.note("library x: not installed")
    result.note("library x: not installed")
    assert capsys.readouterr().out == "missing: library x: not installed\n"
    assert tables.markdown(result).count("library x") == 1


def test_only_runs_of_one_machine_are_merged():
    first, second = model_result(), model_result()
    second.command = "python -m benchmarks model --rows 64"
    joined = merge([first, second])
    assert len(joined.records) == 20 and joined.command.count("; ") == 1
    second.header["card"] = "another"
    with pytest.raises(ValueError, match="got model on .*another.*expected model on .*a card"):
        merge([first, second])


def test_each_mode_is_compared_with_ours_in_that_mode_and_eager_with_our_graphs():
    line = tables.lines(model_result())[0][1]
    assert tables.speedup("inductor", line) == pytest.approx(300 / 250)
    assert tables.speedup("inductor:reduce-overhead", line) == pytest.approx(1.1)
    assert tables.speedup("eager", line) == pytest.approx(9)
    assert tables.speedup("mi300", line) is None
    del line["mi300"]
    assert tables.speedup("inductor", line) is None
    line["op"] = {"us": 10.0}
    assert tables.speedup("inductor", line) == pytest.approx(30)


def test_the_summary_has_the_mean_and_the_smallest_gain():
    found = "\n".join(tables.summary(model_result()))
    assert (
        "mi300:reduce-overhead against inductor:reduce-overhead: 1.10x in the mean, 1.10x at"
        in (found)
    )
    mean = math.sqrt(1.2 * 2)
    assert f"mi300 against inductor: {mean:.2f}x in the mean, 1.20x at least, over 2 c" in found
    single = tables.select(model_result(), lambda record: record["rows"] == 1)
    assert all(line.endswith("over 1 case") for line in tables.summary(single))


def test_the_page_has_every_table_and_every_cell():
    page = tables.markdown(model_result())
    for text in ("9.00x", "Where the time goes", "first call s", "3.50", "card: a card", "method"):
        assert text in page
    head = next(line for line in page.splitlines() if line.startswith("| preset"))
    row = next(line for line in page.splitlines() if line.startswith("| tiny"))
    assert head.count("|") == row.count("|")
    assert "peak MB" not in page  # nothing measured it


def test_the_spread_is_that_of_the_quartiles():
    result = Result("ops", "command", dict(HEADER), "method")
    for rows in range(1, 21):
        case = {"family": "norm", "form": "static", "hidden": 64, "rows": rows}
        result.add(case, {"op": Sample(100.0, 100.0 - rows, 100.0 + rows)})
    assert tables.spread(result) == [
        "spread: the quartiles of half of the times are 10.0 % or less apart from their median, "
        "those of 95 in 100 19.0 % or less"
    ]
    result.records = [{**record, "low": 100.0, "high": 100.0} for record in result.records]
    assert tables.spread(result) == []


def test_norm_and_activation_are_compared_with_eagers_kernels():
    found = tables.norm_lines(model_result())
    assert found == [
        "mi300:reduce-overhead: norm and activation take 75 % less than eager's kernels in the "
        "mean, 70 % less at least"
    ]
    line = tables.lines(model_result())[1][1]
    assert tables.norm_share("mi300:reduce-overhead", line) == pytest.approx(0.3)
    assert tables.norm_share("inductor", line) is None


def test_a_dry_run_shows_no_number():
    result = Result("gemm", "command", dict(HEADER), "method")
    case = {"shape": "s", "n": 1, "k": 1, "dtype": "fp8", "rows": 1}
    nan = Sample(math.nan, math.nan, math.nan)
    result.add(case, {"op": nan, "_scaled_mm": nan}, gbps={"op": math.nan})
    page = tables.markdown(Result.from_json(result.to_json()))
    assert page.count("not timed") == 3
    assert "nan" not in page and "x in the mean" not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.56, "1235"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (None, "")],
)
def test_numbers_have_three_digits(value, text):
    assert tables.number(value) == text


def test_rates_have_the_unit_that_suits_them():
    assert tables.flop_unit([0.02, 3.0]) == ("TFLOP/s", 1.0)
    assert tables.flop_unit([0.02, 0.17]) == ("GFLOP/s", 1e3)
    result = Result("gemm", "command", dict(HEADER), "method", Ceilings(20.0, 25.0, 0.17))
    case = {"shape": "s", "n": 1, "k": 1, "dtype": "fp8", "rows": 1}
    result.add(case, {"op": Sample(1.0, 1.0, 1.0)}, tflops={"op": 0.0123})
    page = tables.markdown(result)
    assert "GFLOP/s" in page and "| 12.3" in page and "matmul 170 GFLOP/s" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b\nmore", "a b"),
        ("backend='x' raised:\nKeyError: 'k'\nmore", "backend='x' raised: KeyError: 'k'"),
        ("", ""),
    ],
)
def test_an_error_is_one_line(text, said):
    assert one_line(RuntimeError(text)) == f"RuntimeError: {said}"


@pytest.mark.parametrize("benchmark", ["ops", "gemm", "model"])
def test_a_result_without_a_case_has_no_picture(benchmark):
    empty = Result(benchmark, "command", dict(HEADER), "method", Ceilings(1.0, 2.0, 3.0))
    assert plots.pictures(empty) == []


def test_a_profile_of_a_prefill_alone_is_no_picture_of_a_decode_step():
    result = model_result()
    for record in result.records:
        record["phase"] = "prefill"
    assert "model_breakdown" not in [name for name, _ in plots.pictures(result)]


def test_cells_stay_under_their_heads_where_the_operator_failed():
    result = Result("ops", "command", dict(HEADER), "method", Ceilings(1.0, 2.0, 3.0))
    case = {"family": "norm", "form": "static", "hidden": 64, "dtype": "bfloat16"}
    times = {name: Sample(1.0, 1.0, 1.0) for name in ("op", "mi300", "eager")}
    result.add({**case, "rows": 1}, times, percent={"op": 50.0})
    del times["op"]
    result.add({**case, "rows": 8}, times)
    table = [line.split("|") for line in tables.main_table(result).splitlines()]
    heads, _, _, last = [[cell.strip() for cell in line] for line in table]
    cells = dict(zip(heads, last, strict=True))
    assert cells["% of ceiling"] == "" and cells["vs eager"] == "1.00x", cells
