"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

Before: convert, pow, mean, add, rsqrt, mul, convert, mul.  After: one `mi300.rms_norm`, or a part
of a larger fusion. The spellings differ in the order of the arithmetic; where the result is rounded
(before the weight as Hugging Face's Llama does, or after it as `torch.nn.RMSNorm` does) is read
from the graph and becomes a parameter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mi300_inductor.graph.meaning import Meaning, Refusal, RmsNorm
from mi300_inductor.graph.near_norms import is_near, layer_norm, what_differs
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import FLOAT_DTYPES, Term, held_dtype, strip
from mi300_inductor.graph.words import describe


def torch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`torch.nn.functional.rms_norm` and `torch.nn.RMSNorm`: the weight is applied in fp32."""
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def torch_rms_norm_without_weight(x: Tensor, eps: float) -> Tensor:
    """The same without a weight."""
    return functional.rms_norm(x, (x.shape[-1],), None, eps)


def llama_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Hugging Face's Llama and most of its relatives: rounds before the weight."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return weight * h.to(x.dtype)


def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gemma: the weight is stored as its distance from one."""
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (1.0 + weight.float())).to(x.dtype)


def _roles(root: Term) -> dict[str, Term]:
    normed = root
    if not any(operand.op == "rsqrt" for operand in root.args):
        normed = next(a for a in root.args if any(b.op == "rsqrt" for b in a.args))
    roles = {"weighted": root, "normed": normed}
    roles["rsqrt"] = next(a for a in normed.args if a.op == "rsqrt")
    roles["shifted"] = roles["rsqrt"].args[0]
    roles["mean"] = next(a for a in roles["shifted"].args if a.op == "mean")
    roles["square"] = roles["mean"].args[0]
    offset = next((a for a in root.args if a.op == "add"), None)
    if offset is not None:
        roles["offset"] = offset
    return roles


def _describe(match: Match) -> RmsNorm | Refusal:
    x, weight = match.variables["x"], match.variables.get("weight")
    if x.dtype not in FLOAT_DTYPES:
        return Refusal(
            f"the input of the norm is {x.dtype}, expected float32, bfloat16 or float16",
            "Normalise in one of these dtypes.",
        )
    if weight is not None and weight.dtype not in (*FLOAT_DTYPES, None):
        return Refusal(
            f"the weight of the norm is {weight.dtype}, expected float32, bfloat16 or float16",
            "Convert the weight to one of these dtypes before it is multiplied.",
        )
    refusal = _other_rounding(match)
    if refusal is not None:
        return refusal
    if x.op == "sub" and any(operand.op.startswith("mean") for operand in map(strip, x.args)):
        return layer_norm("the mean is subtracted first")
    normed, use = match.value("normed"), match.use("normed")
    root = match.root
    norm_dtype = held_dtype(use) if weight is not None and use is not None else torch.float32
    if norm_dtype is None or (normed is not None and normed.dtype != torch.float32):
        return Refusal(
            "x * rstd is not computed in float32 and rounded once",
            "Multiply in float32 and cast the result once.",
        )
    offset = match.value("offset")
    return RmsNorm(
        match=match,
        root=strip(root),
        x=x,
        weight=weight,
        eps=match.scalar("eps"),
        weight_offset=0.0 if offset is None else 1.0,
        norm_dtype=norm_dtype,
    )


def _other_rounding(match: Match) -> Refusal | None:
    """Refuses roundings that the operators do not make: theirs is of x * rstd and of the result."""
    pattern_x = next(p for p, name in match.spelling.variables.items() if name == "x")
    normed = match.spelling.roles["normed"]
    may_round = {match.spelling.root}
    if any(strip(operand) is pattern_x for operand in normed.args):
        may_round.add(normed)
    for pattern, value in reversed(match.values.items()):  # in the order of computation
        held = held_dtype(match.uses[pattern])
        if pattern in may_round or held == torch.float32:
            continue
        if pattern is match.spelling.roles.get("offset"):
            return Refusal(
                f"1 + weight is rounded to {held}, expected float32",
                "Convert the weight with .float() before adding 1.",
            )
        hint = "Convert x with .float() before squaring it, as Llama's norm does, and cast once."
        if value.op == "rsqrt":
            hint = "Keep the reciprocal root in float32: (x.float() * rstd).to(x.dtype) * weight."
        return Refusal(
            f"the norm is not in float32 throughout: {describe(value)} is rounded to {held}", hint
        )
    return None


MEANING = Meaning(
    name="rms_norm",
    kind="rms_norm",
    spellings=(
        torch_rms_norm,
        torch_rms_norm_without_weight,
        llama_rms_norm,
        gemma_rms_norm,
    ),
    examples=({"x": torch.ones(ROWS, HIDDEN), "weight": torch.ones(HIDDEN), "eps": None},),
    roles=_roles,
    describe=_describe,
    anchor=is_near,
    hint="Write it as x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) * weight, with "
    "a constant eps.",
    explain=what_differs,
)
