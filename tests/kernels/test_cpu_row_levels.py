"""The CPU's norm and activation operators at instruction-set levels below that of the machine."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
LEVELS = ("default", "avx2", "avx512")
LOWER = LEVELS[: LEVELS.index(torch.backends.cpu.get_cpu_capability().lower())]
# Every value, every form and every number of threads; what only checks arguments is left out.
CHOSEN = "formula or propagate or threads or codes or silu_of_every or strides"


@pytest.mark.parametrize("level", LOWER)
def test_lower_instruction_sets(level):
    """PyTorch reads its level at its start, hence another process."""
    command = [sys.executable, "-m", "pytest", "-q", "tests/kernels/test_cpu_rows.py", "-k", CHOSEN]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": level}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
