"""Benchmarks of mi300_inductor and what the README's figures are made by.

Every program here is run as `python -m benchmarks` or `python -m benchmarks.NAME`. Being stopped,
at whatever moment, and a library that is not installed are said in one line, not in a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType

LIBRARIES = ("torch", "sympy", "networkx", "tabulate", "transformers", "numpy", "matplotlib")


def stop(number: int, frame: FrameType | None) -> None:
    """Ends the process: libraries that are being imported can swallow a KeyboardInterrupt."""
    os.write(1, b"\nstopped\n")
    os._exit(128 + number)


def say_in_one_line(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What an interpreter that runs one of these programs does with an uncaught exception."""
    if isinstance(error, ModuleNotFoundError) and error.name in LIBRARIES:
        print(f'missing: library {error.name}: not installed. pip install -e ".[bench]" has it.')
    else:
        sys.__excepthook__(kind, error, trace)


if sys.argv[0] == "-m":  # only while `python -m benchmarks...` looks for its module
    signal.signal(signal.SIGINT, stop)
    sys.excepthook = say_in_one_line
