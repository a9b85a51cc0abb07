"""The dynamic checks by name, and the fault that a failed one raises."""

from __future__ import annotations

from dataclasses import dataclass

from .engine import CFault
from .operands import AGPR
from .program import Kernel

# Order as in enum Check of runtime/state.h: name, what happened.
CHECKS = (
    ("none", ""),
    ("uninitialized_vgpr", "reads {reg}, which this lane never wrote"),
    ("uninitialized_sgpr", "reads {reg}, which was never written"),
    ("uninitialized_lds", "reads an LDS byte that was never written"),
    ("uninitialized_global", "reads a byte of an output that was never written"),
    ("global_bounds", "accesses {size} bytes outside every buffer"),
    ("lds_bounds", "accesses {size} bytes outside the workgroup's LDS"),
    ("alignment", "address is not a multiple of {size}"),
    ("wait_vm", "uses {reg} before s_waitcnt vmcnt has covered its load"),
    ("wait_lgkm", "uses {reg} before s_waitcnt lgkmcnt has covered its load"),
    ("lds_race", "races in LDS with wave {other}"),
    (
        "global_race",
        "reads what workgroup {size}, wave {other} wrote without an order between them",
    ),
    ("deadlock", "nothing was written for a million turns: the waves wait for each other"),
    ("budget", "the launch ran past its budget of instructions"),
    ("barrier_wait", "reaches s_barrier while its LDS writes are in flight"),
    ("read_only", "writes to an input buffer"),
    ("unsupported", "uses a modifier that the executor does not implement"),
    ("release_wait", "releases while its LDS writes are in flight"),
    ("no_end", "the wave runs past the last instruction without s_endpgm"),
)


@dataclass
class Fault(Exception):
    """A check that failed while a kernel ran; `check` is its name in CHECKS."""

    check: str
    kernel: str
    pc: int
    instruction: str
    workgroup: tuple[int, int, int]
    wave: int
    lane: int
    address: int
    detail: str
    source: str

    def __str__(self) -> str:
        where = f"workgroup {self.workgroup}, wave {self.wave}, lane {self.lane}"
        return (
            f"{self.kernel}: {self.check}: {self.detail}; pc 0x{self.pc:x} `{self.instruction}`, "
            f"{where}, address 0x{self.address:x} ({self.source})"
        )


def _register(number: int) -> str:
    if number >= 1024:
        return {106: "vcc_lo", 107: "vcc_hi"}.get(number - 1024, f"s{number - 1024}")
    return f"a{number - AGPR}" if number >= AGPR else f"v{number}"


def make_fault(kernel: Kernel, record: CFault, where: str) -> Fault:
    """The exception for the engine's fault record; `where` says which buffer is near."""
    name, text = CHECKS[record.check]
    line = kernel.lines[record.pc]
    detail = text.format(reg=_register(record.reg), size=record.reg, other=record.other)
    return Fault(
        check=name,
        kernel=kernel.name,
        pc=line.pc,
        instruction=line.text,
        workgroup=tuple(record.group),
        wave=record.wave,
        lane=record.lane,
        address=record.address,
        detail=f"{detail}{where}",
        source=line.location,
    )
