"""What a region costs before and after, as expressions in the graph's symbols.

Before is what Inductor would run, not eager: it fuses pointwise operations into one kernel with a
reduction, reads a row again for each reduction that does not fit its persistent kernel, and calls
the library for a matmul. After is the operator: each input read once, each output written once.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy  # type: ignore[import-untyped]

from mi300_inductor.graph.meaning import DynamicScale, RmsNorm
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.term import Term, count

# Inductor keeps a row in registers up to this length (its persistent reduction).
PERSISTENT_REDUCTION = 1024


@dataclass(frozen=True)
class Cost:
    """Bytes read and written and kernels launched, without and with a fusion."""

    bytes_before: sympy.Expr
    bytes_after: sympy.Expr
    launches_before: int
    launches_after: int


def cost(region: Region) -> Cost:
    """The cost of a region."""
    read = sum((_bytes(term) for term in region.input_terms()), sympy.Integer(0))
    written = sum(
        (_bytes(terms[0]) for stacked in region.outputs.values() for terms in stacked),
        sympy.Integer(0),
    )
    reductions = sum(isinstance(fact, (RmsNorm, DynamicScale)) for fact in region.facts)
    hidden = region.rows.shape[-1]
    is_persistent = isinstance(hidden, int) and hidden <= PERSISTENT_REDUCTION
    rereads = 0 if is_persistent else reductions
    rows = sum(
        (_bytes(t) for n, t in region.inputs.items() if n in _ROWS and isinstance(t, Term)),
        sympy.Integer(0),
    )
    return Cost(read + written + rereads * rows, read + written, max(1, reductions), 1)


_ROWS = ("x", "residual", "gate", "up")


def _bytes(term: Term) -> sympy.Expr:
    if term.dtype is None:
        return sympy.Integer(0)
    return count(term.shape) * term.dtype.itemsize
