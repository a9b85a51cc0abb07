"""The README's figures are those of the results, and nobody else's."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from benchmarks import merge, model, plots, readme, tables
from benchmarks.options import parser
from benchmarks.results import Result
from benchmarks.timing import Sample


def test_the_readme_is_what_the_results_say():
    text = readme.README.read_text()
    assert readme.render(text) == text, "run python -m benchmarks.readme"


FIGURE = re.compile(
    r"\d(\.\d+)?x\b|\d (us|µs|ms|s|GB/s|TFLOP/s|GFLOP/s|%)(?!\w)|factor of \d|within \d"
)


def unfounded(text: str) -> list[str]:
    """Paragraphs and points outside of the written blocks with a figure but no command."""
    written = re.sub(r"```.*?```", "", readme.BLOCK.sub("", text), flags=re.DOTALL)
    parts = re.split(r"\n\n|\n(?=- |\|)", written)
    return [part for part in parts if FIGURE.search(part) and "`python -m" not in part]


def test_a_figure_that_nobody_writes_has_its_command_beside_it():
    assert unfounded(readme.README.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "It is 1.2x faster.",
        "- one\n- it takes 21 ms\n- `python -m x`",
        "within a factor of 2",
        "9 %",
    ],
)
def test_a_figure_without_a_command_is_found(text):
    block = "<!-- a -->\n3x\n<!-- end -->\n\n```text\n4 us\n```\n\n"
    assert len(unfounded(f"{block}1024 x 1024 and 411 MB.\n\n{text}\n\nend")) == 1
    assert (
        unfounded(f"{block}{text} `python -m benchmarks ops`".replace("\n- `python -m x`", ""))
        == []
    )


NAMES = ("model-h200", "model-h200-modes", "model-cpu", "ops-h200", "gemm-h200")
RESULTS = {name: name.replace("-", "_") for name in NAMES}


def test_every_block_stands_in_the_readme_once():
    found = [name for _, name, _ in readme.BLOCK.findall(readme.README.read_text())]
    assert sorted(found) == sorted(readme.BLOCKS)


def test_every_block_has_results_and_they_name_their_command():
    for name, file in RESULTS.items():
        result = Result.load(readme.RESULTS / f"{file}.json")
        assert all(options_of(command) for command in result.command.split("; "))
        assert result.command.split("; ")[0] in readme.block(name)
        assert result.records and result.header["commit"] and result.header["torch"]


def options_of(command: str) -> list[str]:
    """What a recorded command gives to the benchmarks, without the environment before it."""
    words = list(itertools.dropwhile(lambda word: "=" in word, shlex.split(command)))
    assert words[:3] == ["python", "-m", "benchmarks"]
    return words[3:]


PUBLISHED = [
    file for file in sorted(readme.RESULTS.glob("*.json")) if '"benchmark"' in file.read_text()
]


@pytest.mark.parametrize("file", PUBLISHED, ids=lambda file: file.stem)
def test_a_page_is_made_of_the_result_beside_it_and_its_commands_are_taken(file):
    result = Result.load(file)
    assert file.with_suffix(".md").read_text() == tables.markdown(result)
    for command in result.command.split("; "):
        assert parser().parse_args(options_of(command)).benchmark == result.benchmark


@pytest.mark.parametrize("name", ["model-h200", "model-cpu"])
def test_the_commands_beside_a_table_of_models_give_its_rows_and_no_others(name):
    result = Result.load(readme.RESULTS / f"{RESULTS[name]}.json")
    asked = set()
    for command in result.command.split("; "):
        given = parser().parse_args(options_of(command))
        presets = given.preset or model.STANDARD[given.device]
        cases = itertools.product(presets, given.rows, given.providers, [given.dtype or "fp8"])
        asked |= set(cases)
    shown = {(r["preset"], r["rows"], r["provider"], r["dtype"]) for r in result.records}
    assert shown == asked
    assert readme.block(name).count("\n| llama") + readme.block(name).count("\n| tiny") == len(
        {case[:2] for case in asked}
    )


def test_equal_results_give_equal_pictures(folder, tmp_path):
    result = Result.load(folder / "model_h200.json")
    made = [plots.draw([result], tmp_path / name) for name in "ab"]
    assert made[0] and [a.read_text() for a in made[0]] == [b.read_text() for b in made[1]]


@pytest.fixture
def folder(tmp_path):
    result = Result("model", "python -m benchmarks model", {}, "method")
    result.header = {"card": "a card", "torch": "2.13", "commit": "abc"}
    case = {"preset": "tiny", "layers": 1, "dtype": "fp8", "phase": "decode", "tokens": 1}
    times = {"eager": 900.0, "inductor:reduce-overhead": 110.0, "mi300:reduce-overhead": 100.0}
    samples = {name: Sample(us, us, us) for name, us in times.items()}
    result.add({**case, "rows": 8}, samples)
    result.add({**case, "rows": 16, "phase": "prefill"}, samples)
    result.save(tmp_path / "model_h200.json")
    return tmp_path


def test_a_block_is_made_anew_and_the_rest_is_left_alone(folder):
    text = "before\n<!-- model-h200 -->\nold figures\n<!-- end -->\nafter <!-- other\n"
    made = readme.render(text, folder)
    assert "old figures" not in made
    assert made.startswith("before\n<!-- model-h200 -->\n") and made.endswith("after <!-- other\n")
    assert (
        "a card, torch 2.13, commit abc" in made and "```sh\npython -m benchmarks model\n" in made
    )
    row = next(line for line in made.splitlines() if line.startswith("| tiny"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["tiny, 1 layer, fp8", "8", "0.900", "0.110", "0.100", "9.00x", "1.10x"]
    assert readme.render(made, folder) == made


def test_a_marker_without_results_is_an_error(folder):
    with pytest.raises(KeyError, match="nothing-of-that-name"):
        readme.render("<!-- nothing-of-that-name -->\n<!-- end -->", folder)
    with pytest.raises(FileNotFoundError):
        readme.render("<!-- model-cpu -->\n<!-- end -->", folder)


def test_runs_are_merged_into_one_file_with_its_page(folder, tmp_path):
    first = folder / "model_h200.json"
    other = Result.load(first)
    other.command, other.header["commit"] = "python -m benchmarks model --rows 8", "def"
    other.save(tmp_path / "other.json")
    out = tmp_path / "joined.json"
    assert merge.main([str(out), str(first), str(tmp_path / "other.json")]) == 0
    joined = Result.load(out)
    assert joined.command == "python -m benchmarks model; python -m benchmarks model --rows 8"
    assert joined.header["commit"] == "abc, def" and len(joined.records) == 12
    assert (tmp_path / "joined.md").read_text() == tables.markdown(joined)


@pytest.mark.parametrize(("given", "status"), [("--help", 0), ("--chekc", 2)])
def test_help_and_slips_of_the_pen_leave_the_readme_alone(given, status, monkeypatch, capsys):
    monkeypatch.setattr(readme, "README", None)
    with pytest.raises(SystemExit) as end:
        readme.main([given])
    assert end.value.code == status
    assert "usage: python -m benchmarks.readme" in "".join(capsys.readouterr())


def last_row(block: str) -> list[str]:
    return [cell.strip() for cell in block.splitlines()[-1].strip("|").split("|")]


def test_modes_are_compared_with_inductors_own_and_leave_what_was_not_measured_empty():
    result = Result("model", "", {}, "")
    case = {"preset": "tiny", "layers": 1, "dtype": "fp8", "phase": "decode", "tokens": 1}
    graphs = {"inductor:reduce-overhead": 30.0, "mi300:reduce-overhead": 20.0}
    plain = {"eager": 90.0, "inductor": 60.0, "mi300": 50.0}
    for rows, times in ((1, graphs), (8, graphs | plain)):
        result.add({**case, "rows": rows}, {name: Sample(us, us, us) for name, us in times.items()})
    block = readme.modes_block(result)
    assert last_row(block) == ["tiny, FP8, decode, `default`", "", "50.0 (1.20x)"]
    assert last_row(block.rpartition("\n")[0])[1:] == ["20.0 (1.50x)", "20.0 (1.50x)"]


def test_operators_have_a_column_for_each_row_count_that_all_have():
    result = Result("ops", "", {}, "")
    for family, counts in {"norm": (1, 8, 2048), "silu": (1, 2048)}.items():
        for count in counts:
            for form in ("static", "per_token"):
                case = {"family": family, "form": form, "hidden": 64, "rows": count}
                times = {"op": 2.0 * count, "inductor": 3.0 * count}
                result.add(case, {name: Sample(us, us, us) for name, us in times.items()})
    block = readme.ops_block(result)
    assert "1 row " in block and "2048 rows" in block and "8 rows" not in block.replace("2048", "")
    assert last_row(block) == ["SiLU·mul + FP8, 64", "2.00 / 3.00", "4096 / 6144"]
    assert len(block.splitlines()) == 4


def test_matmuls_are_compared_with_the_faster_call_of_the_library():
    result = Result("gemm", "", {}, "")
    for n, ours, together in ((1, 10.0, 1), (2, 5.0, 1), (3, 4.0, 3)):
        case = {"shape": f"{n}", "n": n, "k": 1, "dtype": "fp8", "rows": 8, "together": together}
        times = {"op": ours, "torch._scaled_mm": 20.0, "torch._scaled_mm fast": 10.0}
        result.add(case, {name: Sample(us, us, us) for name, us in times.items()})
    block = readme.gemm_block(result)
    assert last_row(block) == ["FP8, 1 lists in one launch", "2.50x (2.50x)"]
    assert last_row(block.rpartition("\n")[0]) == ["FP8, 2 shapes", "1.41x (1.00x)"]


def test_what_dynamic_scales_cost_is_a_range_for_each_number_of_rows():
    result = Result("ops", "one; two", {}, "")
    for form, factor in {"static": 1.0, "per_token": 1.5, "per_group": 1.25}.items():
        for family, hidden in (("norm", 64), ("norm", 128), ("silu", 64)):
            case = {"family": family, "form": form, "hidden": hidden, "rows": 8}
            us = 2.0 * (factor if hidden == 64 else factor**2)
            result.add(case, {"op": Sample(us, us, us)})
    assert readme.dynamic(result).endswith(
        "norms with 8 rows 1.25 to 2.25x, SiLU with 8 rows 1.25 to 1.50x (`one` and `two`)."
    )


def test_the_slowest_matmul_is_named_with_its_command():
    result = Result("gemm", "all of fp8; all of bf16", {}, "")
    for n, dtype, ours in ((1, "fp8", 10.0), (2, "bf16", 25.0)):
        case = {"shape": f"{n}", "n": n, "k": 1, "dtype": dtype, "rows": 8}
        times = {"op": ours, "torch.mm": 20.0}
        result.add(case, {name: Sample(us, us, us) for name, us in times.items()})
    said = readme.worst_matmul(result)
    assert "can be slower" in said and "0.80x for 2 x 1 in bf16 with 8 rows (`all of bf16`)" in said
