"""How a quantisation reads the result of a norm or an activation, or why it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from mi300_inductor.graph.between import stands_between
from mi300_inductor.graph.factors import factor_between
from mi300_inductor.graph.matmul_forms import MATMULS
from mi300_inductor.graph.meaning import DynamicScale, Quantize, Refusal, RmsNorm, SiluMul
from mi300_inductor.graph.other_scales import unknown_scale
from mi300_inductor.graph.recognise import Recognition
from mi300_inductor.graph.term import (
    Term,
    held_dtype,
    is_transparent_view,
    same_dim,
    source_of_value,
)
from mi300_inductor.graph.words import describe, shape_text
from mi300_inductor.op_checks import FP8_DTYPES

Producer = RmsNorm | SiluMul


@dataclass(frozen=True, eq=False)
class Reader:
    """A quantisation that reads a producer's result, rounded to `y_dtype`."""

    quantize: Quantize
    y_dtype: torch.dtype
    dynamic: DynamicScale | None
    group_size: int

    def key(self) -> tuple[object, ...]:
        """Readers with equal keys can share one operator (static scales only)."""
        if self.dynamic is not None:
            return ("dynamic", self.quantize.root.node.name)
        return ("static", self.y_dtype, *self.quantize.target())


def _has_other_rows(y: Term) -> bool:
    """Whether a view on the way neither keeps the last dimension nor splits it into groups."""
    while y.op in ("cast", "view"):
        if y.op == "view" and not is_transparent_view(y) and not _split(y):
            return True
        y = y.args[0]
    return False


def _rounded_to(y: Term) -> torch.dtype | None:
    """Dtype to which the value at `source_of_value` is rounded where it is used."""
    return held_dtype(y, lambda term: term.op == "view")


def _split(view: Term) -> int:
    """Group size of a view that splits the last dimension into groups; 0 for other views."""
    old, new = view.args[0].shape, view.shape
    if not old or not new or is_transparent_view(view):
        return 0
    hidden, group = old[-1], new[-1]
    if isinstance(hidden, int) and isinstance(group, int) and 1 < group < hidden:
        return group if hidden % group == 0 else 0
    return 0


def read_by(
    fact: Quantize,
    scales: Mapping[Term, DynamicScale],
    producers: Mapping[Term, Producer],
    recognition: Recognition,
) -> Reader | Refusal:
    """How a quantisation reads a norm or activation, or why it does not."""
    producer = producers.get(source_of_value(fact.y))
    if producer is None:
        # A larger match that was refused says more than the part of it that was not.
        return (
            recognition.refused.get(fact.root)
            or factor_between(source_of_value(fact.y), producers, not fact.scale.is_const)
            or stands_between(source_of_value(fact.y), producers)
            or _shared_product(source_of_value(fact.y))
            or _alone(source_of_value(fact.y))
        )
    if fact.root.dtype not in FP8_DTYPES:
        names = ", ".join(str(dtype) for dtype in FP8_DTYPES)
        return Refusal(f"{fact.root.dtype} is not supported, expected one of {names}", "Use one.")
    y_dtype = _rounded_to(fact.y)
    group = next((_split(v) for v in _views(fact.y)), 0)
    if y_dtype is None:
        return Refusal(
            "the value is rounded twice before it is quantised, to different dtypes",
            "Cast once: quantise the result in its own dtype, or in float32 throughout.",
        )
    dynamic, other_value = scales.get(fact.scale), None
    if dynamic is not None:
        other_value = _other_value(dynamic, fact.y)
        dynamic = dynamic if other_value is None else None
    if dynamic is not None and dynamic.over == "all":
        return Reader(fact, y_dtype, dynamic, 0)
    is_single = all(same_dim(dim, 1) for dim in fact.scale.shape)
    if dynamic is None and is_single and not _follows_from(fact.scale, producer.root):
        return Reader(fact, y_dtype, None, 0)
    is_row = group or same_dim(fact.root.shape[-1], producer.root.shape[-1])
    if not is_single and (not is_row or _has_other_rows(fact.y)):
        return Refusal(
            f"the result of the norm or activation, {shape_text(producer.root)}, is viewed as "
            f"{shape_text(fact.root)} before it is quantised, and each of these rows has a scale",
            "Quantise before the view, with a scale for each row or group of it, or use one scale "
            "for the whole tensor.",
        )
    if dynamic is not None:
        return Reader(fact, y_dtype, dynamic, group or -1)
    if fact.scale in recognition.refused:
        return recognition.refused[fact.scale]
    return unknown_scale(fact.scale, is_single, other_value)


def _alone(value: Term) -> Refusal:
    hint = "Nothing to change: Inductor compiles the quantisation."
    if value.op == "leaf" and value.nodes and value.node.op == "placeholder":
        hint += (
            " Where a norm outside of this graph makes the value, TORCH_LOGS=graph_breaks says "
            "what parts the two: an .item() of the scale, say."
        )
    return Refusal(
        "the quantised value is not the result of an RMSNorm or of SiLU*mul, so there is no kernel "
        "to merge it into",
        hint,
    )


def _shared_product(value: Term) -> Refusal | None:
    """Says that a matmul's result is read elsewhere, too, which keeps its quantisation apart."""
    readers = {user for node in value.nodes for user in node.users}
    if value.op not in MATMULS or len(readers) < 2:
        return None
    return Refusal(
        f"the quantised value, {describe(value)}, is read by "
        f"{' and '.join(sorted(node.name for node in readers))}, expected its quantisation alone",
        "A matmul quantises its result where nothing else reads it: use the quantised value alone, "
        "or leave it as it is.",
    )


def _views(y: Term) -> Iterator[Term]:
    while y.op in ("cast", "view"):
        if y.op == "view" and _split(y):
            yield y
        y = y.args[0]


def _follows_from(scale: Term, result: Term) -> bool:
    """Whether a scale is computed from a result, by few operations."""
    pending, seen = scale.nodes[:1], set[fx.Node]()
    while pending and len(seen) < _REACH:
        node = pending.pop()
        if node in result.nodes:
            return True
        if node not in seen:
            seen.add(node)
            pending.extend(node.all_input_nodes)
    return False


# How many operations are looked at from a scale on.
_REACH = 64


def _other_value(dynamic: DynamicScale, quantised: Term) -> str | None:
    """How the value that a scale follows from differs from the one that is quantised."""
    own, other = source_of_value(dynamic.y), source_of_value(quantised)
    if own is not other:
        return f"it is that of {describe(own)}, and {describe(other)} is quantised"
    rounded, wanted = _rounded_to(dynamic.y), _rounded_to(quantised)
    if rounded != wanted:
        return (
            f"it is that of the value rounded to {rounded}, and the value rounded to {wanted} is "
            "quantised"
        )
    if dynamic.over != "all" and not same_dim(dynamic.y.shape[-1], quantised.shape[-1]):
        return (
            f"it is that of {dynamic.y.shape[-1]} values, and a row of the quantised value has "
            f"{quantised.shape[-1]}"
        )
    return None
