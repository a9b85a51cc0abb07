"""Runs the CPU kernels' tests under the address and undefined-behaviour sanitizers.

`python -m tests.sanitized [pytest arguments]` builds the CPU library once more with both sanitizers
(into the same cache), preloads their runtimes into a Python that loads that library, and runs the
tests of `tests/kernels` there. The first report of a sanitizer ends the run with its status.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mi300_inductor import build

FLAGS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    # torch's classes have no type information for this check; -O1 keeps the compilation short.
    *("-fno-sanitize=vptr", "-g1", "-O1"),
)
# The sanitizers' instrumentation makes GCC see faults in inlined library code.
QUIET = ("-Wno-error",)
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
PROGRAM = """
import pathlib, sys
from mi300_inductor import build
library = pathlib.Path(sys.argv[1])
build.build_cpu = lambda level=None: library
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def runtime(name: str) -> str:
    """Path of a runtime library of the compiler."""
    return build.run_compiler([build.COMPILER, f"-print-file-name={name}"]).strip()


def main() -> int:
    root = Path(__file__).parent.parent
    library = build.build_library("cpu", [*build.LEVELS[build.cpu_level()].flags, *FLAGS, *QUIET])
    arguments = sys.argv[1:] or [
        str(path) for path in sorted((root / "tests/kernels").glob("test_*"))
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(runtime(name) for name in RUNTIMES),
        # Python and torch free little at exit.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-c", PROGRAM, str(library), *arguments]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
