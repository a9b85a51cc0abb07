"""The README's figures are those of the results, and nobody else's."""

from __future__ import annotations

import itertools
import json
import shlex

import pytest

from benchmarks import model, plots, readme, sweeps
from benchmarks.options import parser
from benchmarks.results import Result
from benchmarks.timing import Sample


def test_the_readme_is_what_the_results_say():
    text = readme.README.read_text()
    assert readme.render(text) == text, "run python -m benchmarks.readme"


def test_every_block_has_results_and_they_name_their_command():
    for _, name, _ in readme.BLOCK.findall(readme.README.read_text()):
        file, load, _ = readme.BLOCKS[name]
        result = load(readme.RESULTS / file)
        assert result.command.startswith("python -m benchmarks")
        assert result.command.split("; ")[0] in readme.block(name)
        assert result.records and result.header["commit"] and result.header["torch"]


@pytest.mark.parametrize("name", ["model-h200", "model-cpu"])
def test_the_commands_beside_a_table_of_models_give_its_rows_and_no_others(name):
    result = Result.load(readme.RESULTS / readme.BLOCKS[name][0])
    asked = set()
    for command in result.command.split("; "):
        given = parser().parse_args(shlex.split(command)[3:])
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


def test_sweeps_are_read_as_results():
    rows = sweeps.load_rows(readme.RESULTS / "gpu_rows_h200.json")
    plain = json.loads((readme.RESULTS / "gpu_rows_h200.json").read_text())
    first = plain["rows"][0]
    assert rows.records[0]["us"] == first["mi300"] and rows.header["commit"] == plain["commit"]
    assert len({(r["family"], r["form"], r["hidden"], r["rows"]) for r in rows.records}) == len(
        plain["rows"]
    )
    gemm = sweeps.load_gemm(readme.RESULTS / "gpu_gemm_h200.json")
    plain = json.loads((readme.RESULTS / "gpu_gemm_h200.json").read_text())
    assert len(gemm.records) == 2 * len(plain["rows"])
    assert "H200" in gemm.header["card"] and gemm.header["torch"][0].isdigit()


def test_a_sweep_without_its_header_is_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"header": "nothing", "rows": []}))
    with pytest.raises(ValueError, match="x.json: header; got 'nothing', expected card"):
        sweeps.load_gemm(tmp_path / "x.json")


def last_row(block: str) -> list[str]:
    return [cell.strip() for cell in block.splitlines()[-1].strip("|").split("|")]


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
    for n, ours in ((1, 10.0), (2, 5.0)):
        case = {"shape": f"{n}", "n": n, "k": 1, "dtype": "FP8", "rows": 8}
        times = {"op": ours, "torch._scaled_mm": 20.0, "torch._scaled_mm fast": 10.0}
        result.add(case, {name: Sample(us, us, us) for name, us in times.items()})
    assert last_row(readme.gemm_block(result)) == ["FP8, 2 shapes", "1.41x (1.00x)"]
