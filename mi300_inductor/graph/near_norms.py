"""What looks like an RMSNorm and is none: the values divided by the root of something of squares.

`is_near` says where to look, `what_differs` names the first mistake in the mean of squares, its
root and eps, which matching would only show as an operation that was not expected.
"""

from __future__ import annotations

import math

import torch
from torch import fx

from mi300_inductor.graph.blends import blended
from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.statistics import from_moments, unread
from mi300_inductor.graph.term import HALF_DTYPES, Term, held_dtype, operand_classes, strip
from mi300_inductor.graph.ways import (
    MOVES,
    SAME_ORDER,
    SCALING,
    by_name,
    in_order,
    is_differentiated,
    is_square,
    is_variance,
    way_back,
)
from mi300_inductor.graph.words import describe, operation_name

aten = torch.ops.aten

# They exchange values with other devices.
_EXCHANGES = ("all_reduce", "wait_tensor")
_AVERAGES = ("mean", "sum", "nansum", *_EXCHANGES)
# What may stand between the mean of squares and its root, or makes the mean.
_AROUND_MEAN = ("mean", "sum", "add", "sqrt", *SCALING)
# The operations of a model of which a variance is a part, if it is one of a LayerNorm.
_VARIANCES = ("native_layer_norm", "var", "var_mean", "std", "std_mean")


def is_near(term: Term) -> bool | Refusal:
    """Whether this is an rsqrt over a mean or sum of squares, or a division by the root of one.

    Where a number is added to the root, or bounds it, that is the place. A refusal names what
    stands between the squares and the root.
    """
    values = _under_root(term)
    if any(_reduction(value) is not None for value in values):
        return _derivative(term) or True
    return next(filter(None, map(_stands_before_root, values)), False)


def _under_root(term: Term) -> list[Term]:
    """The values under the square roots by which something may be divided."""
    return [root.args[0] for root in _roots(term)]


def _roots(term: Term) -> list[Term]:
    if term.op == "rsqrt":
        return [term]
    roots: list[Term | None] = []
    if term.op == "div":
        roots = [_root_in(term.args[1])]
    elif term.op in ("add", "max") and any(a.is_const for a in term.args):
        roots = [_root_in(a) for a in term.args]
    return [root for root in roots if root is not None]


def _derivative(term: Term) -> Refusal | None:
    """Says that a root is one in the derivative of a norm."""
    nodes = [node for root in _roots(term) for node in (*root.nodes, *term.node.all_input_nodes)]
    root = next(filter(is_differentiated, nodes), None)
    if root is None:
        return None
    return Refusal(
        f"the root is read by its derivative ({root.name}), so this is the gradient of a norm",
        "Nothing to change: there are no kernels for gradients, and Inductor compiles them.",
        is_unsupported=True,
    )


def _reduction(value: Term) -> Term | None:
    """The mean or sum of squares that a value under a root is computed from."""
    inner = [strip(value)]
    for _ in range(4):
        for candidate in inner:
            is_reduction = candidate.op in ("mean", "mean_other", "sum")
            if is_reduction and _is_square(candidate.args[0]):
                return candidate
        inner = [strip(a) for candidate in inner for a in candidate.args]
    return None


def _root_in(term: Term) -> Term | None:
    """The square root of which a value is a multiple, rounded perhaps."""
    term = strip(term)
    while term.op == "expand" or (
        term.op in ("mul", "div") and "scalar" in operand_classes(term.args[1], term)
    ):
        term = strip(term.args[0])
    return term if term.op == "sqrt" else None


def what_differs(anchor: Term) -> Refusal | None:
    """Mistakes in the mean of squares, which the operands around it would hide."""
    reduction = next(filter(None, map(_reduction, _under_root(anchor))), None)
    if reduction is None:
        return None
    path = _path(anchor, reduction)
    centred = next((step for step in map(strip, path) if _is_centred(step)), None)
    if centred is not None:
        return layer_norm(f"the root is of a variance, {describe(centred)}")
    if reduction.op == "sum" and not any(strip(use).op in ("mul", "div") for use in path):
        return Refusal(
            "the squares are summed, not averaged, so this is an L2 normalisation",
            "If an RMSNorm is meant, write it as x.float() * rsqrt(mean(x.float()**2, -1, "
            "keepdim=True) + eps) * weight. An L2 normalisation is not a kind of this backend; "
            "Inductor compiles it.",
            is_unsupported=True,
        )
    alone = unread(anchor, reduction.args[0].shape[-1]) if reduction.op == "mean" else None
    if alone is not None:
        return alone
    scaled = blended(path[:-1], reduction) or _scaled_squares(path, reduction)
    if scaled is not None:
        return scaled
    if anchor.op == "add":
        return Refusal(
            "eps is added outside the square root",
            "Add eps to the mean inside the root: x * rsqrt(mean(x**2) + eps).",
        )
    if anchor.op == "max":
        bound = next(a.value for a in anchor.args if a.is_const)
        return Refusal(
            f"the root of the squares has a lower bound, {bound:g}, instead of an eps inside it",
            "Write it as x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) * weight.",
        )
    if reduction.op == "mean_other":
        return Refusal(
            f"the mean of squares is over dimensions {reduction.attrs[0]} of "
            f"{len(reduction.args[0].shape)}, expected the last one alone",
            "Move the dimension with x.movedim(dim, -1), or flatten several, so that the "
            "normalised values are the last dimension: mean(-1, keepdim=True).",
        )
    if anchor.op == "div" and strip(anchor.args[1]).op in ("mul", "div"):
        return Refusal(
            f"x is divided by a multiple of the root of its squares, {describe(anchor.args[1])}",
            "Write it as x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) * weight, "
            "with any other factor in the weight; eps may be 0.0.",
        )
    shifted = strip(anchor.args[0]) if anchor.op == "rsqrt" else anchor
    if shifted.op == "weighted_add":
        return Refusal(
            f"eps is added with alpha={shifted.attrs[0]:g}, expected a plain sum of the mean and a "
            "number",
            "Write mean(x.float()**2, -1, keepdim=True) + eps, with a constant eps.",
        )
    if shifted.op == "add" and not any(operand.is_const for operand in shifted.args):
        others = [a for a in shifted.args if strip(a) is not reduction and not _path(a, reduction)]
        eps = others[0] if others else shifted.args[1]
        return Refusal(
            f"eps is not a constant: it is {describe(eps)}",
            "Keep eps as a Python number of the model, self.eps = float(eps): no parameter, no "
            "buffer, and no argument of what is compiled.",
        )
    rounded = next((use for use in path if held_dtype(use) in HALF_DTYPES), None)
    if rounded is None:
        return None
    return Refusal(
        f"the norm is not in float32 throughout: {describe(strip(rounded))} is rounded to "
        f"{held_dtype(rounded)}",
        "Convert x with .float() before squaring it, as Llama's norm does, and cast once.",
    )


def _path(term: Term, target: Term, depth: int = 6) -> list[Term]:
    """The operands through which a value is computed from another, as they are read; or none."""
    for operand in term.args:
        inner = strip(operand)
        if inner is target:
            return [operand]
        rest = _path(inner, target, depth - 1) if depth else []
        if rest:
            return [operand, *rest]
    return []


def _is_centred(step: Term) -> bool:
    """Whether the square of a mean is subtracted, which leaves a variance."""
    return step.op == "sub" and strip(step.args[1]).op == "mul"


def _scaled_squares(path: list[Term], reduction: Term) -> Refusal | None:
    """What is wrong with a factor of the mean of squares, or with a sum that is not averaged."""
    steps = [strip(use) for use in path[:-1]]  # from the root to the squares; last the reduction
    roots = [index for index, step in enumerate(steps) if step.op == "sqrt"]
    steps = steps[roots[-1] + 1 :] if roots else steps
    scaling = steps[-1] if steps else reduction
    if len(steps) == 2 and scaling.op == "add" and steps[0].op in ("mul", "div"):
        return Refusal(
            f"eps is added to the {reduction.op[:4]} of squares before {describe(steps[0])}",
            "Add eps to the mean itself, last: rsqrt(x.float().pow(2).mean(-1, keepdim=True) + "
            "eps).",
        )
    if reduction.op == "mean_other" or scaling.op not in ("mul", "div"):
        return None
    factor = next(a for a in scaling.args if strip(a) is not reduction)
    number = f"{factor.value:g}" if factor.is_const else describe(factor)
    done = f"{'divided' if scaling.op == 'div' else 'multiplied'} by {number}"
    if reduction.op == "mean":
        return Refusal(
            f"the mean of squares is {done}, expected the mean itself",
            "Leave this factor c out: rsqrt(c * mean + eps) is rsqrt(mean + eps / c) / sqrt(c), so "
            "use eps / c, and divide the weight by sqrt(c).",
        )
    hidden = reduction.args[0].shape[-1]
    if factor.is_const and isinstance(hidden, int):
        size = factor.value if scaling.op == "div" else 1 / (factor.value or math.inf)
        if math.isclose(size, hidden, rel_tol=1e-7):
            return None  # rounded on the way, or it would be a mean
    wanted = f"{'' if scaling.op == 'div' else '1 / '}{hidden}"
    return Refusal(
        f"the sum of squares is {done}, expected {wanted}, the size of the last dimension",
        "Write x.float().pow(2).mean(-1, keepdim=True), or divide by x.shape[-1]. If sum / c with "
        "another c is meant: n = x.shape[-1], eps * c / n, and weight * sqrt(c / n).",
    )


def _is_square(term: Term) -> bool:
    while term.op in ("cast", "view"):
        term = term.args[0]
    return term.op == "mul" and len({strip(operand) for operand in term.args}) == 1


def _stands_before_root(value: Term) -> Refusal | None:
    """Names what is between squares and the root of their mean, which keeps the two apart.

    A variance is the mean of squares as well, of what is left without the mean.

    Args:
        value: What is under the root.

    Returns:
        None if no squares are near, or nothing but their mean and eps stands between.
    """
    while not value.nodes and value.args:  # an eps of zero that only the canonical form has
        value = value.args[0]
    moments = from_moments(value)
    if moments is not None:
        return moments
    way = way_back(value.node, _squares_or_varies, _AVERAGES) if value.nodes else []
    if way and not is_square(way[-1]):
        name = operation_name(way[-1])
        # No name of a node: all layers of a model share one line in the report.
        return layer_norm(f"the root is of a variance, {name}") if name in _VARIANCES else None
    steps = way[:-1]
    averages = [index for index, node in enumerate(steps) if operation_name(node) in _AVERAGES]
    telling = by_name(
        node
        for index, node in enumerate(steps)
        if node.target not in SAME_ORDER
        and averages
        and (index > averages[-1] or operation_name(node) not in _AROUND_MEAN)
    )
    if not telling:
        return None
    return Refusal(
        f"between the squares and the reciprocal root of their mean {in_order(telling)}",
        "Normalise x whole, x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps), and "
        "move its result, or x before, instead."
        if all(name in (*MOVES, *_EXCHANGES) for name in telling)
        else "An RMSNorm averages all squares of a row alike: if that is meant, write "
        "x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps). A mean over a part of "
        "them, or a weighted one, is not a kind of this backend; Inductor compiles it.",
        is_unsupported=True,
    )


def layer_norm(why: str) -> Refusal:
    """The note about a norm that takes the mean away, which `why` says."""
    return Refusal(
        f"{why}, so this is a LayerNorm, not an RMSNorm",
        "A LayerNorm is not a kind of this backend; Inductor compiles it. If an RMSNorm is meant, "
        "use torch.nn.RMSNorm.",
        is_unsupported=True,
    )


def _squares_or_varies(node: fx.Node) -> bool:
    return is_square(node) or is_variance(node)
