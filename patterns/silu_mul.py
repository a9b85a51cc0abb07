"""Gated SiLU: y = silu(gate) * up.

Before: convert, neg, exp, add, div, convert, mul.  After: one `mi300.silu_mul`, or the head of a
fusion with quantisation. gate and up may be halves of one tensor or results of two matmuls.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from mi300_inductor.graph.meaning import Meaning, Refusal, SiluMul
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import FLOAT_DTYPES, Term, held_dtype, strip
from mi300_inductor.graph.words import describe


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`torch.nn.functional.silu`, `torch.nn.SiLU` and Hugging Face's `ACT2FN["silu"]`."""
    return functional.silu(gate) * up


def sigmoid_mul(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU written out: the sigmoid is a value of its own and may be rounded."""
    return gate * torch.sigmoid(gate) * up


def _roles(root: Term) -> dict[str, Term]:
    act = next(a for a in root.args if a.op in ("div", "mul"))
    roles = {"product": root, "act": act}
    sigmoid = next((a for a in act.args if a.op == "sigmoid"), None)
    if sigmoid is not None:
        roles["sigmoid"] = sigmoid
        return roles
    roles["denominator"] = act.args[1]
    roles["exp"] = next(a for a in act.args[1].args if a.op == "exp")
    roles["negated"] = roles["exp"].args[0]
    return roles


def _describe(match: Match) -> SiluMul | Refusal:
    gate, up = match.variables["gate"], match.variables["up"]
    for name, value in (("gate", gate), ("up", up)):
        if value.dtype not in FLOAT_DTYPES:
            return Refusal(
                f"{name} is {value.dtype}, expected float32, bfloat16 or float16",
                "Activate in one of these dtypes.",
            )
    roles = match.spelling.roles
    exact = ["exp", "denominator"]  # a negation rounds nothing
    if any(match.spelling.variables.get(strip(a)) == "up" for a in roles["act"].args):
        exact += ["act", "sigmoid"]  # up is multiplied earlier than the operators do it
    for role in exact:
        named, use = match.value(role), match.use(role)
        if named is not None and (use is None or held_dtype(use) != torch.float32):
            return Refusal(
                f"{describe(named)} is rounded to {named.dtype} inside the SiLU",
                "Use torch.nn.functional.silu, or convert gate with .float() first.",
            )
    act_use, sigmoid_use = match.use("act"), match.use("sigmoid")
    act_dtype = held_dtype(act_use) if act_use is not None else None
    sigmoid_dtype = held_dtype(sigmoid_use) if sigmoid_use is not None else None
    act = match.value("act")
    if act_dtype is None or act is None or (sigmoid_use is not None and sigmoid_dtype is None):
        return Refusal(
            "the activation is rounded twice to different dtypes", "Cast the activation once."
        )
    return SiluMul(
        match=match,
        root=strip(match.root),
        gate=gate,
        up=up,
        sigmoid_dtype=sigmoid_dtype,
        act_dtype=act_dtype,
    )


def _is_anchor(term: Term) -> bool:
    """A product with a sigmoid-weighted value."""
    if term.op != "mul":
        return False
    return any(_is_silu(strip(operand)) for operand in term.args)


def _is_silu(term: Term) -> bool:
    if term.op == "mul":
        operands = [strip(a) for a in term.args]
        return any(a.op == "sigmoid" and strip(a.args[0]) in operands for a in operands)
    if term.op != "div" or strip(term.args[1]).op != "add":
        return False
    return any(strip(a).op == "exp" for a in strip(term.args[1]).args)


MEANING = Meaning(
    name="silu_mul",
    kind="silu_mul",
    spellings=(silu_mul, sigmoid_mul),
    examples=({"gate": torch.ones(ROWS, HIDDEN), "up": torch.ones(ROWS, HIDDEN)},),
    roles=_roles,
    describe=_describe,
    anchor=_is_anchor,
    hint="Write it as torch.nn.functional.silu(gate) * up with gate and up of one shape.",
)
