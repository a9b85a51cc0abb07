"""Matmuls, with the addition behind them in the operator's epilogue where that saves a kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.meaning import Matmul
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.term import Term, is_transparent_view, same_dim, same_shape

MATMULS = ("mm", "addmm", "scaled_mm")


def addends_of(canonical: Canonicaliser) -> dict[Term, list[tuple[Term, Term]]]:
    """Matmul to the additions that read its result through views, each with the other operand."""
    found: dict[Term, list[tuple[Term, Term]]] = defaultdict(list)
    for add in canonical.terms:
        if add.op != "add" or len(add.args) != 2 or not add.nodes:
            continue
        for operand, other in (add.args, add.args[::-1]):
            product = operand
            while is_transparent_view(product):
                product = product.args[0]
            if product.op in MATMULS and same_shape(operand.shape, add.shape):
                found[product].append((add, other))
    return found


def matmul_regions(
    fact: Matmul, addends: Mapping[Term, list[tuple[Term, Term]]]
) -> Iterator[Region]:
    """A matmul with the addition behind it in its epilogue, which saves a kernel, and alone."""
    dtype = fact.root.dtype
    for add, other in addends.get(fact.root, ()):
        is_whole = same_shape(other.shape, add.shape)
        is_row = len(other.shape) == 1 and same_dim(other.shape[0], add.shape[-1])
        if add.dtype == other.dtype == dtype and (is_whole or is_row) and other.nodes:
            yield _matmul_region(fact, add, other)
    yield _matmul_region(fact, fact.root, None)


def _matmul_region(fact: Matmul, result: Term, addend: Term | None) -> Region:
    inputs: dict[str, Term | list[Term] | None] = {
        "a": fact.a,
        "weight": fact.b,
        "scale_a": fact.scale_a,
        "scale_b": fact.scale_b,
        "bias": fact.bias,
        "addend": addend,
    }
    return Region(
        kind="skinny_gemm",
        op="skinny_gemm",
        inputs=inputs,
        params={"out_dtype": fact.root.dtype},
        outputs={"out": [[result]]},
        rows=fact.root,
        facts=(fact,),
    )
