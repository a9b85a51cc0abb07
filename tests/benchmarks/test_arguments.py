"""What cannot be asked for is refused in one line, before anything is measured."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys

import pytest

import benchmarks
from benchmarks import command_line, host_cache, merge
from benchmarks.results import Result

ROOT = benchmarks.__path__[0] + "/.."
WHOLE = "expected whole numbers from 1 up"
FEW = f"expected whole numbers from 1 to {os.cpu_count()}"
PLACE = "expected a place that can be written"


def refused(module: str, given: str, monkeypatch, capsys) -> str:
    """What the program says before it ends with 2; its usage is its own and not its parent's."""
    words = ["" if word == "''" else word for word in given.split(" ")]
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(module, run_name="__main__")
    assert end.value.code == 2
    usage, error = capsys.readouterr().err.split("error: ")
    command = f" {words[0]}" if module == "benchmarks" else ""
    assert usage.startswith(f"usage: python -m {module}{command} ")
    assert error.count("\n") == 1
    return error


@pytest.fixture
def places(tmp_path):
    """A file, a folder named as a result, one as a page, and folders with a folder in the way."""
    found = {"file": tmp_path / "file", "folder": tmp_path / "a.json", "page": tmp_path / "b.json"}
    found["file"].write_text("kept")
    found |= {name: tmp_path / name for name in ("plots", "card", "all")}
    for path in (
        *(found["folder"], tmp_path / "b.md", found["plots"] / "report.html"),
        *(found["card"] / "mi300_gemm.md", found["all"] / "compile-time.json"),
    ):
        path.mkdir(parents=True)
    yield found
    assert found["file"].read_text() == "kept"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ops --rows=-1", f"--rows: got -1, {WHOLE}"),
        ("gemm --rows -1", f"--rows: got -1, {WHOLE}"),
        ("model --rows 8,0", f"--rows: got 0, {WHOLE}"),
        ("all --rows 1,,8", f"--rows: got nothing, {WHOLE}"),
        ("mi300 --rows many", f"--rows: got many, {WHOLE}"),
        ("ops --rows \u0663", f"--rows: got \u0663, {WHOLE}"),
        ("ops --rounds 0", f"--rounds: got 0, {WHOLE}"),
        ("ops --rounds=-1", f"--rounds: got -1, {WHOLE}"),
        ("ops --threads 0", f"--threads: got 0, {FEW}"),
        ("ops --threads 99999999999", f"--threads: got 99999999999, {FEW}"),
        ("ops --seconds -1", "--seconds: got -1, expected seconds, for example 0.5"),
        ("ops --seconds nan", "--seconds: got nan, expected seconds, for example 0.5"),
        ("model --layers 0", f"--layers: got 0, {WHOLE}"),
        ("model --prompt 1", "--prompt: got 1, expected whole numbers from 2 up"),
        ("compile-time --depths 0", f"--depths: got 0, {WHOLE}"),
        ("gemm --dtype fp8,fp4", "--dtype: got fp4, expected some of fp8, fp8-per-token, bf16"),
        ("ops --form ,", "--form: got nothing, expected some of static, per_token, per_group"),
        ("ops --json x.txt", "--json: got x.txt, expected a file name that ends in .json"),
        ("ops --json ''", "--json: got nothing, expected a file name that ends in .json"),
        ("ops --json {folder}", "--json: got {folder}, a folder, expected a file name that"),
        ("ops --json {file}/x.json", f"--json: got {{file}}, {PLACE} (File exists)"),
        ("ops --json {page}", f"/b.md, {PLACE} (Is a directory)"),
        ("ops --json {card}/x.json --plot {card}/x.json", f"x.json, {PLACE} (Is a directory)"),
        ("all --json {file}", f"--json: got {{file}}, {PLACE} (File exists)"),
        ("all --json {all}", f"--json: got {{all}}/compile-time.json, {PLACE} (Is a directory)"),
        ("all --json ''", "--json: got nothing, expected the name of a folder"),
        ("mi300 --json {card}", f"--json: got {{card}}/mi300_gemm.md, {PLACE} (Is a directory)"),
        ("ops --plot {file}", f"--plot: got {{file}}, {PLACE} (File exists)"),
        ("ops --plot {plots}", f"--plot: got {{plots}}/report.html, {PLACE} (Is a directory)"),
        ("ops --plot ''", "--plot: got nothing, expected the name of a folder"),
        ("ops --wat", "unrecognized arguments: --wat"),
        ("mi300 --preset tiny", "unrecognized arguments: --preset tiny"),
    ],
)
def test_benchmarks_refuse(given, said, places, monkeypatch, capsys):
    for module in command_line.BENCHMARKS.values():
        monkeypatch.setattr(module, "run", lambda *_: pytest.fail("it measured"))
    assert said.format(**places) in refused(
        "benchmarks", given.format(**places), monkeypatch, capsys
    )


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        ("cpu_gemm", "--threads 0", f"--threads: got 0, {FEW}"),
        ("cpu_gemm", "--rows 1 x", f"--rows: got x, {WHOLE}"),
        ("cpu_gemm", "--shapes 4096", "--shapes: got 4096, expected NxK, as 4096x4096"),
        ("cpu_gemm", "--shapes 16x0", f"--shapes: got 0, {WHOLE}"),
        ("cpu_gemm", "--rotated -1", "--rotated: got -1, expected whole numbers from 0 up"),
        ("cpu_gemm", "--seconds inf", "--seconds: got inf, expected seconds"),
        ("cpu_gemm", "--out {file}", f"--out: got {{file}}, {PLACE}"),
        ("cpu_ops", "--threads 99999999999", f"--threads: got 99999999999, {FEW}"),
        ("cpu_ops", "--hidden 0", f"--hidden: got 0, {WHOLE}"),
        ("cpu_ops", "--name a/b", "--name: got a/b, expected a name without folders"),
        ("cpu_ops", "--out ''", "--out: got nothing, expected the name of a folder"),
        ("modelled", "--out {file}", f"--out: got {{file}}, {PLACE}"),
        ("modelled", "--cpu --out {file}", f"--out: got {{file}}, {PLACE}"),
        ("readme", "--chekc", "unrecognized arguments: --chekc"),
        ("host_time", "x", "unrecognized arguments: x"),
        ("compile_time", "tiny 0 mi300 cpu", f"layers: got 0, {WHOLE}"),
        ("demo", "--hidden 200", "--hidden: got 200, expected a multiple of 128"),
        ("demo", "--steps 2", "--steps: got 2, expected whole numbers from 3 up"),
        ("demo", "--device gpu", "--device: got gpu, expected one that torch "),
        ("demo", "--mode fast", "--mode: invalid choice: 'fast'"),
        ("demo", "--out {plots}", f"--out: got {{plots}}/report.html, {PLACE}"),
        ("merge", "{card}/o.json", "the following arguments are required: parts"),
        ("merge", "{card}/o.json {file}", "parts: got {file}, expected a result that --json wrote"),
        ("merge", "{card}/o.json {card}", "(Is a directory)"),
        ("merge", "{card}/o.json ''", "parts: got nothing, expected a result that --json wrote"),
        ("merge", "'' {file}", "out: got nothing, expected a file name that ends in .json"),
    ],
)
def test_other_programs_refuse(module, given, said, places, monkeypatch, capsys):
    said = said.format(**places)
    given = given.format(**places)
    assert said in refused(f"benchmarks.{module}", given, monkeypatch, capsys)


def result_file(path, **header):
    Result("model", "python -m benchmarks model", {"torch": "2", **header}, "method").save(path)
    return str(path)


def test_results_that_do_not_belong_together_are_not_merged(tmp_path, capsys):
    parts = [result_file(tmp_path / f"{card}.json", card=card) for card in "ab"]
    with pytest.raises(SystemExit) as end:
        merge.main([str(tmp_path / "o.json"), *parts])
    assert end.value.code == 2 and not (tmp_path / "o.json").exists()
    assert "results do not belong together; got model on" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", '{"header": "a", "rows": []}', "{", "\x00"])
def test_what_no_benchmark_wrote_is_not_merged(text, tmp_path, capsys):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SystemExit) as end:
        merge.main([str(tmp_path / "o.json"), str(tmp_path / "x.json")])
    assert end.value.code == 2
    assert "x.json, expected a result that --json wrote (" in capsys.readouterr().err


def test_merging_has_its_page_checked_first(tmp_path, capsys):
    (tmp_path / "o.md").mkdir()
    with pytest.raises(SystemExit) as end:
        merge.main([str(tmp_path / "o.json"), result_file(tmp_path / "a.json")])
    assert end.value.code == 2 and not (tmp_path / "o.json").exists()
    assert f"o.md, {PLACE}" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["benchmarks", "benchmarks.cpu_gemm"])
def test_being_stopped_while_libraries_are_imported_is_one_line(module, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException:\n"
        "    raise ImportError('swallowed') from None\n"
    )
    done = subprocess.run(
        (sys.executable, "-m", module, "ops"),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "\nstopped\n", "")


def test_a_library_that_is_not_installed_is_one_line(capsys):
    benchmarks.say_in_one_line(ModuleNotFoundError, ModuleNotFoundError(name="tabulate"), None)
    assert capsys.readouterr().out.startswith("missing: library tabulate: not installed. pip inst")
    benchmarks.say_in_one_line(KeyError, KeyError("ours"), None)
    assert "KeyError: 'ours'" in capsys.readouterr().err


def test_the_last_cache_is_the_sum_of_those_that_cpus_do_not_share(tmp_path):
    caches = [
        *((cpu, 0, "Data", "1", "48K", str(cpu)) for cpu in range(4)),
        *((cpu, 1, "Instruction", "1", "32K", str(cpu)) for cpu in range(4)),
        *((cpu, 2, "Unified", "3", "32768K", "0-1" if cpu < 2 else "2-3") for cpu in range(4)),
    ]
    for cpu, index, *facts in caches:
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        names = ("type", "level", "size", "shared_cpu_list")
        for name, fact in zip(names, facts, strict=True):
            (folder / name).write_text(f"{fact}\n")
    assert host_cache.last_cache_bytes(tmp_path) == 2 * 32 * 2**20
    assert host_cache.last_cache_bytes(tmp_path / "nothing") == 0
