"""python -m mi300_inductor."""

import json

import pytest

from mi300_inductor.__main__ import main

MODEL = """
import torch

def norm():
    return torch.nn.RMSNorm(48).bfloat16().eval(), (torch.randn(3, 48).bfloat16(),)

def nothing():
    return 3

def no_arguments():
    return torch.nn.RMSNorm(48), None

def sized(width, *rest, depth=1):
    return 3
"""


def test_info_names_target_compilers_and_cache(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MI300_INDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert str(tmp_path / "cache") in text
    for word in ("torch", "default target", "FP8 format", "host compiler", "GPU compiler"):
        assert word in text


def test_build_for_the_cpu_copies_the_library(capsys, tmp_path):
    assert main(["build", "--arch", "cpu", "--out", str(tmp_path / "out")]) == 0
    assert "mi300_cpu.so" in capsys.readouterr().out
    library = tmp_path / "out" / "mi300_cpu.so"
    assert library.read_bytes()[:4] == b"\x7fELF"
    assert json.loads((tmp_path / "out" / "resources.json").read_text())["library"] == str(library)


def test_explain_prints_and_saves_the_report(capsys, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    factory = f"{tmp_path / 'model.py'}:norm"
    assert main(["explain", factory, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "1 graph (0/0 inference): 1 fusion, 0 refusals" in text
    assert json.loads((tmp_path / "out" / "report.json").read_text())["counts"] == {"rms_norm": 1}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "--arch", "gfx90a"], "build: unknown target; got gfx90a, expected cpu, gfx942"),
        (["build", "--arch", "gfx942"], "build: no directory for gfx942; got no --out"),
        (["explain", "missing.py:f"], "explain: no such file; got missing.py:f"),
        (["explain", "{}"], "bad_model.py, expected FILE.py:FACTORY. Add the function's name."),
        (["explain", "{}:no_arguments"], "the factory's arguments are something else; got None"),
        (
            ["explain", "{}:norm", "--out", "{}"],
            "explain: --out cannot be written; got File exists for",
        ),
        (["build", "--arch", "cpu", "--out", "{}/deep"], "build: --out cannot be written; got Not"),
        (["roofline", "{}:norm", "--plot", "{}/x.png"], "the picture cannot be written; got "),
        (["explain", "{}:other"], "has no such function; got 'other'"),
        (["explain", "{}:sized"], "explain: the factory takes arguments; got (width)"),
        (["explain", "{}:nothing"], "explain: the factory gives something else; got int"),
    ],
)
def test_bad_arguments_say_what_to_do(capsys, tmp_path, arguments, words):
    path = tmp_path / "bad_model.py"
    path.write_text(MODEL)
    assert main([argument.format(path) for argument in arguments]) == 1
    assert words in capsys.readouterr().err
