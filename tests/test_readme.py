"""The README's Python runs as it is written, top to bottom, in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mi300_inductor.roofline import roofline

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"


def python_blocks() -> list[tuple[int, str]]:
    """The line number and the text of each Python block."""
    text = README.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start()].count("\n") + 1, match[1]) for match in found]


@pytest.fixture
def user_spellings(monkeypatch):
    from mi300_inductor.graph import registry
    from mi300_inductor.graph.recognise import compiled

    monkeypatch.setattr(registry, "_user_spellings", {})
    yield registry._user_spellings
    compiled.cache_clear()


def test_blocks_run_and_give_what_the_text_says(tmp_path, monkeypatch, capsys, user_spellings):
    torch._dynamo.reset()
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks()
    assert len(blocks) >= 5
    scope: dict[str, object] = {}
    for line, block in blocks:
        # Padded, so that errors and inspect.getsource give the README's own lines.
        exec(compile("\n" * line + block, str(README), "exec"), scope)
    said = capsys.readouterr().out
    comment = re.search(r"report\.counts\) +# (.*)", README.read_text())
    claimed = {kind: int(n) for kind, n in re.findall(r"(\w+) (\d+)", comment[1])}
    assert scope["report"].counts == claimed
    assert {item.kind for item in scope["report"].rejected} <= {"competition"}
    table = re.search(r"^    kind +operations.*?^```", README.read_text(), re.MULTILINE | re.DOTALL)
    rows = [line.partition("block.py")[0] for line in table[0].splitlines()[2:-1]]
    assert len(rows) == len(claimed)
    assert all(row in said for row in rows), said
    # Its model is the roofline's as well.
    cost = roofline(scope["model"], (scope["x"],), target_name="gfx942", rows=[1])
    assert str(cost) in README.read_text()
    # So is what it packages, beside what is compiled when it is needed.
    with torch.no_grad():
        compiled = torch.compile(scope["model"], backend="mi300", dynamic=True)(scope["x"])
    assert torch.equal(scope["y"], compiled)
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    assert "rms_norm | " in said
    assert list(user_spellings) == ["rms_norm"]


def test_commands_and_files_that_are_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text()
        for target in re.findall(r"^make (\w[\w-]*)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (name, target)
        for path in re.findall(
            r"`((?:mi300_inductor|csrc|patterns|tests|benchmarks)/[^` ]*)`", text
        ):
            assert (ROOT / path).exists(), (name, path)
