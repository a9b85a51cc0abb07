"""What an entry of the semantic table consists of.

A signature lists operand types as they stand in assembly text, `"f32 = f32 f32"`. Types:
    f16 f32 f64 i16 u16 i32 u32 i64 u64: one value per lane (or one scalar for scalar instructions)
    low64: a u64 whose high dword may be undefined; the high dword of the result then is too
    pkf16 pki16 pku16 pkf32: two values per lane; the code is applied to each
    mask: one bit per lane, in a pair of scalar registers
    any: an operand that the named C function reads itself
A `+` after a destination says that its old value is read too, as `d`.

The code is a C expression for the result, or statements that set `r` (and `m` for a second, mask
destination, `scc` for scalar instructions). A bitwise scalar instruction sets `x`, and `r` if it
saves the old EXEC. Sources are `a`, `b`, `c`, `e`. For a
`call` the code names a C function of `runtime/`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Semantics:
    """One instruction: how it is executed (`form`), its operands, meaning and counter class."""

    form: str  # "scalar", "bitwise", "vector" or "call"
    signature: str
    code: str
    counter: str
    width: int = 0  # bytes per lane of a memory access or a copy
    flags: tuple[str, ...] = ()
    immediate: int = 0  # parameter of the C function
    sets_exec: bool = False  # v_cmpx, s_*_saveexec: a result goes to EXEC too
    sets_scc: bool = False  # of a bitwise instruction: SCC says whether the result is zero

    @property
    def destinations(self) -> list[str]:
        """Types of the destinations, in order of the text."""
        return [part for part in self.signature.split("=")[0].replace(",", " ").split()]

    @property
    def sources(self) -> list[str]:
        """Types of the sources, in order of the text."""
        return self.signature.split("=")[1].split()
