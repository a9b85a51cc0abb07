"""The semantic table: what every known gfx942 instruction does, by its name in AMD's ISA document.

`TABLE` maps a mnemonic (without the encoding suffixes `_e32`, `_e64`, `_sdwa`, `_dpp`) to its
`Semantics`. It is the only place that says what an instruction means: `emit.py` turns it into C.
An instruction that is not here is refused when a kernel is loaded.
"""

from .base import Semantics
from .matrix import MATRIX
from .memory import MEMORY
from .scalar import SCALAR
from .vector import VECTOR

TABLE: dict[str, Semantics] = {**SCALAR, **VECTOR, **MEMORY, **MATRIX}

__all__ = ["TABLE", "Semantics"]
