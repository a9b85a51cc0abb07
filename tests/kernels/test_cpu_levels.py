"""The CPU's skinny_gemm at the instruction-set levels below that of the machine."""

import pathlib
import subprocess
import sys

import pytest

from mi300_inductor import build

# Tests that loaded a library run at the highest; each other level gets a process.
NAMES = list(build.LEVELS)
LOWER = NAMES[: NAMES.index(build.cpu_level())]


@pytest.mark.parametrize("level", LOWER)
def test_lower_instruction_sets(level, tmp_path):
    command = [sys.executable, "-m", "tests.kernels.cpu_levels", level, str(tmp_path)]
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
