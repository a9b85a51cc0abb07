"""Runs the CPU kernels' tests under the address and undefined-behaviour sanitizers.

`python -m tests.sanitized [pytest arguments]` builds the CPU kernels and the module that calls them
once more with both sanitizers (into the same cache), preloads their runtimes into a Python that
loads these, and runs the tests of `tests/kernels` there. The first report of a sanitizer ends the
run with its status.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mi300_inductor import build, direct_calls

FLAGS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
    # torch's classes have no type information for this check; -O1 keeps the compilation short.
    *("-fno-sanitize=vptr", "-g1", "-O1"),
)
# The sanitizers' instrumentation makes GCC see faults in inlined library code.
QUIET = ("-Wno-error",)
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
PROGRAM = """
import sys
from tests import sanitized
sanitized.sanitize_builds()
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def sanitize_builds() -> None:
    """Adds the sanitizers to everything that `build` builds from now on in this process."""
    usual = build.build_library

    def build_library(
        folder: str, flags: Sequence[str] = (), libraries: Sequence[str] = ()
    ) -> Path:
        return usual(folder, [*flags, *FLAGS, *QUIET], libraries)

    build.build_library = build_library


def runtime(name: str) -> str:
    """Path of a runtime library of the compiler."""
    return build.run_compiler([build.COMPILER, f"-print-file-name={name}"]).strip()


def main() -> int:
    root = Path(__file__).parent.parent
    sanitize_builds()
    build.build_cpu()
    direct_calls.library()
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
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
