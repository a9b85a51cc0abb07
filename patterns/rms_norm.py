"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

Before: convert, pow, mean, add, rsqrt, mul, convert, mul.  After: one `mi300.rms_norm`, or a part of
a larger fusion. The spellings differ in the order of the arithmetic; where the result is rounded
(before the weight as Hugging Face's Llama does, or after it as `torch.nn.RMSNorm` does) is read
from the graph and becomes a parameter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mi300_inductor.graph.meaning import Meaning, Refusal, RmsNorm
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match, describe
from mi300_inductor.graph.term import FLOAT_DTYPES, Term, held_dtype, strip


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
    for role in ("square", "mean", "shifted", "rsqrt"):
        value, use = match.value(role), match.use(role)
        if value is None or use is None or held_dtype(use) != torch.float32:
            return Refusal(
                f"the mean of squares is not in float32 throughout: {describe(value or x)} is "
                f"rounded to {held_dtype(use) if use is not None else None}",
                "Convert x with .float() before squaring it, as Llama's norm does.",
            )
    if x.op == "sub" and any(operand.op.startswith("mean") for operand in map(strip, x.args)):
        return Refusal(
            "the mean is subtracted first, so this is a LayerNorm",
            "LayerNorm is not a kind of this backend; Inductor compiles it.",
        )
    normed, use = match.value("normed"), match.use("normed")
    root = match.root
    norm_dtype = held_dtype(use) if weight is not None and use is not None else torch.float32
    if norm_dtype is None or (normed is not None and normed.dtype != torch.float32):
        return Refusal(
            "x * rstd is not computed in float32 and rounded once",
            "Multiply in float32 and cast the result once.",
        )
    offset, offset_use = match.value("offset"), match.use("offset")
    if offset is not None and (offset_use is None or held_dtype(offset_use) != torch.float32):
        return Refusal(
            f"1 + weight is rounded to {offset.dtype}, expected float32",
            "Convert the weight with .float() before adding 1.",
        )
    return RmsNorm(
        match=match,
        root=strip(root),
        x=x,
        weight=weight,
        eps=match.scalar("eps"),
        weight_offset=0.0 if offset is None else 1.0,
        norm_dtype=norm_dtype,
    )


def _is_anchor(term: Term) -> bool:
    """An rsqrt over something that contains a mean or sum of squares."""
    if term.op != "rsqrt":
        return False
    inner = list(term.args)
    for _ in range(4):
        for candidate in inner:
            is_reduction = candidate.op in ("mean", "mean_other", "sum")
            if is_reduction and _is_square(candidate.args[0]):
                return True
        inner = [a for candidate in inner for a in candidate.args]
    return False


def _is_square(term: Term) -> bool:
    while term.op in ("cast", "view"):
        term = term.args[0]
    return term.op == "mul" and len(term.args) == 2 and term.args[0] is term.args[1]


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
    anchor=_is_anchor,
    hint="Write it as x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) * weight with a "
    "constant eps.",
)
