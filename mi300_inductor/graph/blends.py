"""What else than the mean of squares and eps is under the root of something like an RMSNorm.

A running average that is mixed in, the mean of another tensor, a bound: such a norm depends on more
than its row, and no kernel computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.term import Term, operand_classes, strip
from mi300_inductor.graph.words import describe, shape_text

_NORM = "x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) * weight"
_JOINS = ("add", "sub", "weighted_add", "max", "min")


def blended(path: Sequence[Term], reduction: Term) -> Refusal | None:
    """The refusal of a root of the mean of squares and something else.

    Args:
        path: The operands from the root, or what it is in, to the mean, as they are read.
        reduction: The mean, or the sum.
    """
    steps = [strip(use) for use in path]
    steps = [step for step in steps if step.op in (*_JOINS, "mul", "div")]
    has_eps = any(step.op == "add" and any(a.is_const for a in step.args) for step in steps)
    for step, inner in zip(steps, [*steps, reduction][1:], strict=True):
        others = [a for a in step.args if strip(a) is not inner]
        if len(others) != 1 or (step.op not in _JOINS and reduction.op == "sum"):
            continue
        other = others[0]
        if other.is_const and step.op in ("max", "min"):
            side = "a lower" if step.op == "max" else "an upper"
            return Refusal(
                f"the mean of squares has {side} bound, {describe(other)}",
                f"Leave the bound out, eps keeps the root from zero: {_NORM}.",
            )
        is_scaled = inner.op in ("mul", "div") and inner is not reduction
        is_one = "scalar" in operand_classes(other, step)
        if other.is_const or (is_one and not has_eps and not is_scaled and step.op == "add"):
            continue  # a factor, or eps, as a number or as a tensor
        if step.op == "weighted_add" and is_one and not has_eps:
            continue
        return Refusal(
            f"under the root stands the mean of squares together with {describe(other)} of shape "
            f"{shape_text(other)}, by {describe(step)}",
            f"If an RMSNorm of x alone is meant, write {_NORM}. A mean that is mixed with other "
            "values is not a kind of this backend; Inductor compiles it.",
            is_unsupported=True,
        )
    return None
