"""What a launch executed: instructions by class, bytes by width, lines, conflicts.

Derived from three numbers per instruction that the engine counts: executions, active lanes, and
cache lines (global) or conflict passes (LDS).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .program import Kernel
from .semantics import TABLE


@dataclass(frozen=True)
class Counters:
    """Totals of a launch over all workgroups.

    Attributes:
        instructions: Wave instructions by class.
        mnemonics: Wave instructions by mnemonic.
        bytes: Bytes moved, by (class, bytes per lane).
        lines: Sum over global accesses of the distinct 128-byte lines of each.
        bank_conflicts: Extra LDS passes.
        workgroups: How many workgroups ran.
        waves: How many waves ran.
    """

    instructions: Counter[str]
    mnemonics: Counter[str]
    bytes: Counter[tuple[str, int]]
    lines: int
    bank_conflicts: int
    workgroups: int
    waves: int

    @property
    def ended(self) -> int:
        """Waves that reached s_endpgm."""
        return self.mnemonics["s_endpgm"]

    def moved(self, kind: str) -> int:
        """Bytes moved by a class such as "global_load"."""
        return sum(n for (name, _), n in self.bytes.items() if name == kind)

    def __str__(self) -> str:
        rows = [(f"{name} instructions", n) for name, n in sorted(self.instructions.items())]
        rows += [
            (f"{name} bytes, {width} a lane", n) for (name, width), n in sorted(self.bytes.items())
        ]
        rows += [
            ("128-byte lines touched", self.lines),
            ("LDS conflict passes", self.bank_conflicts),
        ]
        head = f"{self.workgroups} workgroups of {self.waves // self.workgroups} waves"
        lines = [f"{head:36}{'total':>14}{'a workgroup':>14}"]
        lines += [f"{name:36}{n:14,}{n / self.workgroups:14,.1f}" for name, n in rows]
        return "\n".join(lines)


def collect(
    kernel: Kernel,
    count: Sequence[int],
    lanes: Sequence[int],
    extra: Sequence[int],
    workgroups: int,
    waves: int,
) -> Counters:
    """Totals by class from the engine's per-instruction numbers."""
    instructions: Counter[str] = Counter()
    mnemonics: Counter[str] = Counter()
    moved: Counter[tuple[str, int]] = Counter()
    lines = conflicts = 0
    for k, line in enumerate(kernel.lines):
        if not count[k]:
            continue
        entry = TABLE[line.mnemonic]
        is_dpp = kernel.instructions[k].flags & 4
        instructions["cross_lane" if is_dpp else entry.counter] += int(count[k])
        mnemonics[line.mnemonic] += int(count[k])
        if entry.counter == "scalar_load":
            moved[entry.counter, entry.width] += int(count[k]) * entry.width
        elif entry.width and "memory" in entry.flags:
            twice = 2 if "read2" in line.mnemonic or "write2" in line.mnemonic else 1
            moved[entry.counter, entry.width] += int(lanes[k]) * entry.width * twice
        if line.mnemonic.startswith(("global_", "flat_")):
            lines += int(extra[k])
        else:
            conflicts += int(extra[k])
    return Counters(instructions, mnemonics, moved, lines, conflicts, workgroups, waves)
