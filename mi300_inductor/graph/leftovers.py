"""What is in no fusion: which kind it would have made, and why it did not.

A quantisation of a norm's or an activation's result counts for the kind of that fusion, with
`_quant`. One that stands alone has the kind `quant`, and an operation that only resembles a kind
the kind `unsupported`; these are explanations and no lost fusions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mi300_inductor.graph.meaning import Fact, Quantize, Refusal, RmsNorm, SiluMul
from mi300_inductor.graph.readers import Producer, Reader
from mi300_inductor.graph.recognise import Miss
from mi300_inductor.graph.region import Plan
from mi300_inductor.graph.term import Term, operand_classes, source_of_value
from mi300_inductor.graph.words import describe, operation_name, shape_text
from mi300_inductor.op_schemas import MAX_SCALES

# Kind of the refusal of a quantisation that has nothing to be merged into.
ALONE = "quant"
# Kind of the refusal of another operation, of which there is no fusion: a sigmoid gate, say.
UNSUPPORTED = "unsupported"
# Operations between a value and its FP8 cast that only scale and then clamp it.
_CONVERTING = ("to_fp8", "cast", "view")
_CLAMPING = ("min", "max")
_SCALING = ("mul", "div")


def refuse_leftovers(
    plan: Plan,
    facts: Collection[Fact],
    fused: Collection[Fact],
    unread: Mapping[Quantize, Refusal],
    readers: Mapping[Term, Sequence[Reader]],
    producers: Mapping[Term, Producer],
) -> None:
    """Adds a refusal to the plan for each quantisation that no region has taken."""
    for fact in facts:
        if not isinstance(fact, Quantize) or fact in fused:
            continue
        refusal = unread.get(fact)
        if refusal is None:
            own = source_of_value(fact.y)
            taken = [reader for reader in readers[own] if reader.quantize in fused]
            if not taken and any(r.term is own and r.kind.endswith("_quant") for r in plan.refused):
                continue  # the refusal of the whole fusion says it
            refusal = _left_out(fact, taken, readers[own])
        kind = kind_of_quantisation(fact.root, plan, producers)
        plan.refuse(UNSUPPORTED if refusal.is_unsupported else kind, fact.root, refusal)


def refuse_sums(plan: Plan, norms: Iterable[RmsNorm]) -> None:
    """Adds a note to the plan for each sum before a fused norm that no operator makes."""
    for total in dict.fromkeys(source_of_value(norm.x) for norm in norms):
        refusal = _odd_sum(total)
        if refusal is not None:
            plan.refuse(UNSUPPORTED, total, refusal)


def _odd_sum(total: Term) -> Refusal | None:
    if total.op == "weighted_add" and operation_name(total.node) in ("add", "sub"):
        return Refusal(
            f"the sum before the norm has an alpha of {total.attrs[0]:g}, expected a plain sum, so "
            "the norm is fused without it",
            "Multiply where the operand is computed, by a factor in its weight, and write x + r.",
        )
    if total.op != "add":
        return None
    for own, other in (total.args, total.args[::-1]):
        is_narrow = len(other.shape) > 1 and not operand_classes(other, total)
        if is_narrow and "full" in operand_classes(own, total):
            return Refusal(
                f"the sum before the norm adds {describe(other)} of shape {shape_text(other)} to "
                f"{shape_text(own)}, expected one shape, so the norm is fused without it",
                "Expand it first if it is a residual: x + r.expand(x.shape).",
            )
    return None


def kind_of_miss(miss: Miss, plan: Plan, producers: Mapping[Term, Producer]) -> str:
    """The kind that an anchor in no fact would have made, or a note's."""
    if miss.refusal.is_unsupported:
        return UNSUPPORTED
    if miss.meaning.kind != ALONE:
        return miss.meaning.kind
    return kind_of_quantisation(miss.anchor, plan, producers)


def kind_of_quantisation(root: Term, plan: Plan, producers: Mapping[Term, Producer]) -> str:
    """The kind that a quantisation would have made; `root` is its cast to FP8."""
    producer = next((producers[t] for t in _scaled_values(root) if t in producers), None)
    if producer is None:
        return ALONE
    kind = "silu_mul" if isinstance(producer, SiluMul) else "rms_norm"
    kind = next((r.kind for r, _ in plan.regions if producer in r.facts), kind)
    return f"{kind.removesuffix('_quant')}_quant"


def _scaled_values(term: Term) -> Iterator[Term]:
    """What a cast to FP8 may be the quantisation of: the values behind clamping and scaling."""
    allowed: tuple[str, ...] = (*_CONVERTING, *_CLAMPING, *_SCALING)
    while True:
        yield term
        if term.op not in allowed or not term.args:
            return
        if term.op in _SCALING:
            allowed = (*_CONVERTING, *_SCALING)
        full = [a for a in term.args if "full" in operand_classes(a, term)]
        if len(full) > 1:  # a product of two values, of which none is a scale
            return
        term = full[0] if len(full) == 1 else term.args[0]


def _left_out(fact: Quantize, taken: Sequence[Reader], readers: Sequence[Reader]) -> Refusal:
    """Why a quantisation is not among those that its norm or activation was fused with."""
    if not taken:
        return Refusal(
            "the norm or activation that feeds it was fused without it, or not at all",
            "See the refusal of that fusion.",
        )
    own = next(reader for reader in readers if reader.quantize is fact)
    other = taken[0]
    if own.key() == other.key():
        return Refusal(
            f"{len(readers)} quantisations of one value, expected at most {MAX_SCALES} in a fusion",
            "Share a scale between some of them.",
        )
    if (own.dynamic is None) != (other.dynamic is None) or own.dynamic is not None:
        return Refusal(
            "the value is quantised in several ways with computed scales; a fusion computes one",
            "Quantise the value once and use the result everywhere, or use static scales.",
        )
    names = ("y_dtype", "q_dtype", "scaling", "scaled_dtype", "clamp_min", "clamp_max")
    pairs = zip(names, own.key()[1:], other.key()[1:], strict=True)
    name, mine, theirs = next(pair for pair in pairs if pair[1] != pair[2])
    return Refusal(
        f"it differs from the quantisations that were fused with the same value in {name}: {mine} "
        f"against {theirs}",
        "Quantise the value in one way everywhere; only the scales may differ.",
    )
