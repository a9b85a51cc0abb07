"""The README's figures are those of the results, and nobody else's."""

from __future__ import annotations

import pytest

from benchmarks import readme
from benchmarks.results import Result
from benchmarks.timing import Sample


def test_the_readme_is_what_the_results_say():
    text = readme.README.read_text()
    assert readme.render(text) == text, "run python -m benchmarks.readme"


def test_every_block_has_results_and_they_name_their_command():
    for _, name, _ in readme.BLOCK.findall(readme.README.read_text()):
        result = Result.load(readme.RESULTS / readme.BLOCKS[name][0])
        assert result.command.startswith("python -m benchmarks ")
        assert result.command.split("; ")[0] in readme.block(name)
        assert result.records and result.header["commit"] and result.header["torch"]


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
        readme.render("<!-- ops-h200 -->\n<!-- end -->", folder)
