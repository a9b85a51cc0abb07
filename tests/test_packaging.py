"""A built wheel holds everything, and works where the repository is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "mi300_inductor": "mi300_inductor",
    "patterns": "mi300_inductor/patterns",
    "csrc": "mi300_inductor/csrc",
}
CODE = (".py", ".cpp", ".h", ".hip", ".typed")

# Runs where only the unpacked wheel can be the package; prints what it found.
USE = """
import sys
import mi300_inductor
from mi300_inductor.build import csrc_dir
from mi300_inductor.graph.registry import meanings
import torch
assert "mi300" in torch._dynamo.list_backends(exclude_tags=())
assert "patterns" not in sys.modules
print(mi300_inductor.__file__, csrc_dir(), len(meanings()), sep="\\n")
print(torch.compile(lambda x: x + 1, backend="mi300")(torch.zeros(2)).tolist())
"""


def sources(folder: str) -> set[str]:
    files = (path for path in (ROOT / folder).rglob("*") if path.suffix in CODE)
    return {str(path.relative_to(ROOT / folder)) for path in files}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel built from a copy, so that nothing is left in the repository."""
    copy = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = out.glob("*.whl")
    return found


def test_every_source_is_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, place in FOLDERS.items():
        missing = {name for name in sources(folder) if f"{place}/{name}" not in names}
        assert not missing, folder
    top = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert top == {"mi300_inductor"}
    (entries,) = (name for name in names if name.endswith("entry_points.txt"))
    text = zipfile.ZipFile(wheel).read(entries).decode()
    assert "[torch_dynamo_backends]\nmi300 = mi300_inductor.backend:mi300" in text


def test_the_wheel_works_without_the_repository(wheel, tmp_path):
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    package, csrc, count, result = done.stdout.split("\n")[:4]
    assert package == str(site / "mi300_inductor" / "__init__.py")
    assert csrc == str(site / "mi300_inductor" / "csrc")
    files = list((ROOT / "patterns").glob("[!_]*.py"))
    assert int(count) == len(files) >= 5
    assert result == "[1.0, 1.0]"
