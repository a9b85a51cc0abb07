"""The sizes of a region that its cost depends on, as expressions in the graph's symbols."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx

from mi300_inductor.cost import Number, symbols_of
from mi300_inductor.graph.meaning import DynamicScale, Fact, Matmul, Quantize, RmsNorm
from mi300_inductor.graph.region import Region
from mi300_inductor.graph.term import Term, count

# Inductor keeps a row in registers up to this length (its persistent reduction).
PERSISTENT_REDUCTION = 1024
# Operations for each element, as `ops.py` writes them.
NORM_FLOPS = 4  # square, sum, times rstd, times weight
SILU_FLOPS = 8  # exp (4: a polynomial), plus 1, quotient, negation, times up
QUANT_FLOPS = 4  # scale, two bounds, conversion
AMAX_FLOPS = 2  # absolute value, maximum


@dataclass(frozen=True)
class RowWork:
    """A norm or activation: byte counts of its parts and how it quantises.

    Attributes:
        elements: Of the whole tensor.
        rows: Number of rows.
        hidden: Elements of a row.
        inputs: Bytes of x and residual, or of gate and up.
        first: Bytes of one of them, in the form in which a second pass would read it.
        parameters: Bytes of the weight and the static scales.
        residual: Bytes of the stored sum; 0 if there is no add.
        is_residual_used: Whether anything outside the region reads that sum.
        activated: Bytes of the value that amax and quantisation both read, if it were stored.
        y: Bytes of the unquantised result; 0 if nobody reads it.
        quantised: Bytes of all quantised results.
        scales: Bytes of the scales that are computed.
        quants: How many quantised results.
        group: None without dynamic scales, -1 per token, 0 per tensor, else elements of a group.
        is_norm: Whether it is a norm.
    """

    elements: Number
    rows: Number
    hidden: Number
    inputs: Number
    parameters: Number
    residual: Number
    is_residual_used: bool
    activated: Number
    y: Number
    quantised: Number
    scales: Number
    quants: int
    group: int | None
    is_norm: bool

    @property
    def flops(self) -> Number:
        """Floating point operations of the whole region."""
        each = NORM_FLOPS if self.is_norm else SILU_FLOPS
        each += (self.residual != 0) + QUANT_FLOPS * self.quants
        return self.elements * (each + AMAX_FLOPS * (self.group is not None))

    @property
    def is_persistent(self) -> bool:
        """Whether Inductor keeps a row in registers."""
        return not symbols_of(self.hidden) and bool(self.hidden <= PERSISTENT_REDUCTION)


def row_work(region: Region, nodes: Collection[fx.Node]) -> RowWork:
    """The sizes of a norm or activation; `nodes` are the replaced ones."""
    shape = region.rows.shape
    facts = region.facts
    weight, scales = region.inputs.get("weight"), region.inputs.get("scales") or []
    parameters = [t for t in (weight, *scales) if isinstance(t, Term)]  # type: ignore[misc]
    names = ("x", "residual", "gate", "up")
    inputs = [t for n, t in region.inputs.items() if n in names and isinstance(t, Term)]
    stored = [terms[0] for terms in region.outputs.get("residual_out", [])]
    users = {user for term in stored for node in term.nodes for user in node.users}
    dynamic = any(isinstance(fact, DynamicScale) for fact in facts)
    return RowWork(
        elements=count(shape),
        rows=count(shape[:-1]),
        hidden=count(shape[-1:]),
        inputs=_bytes(inputs),
        parameters=_bytes(parameters),
        residual=_bytes(stored),
        is_residual_used=not users <= set(nodes),
        activated=count(shape) * max((_read_size(f) for f in facts), default=0),
        y=_bytes([terms[0] for terms in region.outputs.get("y", [])]),
        quantised=_bytes([terms[0] for terms in region.outputs.get("q", [])]),
        scales=_bytes([terms[0] for terms in region.outputs.get("scale", [])]),
        quants=sum(isinstance(fact, Quantize) for fact in facts),
        group=region.params["group_size"] if dynamic else None,
        is_norm=any(isinstance(fact, RmsNorm) for fact in facts),
    )


@dataclass(frozen=True)
class MatmulWork:
    """A matmul: its sizes and byte counts.

    Attributes:
        m: Activation rows.
        n: Weight rows.
        k: Elements that are summed.
        activations: Bytes of the activations, their scales and the bias.
        weight: Bytes of the weight and its scales.
        out: Bytes of the result.
        addend: Bytes of what is added in the operator's epilogue; 0 if nothing is.
        quantised: Bytes of the result if the epilogue quantises it, instead of `out`; else 0.
        operand: Dtype of the operands.
        scale: Bytes of the scale with which the epilogue quantises.
    """

    m: Number
    n: Number
    k: Number
    activations: Number
    weight: Number
    out: Number
    addend: Number
    quantised: Number
    operand: torch.dtype
    scale: Number = 0

    @property
    def epilogue_flops(self) -> Number:
        """Operations behind the product: an addition, a quantisation."""
        return self.m * self.n * ((self.addend != 0) + QUANT_FLOPS * (self.quantised != 0))


def matmul_work(region: Region) -> MatmulWork:
    """The sizes of a matmul's region."""
    fact = region.facts[0]
    assert isinstance(fact, Matmul) and fact.a.dtype is not None
    given = {name: [t] if isinstance(t, Term) else [] for name, t in region.inputs.items()}
    return MatmulWork(
        m=count(fact.a.shape[:-1]),
        n=count([fact.columns]),
        k=count([fact.depth]),
        activations=_bytes([*given["a"], *given["scale_a"], *given["bias"]]),
        weight=_bytes([*given["weight"], *given["scale_b"]]),
        out=_bytes([region.rows]),
        addend=_bytes(given["addend"]),
        quantised=_bytes([terms[0] for terms in region.outputs.get("q", [])]),
        operand=fact.a.dtype,
        scale=_bytes(given.get("scale", [])),
    )


def _read_size(fact: Fact) -> int:
    """Bytes of an element of what a quantisation and its scale both read; 0 for other facts.

    A cast that each of them makes for itself is not what they share.
    """
    if not isinstance(fact, Quantize):
        return 0
    value = fact.y
    while value.op == "view" or (value.op == "cast" and len(value.nodes) > 1):
        value = value.args[0]
    return value.dtype.itemsize if value.dtype is not None else 0


def _bytes(terms: Collection[Term]) -> Number:
    """Bytes of some tensors, one that occurs twice counted once."""
    sizes = (count(term.shape) * term.dtype.itemsize for term in set(terms) if term.dtype)
    return sum(sizes)
