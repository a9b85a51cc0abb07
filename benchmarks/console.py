"""What the demo says while it works."""

from __future__ import annotations

import sys
import time


class Console:
    """Progress lines with the time since the start; in a terminal the last one is rewritten."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.phase = ""

    def begin(self, phase: str) -> None:
        self.phase = phase
        self._show("", keep=False)

    def __call__(self, detail: str) -> None:
        self._show(detail, keep=False)

    def end(self, detail: str) -> None:
        self._show(detail, keep=True)

    def _show(self, detail: str, keep: bool) -> None:
        line = f"[{time.monotonic() - self.start:6.1f} s] {self.phase:<28} {detail}"
        if sys.stdout.isatty():
            print(f"\r\033[K{line}", end="\n" if keep else "", flush=True)
        elif keep or detail.startswith("first"):
            print(line.rstrip(), flush=True)
