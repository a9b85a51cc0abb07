"""Factors between the result of a norm or an activation and its quantisation, in words.

The kernels multiply by the norm's weight and by the scale. A third factor keeps the quantisation
apart; where it can go depends on how it is broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping

from mi300_inductor.graph.meaning import Refusal, RmsNorm, SiluMul
from mi300_inductor.graph.other_scales import WANTED
from mi300_inductor.graph.term import Term, operand_classes, same_dim, source_of_value
from mi300_inductor.graph.words import describe, shape_text


def factor_between(
    scaled: Term, producers: Mapping[Term, RmsNorm | SiluMul], has_scale: bool
) -> Refusal | None:
    """The refusal of a quantised value that is the result of a norm or activation times something.

    Args:
        scaled: What is quantised, behind casts and views.
        producers: The results, and what they are of.
        has_scale: Whether the product is scaled once more when it is quantised.

    Returns:
        None if it is no such product.
    """
    if scaled.op not in ("mul", "div"):
        return None
    for value, factor in (scaled.args, scaled.args[::-1]):
        producer = producers.get(source_of_value(value))
        classes = operand_classes(factor, scaled)
        if producer is None:
            continue
        if not has_scale and source_of_value(factor).op == "expand":
            return Refusal(
                f"the value is scaled by {describe(factor)}, which repeats the scale of each group",
                "Divide the groups as they are, y.view(*y.shape[:-1], -1, size).float() / "
                "scale[..., None], and view the FP8 values as y is.",
            )
        if "full" in classes:
            continue
        if not has_scale and not classes:
            return Refusal(
                f"the value {shape_text(scaled)} is scaled by {describe(factor)} of shape "
                f"{shape_text(factor)}, {_WANTED_SHAPES}",
                f"{WANTED}.",
            )
        if isinstance(producer, SiluMul) or "scalar" in classes:
            where = "norm's weight" if isinstance(producer, RmsNorm) else "second operand, up"
            also = "the scale, or into " if "scalar" in classes else ""
            return Refusal(
                f"{_DONE} by {describe(factor)} before it is scaled",
                f"Fold this factor into {also}the {where}.",
            )
        if not same_dim(scaled.shape[-1], producer.root.shape[-1]) or not classes:
            return _weight_of_groups(producer.root, factor)
        if "row" in classes:
            return Refusal(
                f"{_DONE} by {describe(factor)}, which has one value per row, before it is scaled",
                "Quantise without these factors, and multiply what is computed from the FP8 values "
                "(or the scales of the rows) by them.",
            )
        return Refusal(
            f"the value is scaled by {describe(factor)} of shape {shape_text(factor)}, "
            f"{_WANTED_SHAPES}",
            f"Multiply the norm's weight by such factors beforehand, and use one scale. {WANTED}.",
        )
    return None


_WANTED_SHAPES = "expected one value for the tensor, for each row or for each group of a row"
_DONE = "the result of the norm or activation is multiplied or divided"


def _weight_of_groups(normed: Term, weight: Term) -> Refusal:
    return Refusal(
        f"the norm, of shape {shape_text(normed)}, has the weight {describe(weight)} of shape "
        f"{shape_text(weight)}, expected one of shape [{normed.shape[-1]}] for all rows",
        "No kernel takes a weight for each head or group. Use one for all of them if the model "
        "allows it; else there is nothing to change: the norm is fused, and Inductor multiplies "
        "and quantises.",
        is_unsupported=True,
    )
