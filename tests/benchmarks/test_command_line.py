"""The command line: what it writes, and one line for what is missing."""

from __future__ import annotations

import os
import re

import pytest
import torch

from benchmarks import __main__ as entry
from benchmarks import command_line, compile_time, header, html, model, ops, providers, tables
from benchmarks.options import parser
from benchmarks.results import Result
from benchmarks.timing import Ceilings, Unavailable

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    for name in [*os.environ]:
        if name in header.VARIABLES or name.startswith("TORCHINDUCTOR_"):
            monkeypatch.delenv(name)  # it would be part of the recorded commands
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(command_line, "measure_ceilings", lambda device: Ceilings(20.0, 25.0, 0.1))


def run(*arguments: str) -> int:
    return command_line.main(list(arguments))


def test_gemm_writes_json_tables_pictures_and_one_page(tmp_path, capsys):
    folder = tmp_path / "out"
    arguments = ("gemm", "--preset", "tiny", "--rows", "1,2", "--rounds", "2", "--dtype", "fp8")
    written = ("--json", str(folder / "gemm.json"), "--plot", str(folder))
    assert run(*arguments, *written) == 0
    result = Result.load(folder / "gemm.json")
    assert result.command == "python -m benchmarks " + " ".join(arguments)
    assert len(result.records) == 2 * 8 * 2
    names = {path.name for path in folder.iterdir()}
    pictures = {f"gemm_{what}.{end}" for what in ("speedup", "roofline") for end in ("png", "svg")}
    assert names == {"gemm.json", "gemm.md", "report.html"} | pictures
    page = (folder / "report.html").read_text()
    assert page.count("<figure><svg") == 2 and page.count("<tr>") == 1 + 16
    assert not re.search(r'(src|href)="(?!#)', page)  # nothing outside of the file
    said = capsys.readouterr().out
    assert (folder / "gemm.md").read_text() in said
    for word in ("card:", "driver:", "triton"):
        assert word not in said  # a CPU run has no facts of a GPU


def test_a_missing_card_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("ops", "--device", "cuda") == 1
    assert capsys.readouterr().out.startswith("missing: device cuda: torch ")


def test_a_missing_memory_is_one_line_and_the_rest_goes_on(capsys, monkeypatch):
    built = []

    class Small:
        def __init__(self, preset, *_):
            if preset.name == "llama-8b":
                raise Unavailable("memory: 9.0 GiB needed, 1.0 GiB free on cpu")
            built.append(preset.name)

    monkeypatch.setattr(model, "Model", Small)
    monkeypatch.setattr(model, "measure", lambda *_: None)
    run("model", "--preset", "llama-8b,tiny", "--rows", "1")
    said = capsys.readouterr().out
    assert said.count("missing: llama-8b: memory: 9.0 GiB needed") == 1
    assert built == ["tiny"]


def test_a_provider_that_fails_is_one_line_and_the_rest_goes_on(monkeypatch, capsys):
    whole = providers.Provider.compile

    def compile_or_fail(provider, function):
        if provider.backend == "inductor":
            raise RuntimeError("no compiler here\nmore of it")
        return whole(providers.EAGER, function)

    monkeypatch.setattr(providers.Provider, "compile", compile_or_fail)
    asked = ("--providers", "eager,inductor,mi300", "--rounds", "1")
    assert run("model", "--preset", "tiny", "--layers", "1", "--rows", "2", *asked) == 0
    said = capsys.readouterr().out
    assert "missing: tiny, fp8, 2 rows, inductor: RuntimeError: no compiler here\n" in said
    assert "more of it" not in said
    assert "mi300 against eager" in said and "GiB" not in said


def test_options_that_do_not_exist_list_those_that_do(capsys):
    with pytest.raises(SystemExit):
        run("model", "--preset", "llama-9b")
    assert "got llama-9b, expected some of llama-8b, " in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("ops", "--dtype", "fp8")
    assert "invalid choice: 'fp8'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ops", "gemm", "model", "compile-time", "mi300", "all"])
def test_each_benchmark_has_the_options_that_it_takes(name, capsys):
    with pytest.raises(SystemExit) as end:
        run(name, "--help")
    assert end.value.code == 0
    said = capsys.readouterr().out
    own = {
        "--dtype": ("ops", "gemm", "model", "mi300"),
        "--providers": ("ops", "model", "all"),
        "--form": ("ops", "all"),
        "--tuned-blocks": ("model", "mi300", "all"),
        "--depths": ("compile-time", "all"),
        "--dry": ("mi300",),
        "--plot": ("ops", "gemm", "model", "compile-time", "all"),
    }
    assert {option for option in own if option in said} == {o for o, n in own.items() if name in n}


def test_all_hands_each_benchmark_what_it_takes(monkeypatch):
    seen = {}
    for name, module in command_line.BENCHMARKS.items():
        monkeypatch.setattr(
            module, "run", lambda options, device, result, name=name: seen.update({name: options})
        )
    run("all", "--rows", "2", "--preset", "tiny", "--layers", "3", "--form=per_group")
    assert seen["gemm"].rows == seen["ops"].rows == seen["model"].rows == [2]
    assert seen["model"].breakdown and seen["ops"].dtype is None
    assert seen["model"].layers == 3 and seen["ops"].form == ["per_group"]
    assert seen["compile-time"].depths == [2, 8] and not hasattr(seen["compile-time"], "rows")
    run("all", "--depths=1", "--providers", "mi300")
    assert seen["compile-time"].depths == [1]
    assert seen["ops"].providers == seen["model"].providers == ["mi300"]
    assert seen["gemm"].rows == [1, 8, 32]  # of the standard set
    run("compile-time")
    assert seen["compile-time"].depths == [8, 32]


@pytest.mark.parametrize("joined", ["--rows=1,2", "--rows 1,2"])
def test_every_command_that_all_records_is_one_that_gives_the_result_again(
    joined, tmp_path, monkeypatch
):
    for module in command_line.BENCHMARKS.values():
        monkeypatch.setattr(module, "run", lambda *_: None)
    given = f"--device cpu --threads 2 {joined} --rounds 3 --seconds 0.5 --preset tiny --json"
    run("all", *given.split(" "), str(tmp_path))
    torch.set_num_threads(2)
    for name in command_line.BENCHMARKS:
        words = Result.load(tmp_path / f"{name}.json").command.split(" ")
        again = parser().parse_args(words[3:])
        assert (again.benchmark, again.preset, again.threads) == (name, ["tiny"], 2)
        if name != "compile-time":
            assert (again.rows, again.rounds, again.seconds) == ([1, 2], 3, 0.5)


def test_a_file_that_is_there_is_kept_until_there_is_a_result(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ops, "run", stop)
    file = tmp_path / "ops.json"
    file.write_text("earlier result")
    monkeypatch.setattr("sys.argv", ["benchmarks", "ops", "--json", str(file)])
    assert entry.main() == 130
    assert file.read_text() == "earlier result" and list(tmp_path.iterdir()) == [file]


def test_no_matplotlib_is_said_before_and_costs_only_the_pictures(tmp_path, monkeypatch, capsys):
    said_before = []

    def measure(options, device, result):
        said_before.append(capsys.readouterr().out)
        case = dict.fromkeys(tables.KEYS["ops"], 1)
        result.records.append({**case, "provider": "op", "us": 2.0, "low": 2.0, "high": 2.0})

    monkeypatch.setattr(ops, "run", measure)
    monkeypatch.setattr(command_line, "has_module", lambda name: name != "matplotlib")
    assert run("ops", "--plot", str(tmp_path)) == 0
    assert "missing: library matplotlib: not installed, no pictures" in said_before[0]
    assert {path.name for path in tmp_path.iterdir()} == {"report.html"}


def test_providers_that_the_device_has_not_are_one_line(capsys):
    assert run("model", "--preset", "tiny", "--providers", "mi300:reduce-overhead") == 1
    said = capsys.readouterr().out
    assert said.count("missing: provider mi300:reduce-overhead: it replays graphs of a GPU; ") == 1


def test_prefills_have_the_rows_that_are_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(model, "Model", lambda *_: None)
    monkeypatch.setattr(
        model, "measure", lambda _, case, *rest: seen.append((case["phase"], case["rows"]))
    )
    run("model", "--preset", "tiny", "--phase", "both", "--rows", "2,4")
    run("model", "--preset", "tiny", "--phase", "prefill")
    both = [(phase, rows) for phase in ("decode", "prefill") for rows in (2, 4)]
    assert seen == [*both, ("prefill", 1)]


def test_steps_that_do_not_fit_are_one_line_and_the_rest_goes_on(capsys):
    given = ("--preset", "tiny", "--layers", "1", "--rows", "1000000000,1", "--rounds", "1")
    assert run("model", *given, "--providers", "eager") == 0
    said = capsys.readouterr().out
    assert said.count("missing: tiny, fp8, 1000000000 rows: memory: ") == 1
    assert "tiny, fp8, 1 row, us: eager" in said


def test_no_compiling_process_takes_a_core_from_what_is_timed(monkeypatch):
    monkeypatch.setattr(ops, "run", lambda *_: None)
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 7)
    run("ops")
    assert torch._inductor.config.compile_threads == 1


def test_a_cpu_header_has_everything_that_is_asked_for():
    found = header.environment(CPU)
    names = ["processor", "last cache", "torch", "compilers", "commit", "threads", "date"]
    assert list(found) == names
    assert all(found.values()) and found["torch"] == torch.__version__


def test_a_recorded_command_has_the_environment_that_its_times_depend_on(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    given = ["--threads", "1", "2", "--name", "a b"]
    assert header.recorded("benchmarks.cpu_ops", given) == (
        "ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=2 TORCHINDUCTOR_MAX_AUTOTUNE=1 "
        "python -m benchmarks.cpu_ops --threads 1 2 --name 'a b'"
    )


def test_a_gpu_header_has_card_and_driver(monkeypatch):
    class Properties:
        name, gcnArchName, total_memory = "AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 192 << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties())
    monkeypatch.setattr(torch.version, "hip", "6.4")
    found = header.environment(torch.device("cuda"))
    assert found["card"] == "AMD Instinct MI300X (gfx942, 192 GiB)"
    assert found["driver"].startswith("amdgpu ") and found["driver"].endswith("HIP 6.4")
    assert "triton" in found["compilers"]


def test_compile_time_counts_cold_warm_and_the_pass(monkeypatch):
    class Options:
        preset, depths = ["tiny"], [1]

    seconds = iter([(4.0, 0.0), (2.0, 0.0), (5.0, 0.5), (1.0, 0.0)])
    folders = []

    def once(preset, layers, backend, device, folder):
        folders.append(folder)
        total, share = next(seconds)
        return {"seconds": total, "pass_s": share}

    monkeypatch.setattr(compile_time, "compile_once", once)
    result = Result("compile-time", "", {}, "")
    compile_time.run(Options(), CPU, result)
    assert folders[0] == folders[1] != folders[2] == folders[3]
    inductor, ours = result.records
    assert (inductor["cold_s"], inductor["warm_s"]) == (4.0, 2.0) and "pass_s" not in inductor
    assert (ours["cold_s"], ours["warm_s"], ours["pass_s"]) == (5.0, 1.0, 0.5)
    page = command_line.markdown(result)
    assert "10.0" in page  # the pass's share of the cold compilation in percent


def test_a_stopwatch_adds_up_and_hands_the_result_on(monkeypatch):
    class Pass:
        def __call__(self, graph):
            return graph + 1

    ticks = iter([1.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr(compile_time.time, "perf_counter", lambda: next(ticks))
    stopwatch = compile_time.Stopwatch()
    stopwatch.watch(Pass, "__call__")
    assert Pass()(1) == 2 and Pass()(2) == 3
    assert stopwatch.seconds == 3.0


def test_a_compilation_that_fails_is_one_line():
    found = compile_time.compile_once("tiny", 1, "no-backend", CPU, "/nonexistent")
    assert "no-backend" in found["error"] or "Invalid backend" in found["error"]


def test_pictures_on_a_page_keep_their_identifiers_apart(tmp_path):
    for name in ("a_x", "a_y"):
        text = '<?xml?><svg><path id="p"/><use xlink:href="#p"/><g clip-path="url(#p)"/></svg>'
        (tmp_path / f"{name}.svg").write_text(text)
    found = [html.picture(tmp_path / f"{name}.svg") for name in ("a_x", "a_y")]
    for name, svg in zip(("a_x", "a_y"), found, strict=True):
        assert svg.count(f"{name}-p") == 3 and "xml?" not in svg


def test_all_goes_on_after_a_benchmark_that_gives_nothing(tmp_path, monkeypatch):
    def give(name):
        def run(options, device, result):
            if name != "ops":
                case = dict.fromkeys(tables.KEYS[name], 1)
                result.records.append({**case, "provider": "mi300", "us": 2.0, "low": 2.0})
                result.records[-1].update(high=2.0, cold_s=4.0, warm_s=2.0, pass_s=0.5)

        return run

    for name, module in command_line.BENCHMARKS.items():
        monkeypatch.setattr(module, "run", give(name))
    assert run("all", "--json", str(tmp_path)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{ending}" for name in command_line.BENCHMARKS for ending in ("json", "md")
    }
    assert Result.load(tmp_path / "gemm.json").command == "python -m benchmarks gemm --rows 1,8,32"
