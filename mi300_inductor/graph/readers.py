"""How a quantisation reads the result of a norm or an activation, or why it does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from mi300_inductor.graph.meaning import DynamicScale, Quantize, Refusal, RmsNorm, SiluMul
from mi300_inductor.graph.recognise import Recognition, furthest_failure
from mi300_inductor.graph.term import Term, held_dtype, is_transparent_view, same_dim, strip
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


def source_of_value(y: Term) -> Term:
    """The value behind casts and views, views that split the last dimension included."""
    while y.op == "cast" or _is_of_rows(y):
        y = y.args[0]
    return y


def _is_of_rows(view: Term) -> bool:
    """Whether a view keeps the last dimension or splits it into groups."""
    return view.op == "view" and (is_transparent_view(view) or _split(view) > 0)


def _rounded_to(y: Term) -> torch.dtype | None:
    """Dtype to which the value at `source_of_value` is rounded where it is used."""
    return held_dtype(y, _is_of_rows)


def _split(view: Term) -> int:
    """Group size of a view that splits the last dimension into groups; 0 for other views."""
    old, new = view.args[0].shape, view.shape
    if not old or not new or is_transparent_view(view):
        return 0
    hidden, group = old[-1], new[-1]
    if isinstance(hidden, int) and isinstance(group, int) and 0 < group < hidden:
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
            or _other_scale(fact.y, producers)
            or Refusal(
                "the quantised value is not the result of an RMSNorm or of SiLU*mul, so there is "
                "no kernel to merge it into",
                "Nothing to change: Inductor compiles the quantisation.",
            )
        )
    if fact.root.dtype not in FP8_DTYPES:
        names = ", ".join(str(dtype) for dtype in FP8_DTYPES)
        return Refusal(f"{fact.root.dtype} is not supported, expected one of {names}", "Use one.")
    y_dtype = _rounded_to(fact.y)
    group = next((_split(v) for v in _views(fact.y)), 0)
    if y_dtype is None:
        return Refusal("the value is rounded twice before it is quantised", "Cast once.")
    dynamic = scales.get(fact.scale)
    other_value = None if dynamic is None else _other_value(dynamic, fact.y)
    if dynamic is not None and other_value is None:
        size = 0 if dynamic.over == "all" else group or -1
        return Reader(fact, y_dtype, dynamic, size)
    if all(same_dim(dim, 1) for dim in fact.scale.shape):
        return Reader(fact, y_dtype, None, 0)
    if fact.scale in recognition.refused:
        return recognition.refused[fact.scale]
    return Refusal(
        f"the scale {fact.scale.node.name} has one value per row but does not follow from the "
        "largest absolute value of that row in a known way: "
        f"{other_value or furthest_failure('dynamic_scale', [fact.scale])}",
        f"{_WANTED}; a lower bound is a clamp(min=...) of amax or of the scale.",
    )


_WANTED = (
    "Compute it as y.abs().amax(-1, keepdim=True).float() / 448 from the value that is quantised, "
    "or use one static scale"
)


def _other_scale(y: Term, producers: Mapping[Term, Producer]) -> Refusal | None:
    """Says that a norm's or an activation's result is scaled by neither one value nor rows."""
    scaled = strip(y)
    if scaled.op not in ("mul", "div"):
        return None
    for value, scale in (scaled.args, scaled.args[::-1]):
        if source_of_value(value) in producers:
            return Refusal(
                f"the value is scaled by {describe(scale)} of shape {shape_text(scale)}, expected "
                "one value for the tensor, for each row or for each group of a row",
                f"{_WANTED}.",
            )
    return None


def _views(y: Term) -> Iterator[Term]:
    while y.op in ("cast", "view"):
        if y.op == "view" and _split(y):
            yield y
        y = y.args[0]


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
