"""Checks the CPU's skinny_gemm at an instruction-set level: `python -m ... LEVEL EMPTY_FOLDER`.

A level is a library of its own, and a process can load one; hence a program and not a test.
"""

import pathlib
import random
import shutil
import sys

import torch

from mi300_inductor import build

from . import reference
from .gemm_cases import COLUMNS, DEPTHS, PAIRS, ROWS, check_call, check_every_code, make_args

SOURCES = ("skinny_gemm*", "*.h", "row_ops.cpp", "quantize.cpp")


def check_level(level, csrc):
    """Loads the operator's library of an instruction-set level into this process and checks it.

    `csrc` is a folder for the sources: the operator's own, to be spared the others' compilation.
    """
    from mi300_inductor import op_schemas

    (csrc / "cpu").mkdir()
    (csrc / "include").symlink_to(build.csrc_dir() / "include")
    for path in {path for name in SOURCES for path in (build.csrc_dir() / "cpu").glob(name)}:
        shutil.copy(path, csrc / "cpu")
    build.csrc_dir = lambda: csrc
    op_schemas.release_placeholder("CPU")
    torch.ops.load_library(str(build.build_cpu(level)))
    seed = random.SystemRandom().randrange(2**31)
    torch.manual_seed(seed)
    rng = random.Random(seed)
    for pair in PAIRS:
        for _ in range(8):
            m, n, k = rng.choice(ROWS), rng.choice(COLUMNS), rng.choice(DEPTHS)
            check_call(make_args(rng, m, n, k, *pair), seed)
    for dtype in reference.FP8:
        check_every_code(dtype, 2, 70)
        check_every_code(dtype, 20, 130)


if __name__ == "__main__":
    check_level(sys.argv[1], pathlib.Path(sys.argv[2]))
