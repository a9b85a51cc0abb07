"""Matmuls, with what is behind them in the operator's epilogue where that saves a kernel.

That is an addition, a quantisation of the result or of the sum by one scale, or both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mi300_inductor.graph.canonicalise import Canonicaliser
from mi300_inductor.graph.matmul_forms import MATMULS
from mi300_inductor.graph.meaning import Fact, Matmul, Quantize
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.term import (
    FP8_DTYPES,
    Term,
    count,
    held_dtype,
    is_transparent_view,
    same_dim,
    same_shape,
    strip,
)


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


def quants_of(facts: Iterable[Fact]) -> dict[Term, list[Quantize]]:
    """Value to its quantisations to FP8 by one scale."""
    found: dict[Term, list[Quantize]] = defaultdict(list)
    for fact in facts:
        if isinstance(fact, Quantize) and fact.root.dtype in FP8_DTYPES:
            if all(same_dim(dim, 1) for dim in fact.scale.shape):
                found[strip(fact.y)].append(fact)
    return found


def matmul_regions(
    fact: Matmul,
    addends: Mapping[Term, list[tuple[Term, Term]]],
    quants: Mapping[Term, list[Quantize]],
) -> Iterator[Region]:
    """A matmul with what is behind it in its epilogue, which saves a kernel, and alone."""
    dtype = fact.root.dtype
    results: list[tuple[Term, Term | None]] = []
    for add, other in addends.get(fact.root, ()):
        is_whole = same_shape(other.shape, add.shape)
        is_row = len(other.shape) == 1 and same_dim(other.shape[0], add.shape[-1])
        if add.dtype == other.dtype == dtype and (is_whole or is_row) and other.nodes:
            results.append((add, other))
    results.append((fact.root, None))
    for result, addend in results:
        for quantize in quants.get(result, ()) if _is_in_kernel(fact) else ():
            if held_dtype(quantize.y) == dtype:
                yield _matmul_region(fact, result, addend, quantize)
        yield _matmul_region(fact, result, addend, None)


def _is_in_kernel(fact: Matmul) -> bool:
    """Whether the operator has an epilogue for every number of rows: not the library's on a GPU."""
    device = fact.root.node.meta["val"].device
    return device.type == "cpu" or isinstance(count(fact.a.shape[:-1]), int)


def _matmul_region(
    fact: Matmul, result: Term, addend: Term | None, quantize: Quantize | None
) -> Region:
    inputs: dict[str, Term | list[Term] | None] = {
        "a": fact.a,
        "weight": fact.b,
        "scale_a": fact.scale_a,
        "scale_b": fact.scale_b,
        "bias": fact.bias,
        "addend": addend,
    }
    op, facts = "skinny_gemm", tuple[Fact, ...]((fact,))
    params: dict[str, Any] = {"out_dtype": fact.root.dtype}
    outputs = {"out": [[result]]}
    if quantize is not None:
        op, facts = "skinny_gemm_quant", (fact, quantize)
        inputs["scale"] = quantize.scale
        names = ("q_dtype", "scaling", "scaled_dtype", "clamp_min", "clamp_max")
        params = {"y_dtype": fact.root.dtype, **dict(zip(names, quantize.target(), strict=True))}
        outputs = {"q": [[quantize.root]]}
    return Region("skinny_gemm", op, inputs, params, outputs, fact.root, facts)
