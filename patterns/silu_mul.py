"""Gated SiLU: y = silu(gate) * up.

Before: convert, neg, exp, add, div, convert, mul.  After: one `mi300.silu_mul`, or the head of a
fusion with quantisation. gate and up may be halves of one tensor or results of two matmuls.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from mi300_inductor.graph.meaning import Meaning, Refusal, SiluMul
from mi300_inductor.graph.near_silu import (
    exponent_of,
    is_near,
    rounded_inside,
    sigmoid_of,
    what_differs,
)
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import (
    FLOAT_DTYPES,
    Term,
    held_dtype,
    strip,
)
from mi300_inductor.graph.words import describe


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """`torch.nn.functional.silu`, `torch.nn.SiLU` and Hugging Face's `ACT2FN["silu"]`."""
    return functional.silu(gate) * up


def sigmoid_mul(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU written out: the sigmoid is a value of its own and may be rounded."""
    return gate * torch.sigmoid(gate) * up


def up_first(gate: Tensor, up: Tensor) -> Tensor:
    """Multiplied by up before gate; the same where nothing is rounded to halves on the way."""
    return up * torch.sigmoid(gate) * gate


def sigmoid_last(gate: Tensor, up: Tensor) -> Tensor:
    """The sigmoid is the last factor."""
    return gate * up * torch.sigmoid(gate)


def divided_product(gate: Tensor, up: Tensor) -> Tensor:
    """The product is divided by the sigmoid's reciprocal."""
    return gate * up / (1 + torch.exp(-gate))


def divided_up(gate: Tensor, up: Tensor) -> Tensor:
    """The other factor is divided by the sigmoid's reciprocal, and gate multiplied last."""
    return up / (1 + torch.exp(-gate)) * gate


def _roles(root: Term) -> dict[str, Term]:
    inner = list(_inner(root))
    sigmoid = next((term for term in inner if term.op == "sigmoid"), None)
    if sigmoid is not None:
        roles, factor = {"sigmoid": sigmoid}, sigmoid
    else:
        factor = next(term for term in inner if term.op == "add")
        exponential = next(a for a in factor.args if a.op == "exp")
        roles = {"exp": exponential, "denominator": factor, "negated": exponential.args[0]}
    gate = sigmoid_of(factor) if sigmoid is not None else exponent_of(factor)
    for term in inner:
        if term in roles.values() or term.op not in ("mul", "div"):
            continue
        # What is not gate times its sigmoid is a product with up, earlier than the operators do it.
        roles["act" if {strip(a) for a in term.args} == {gate, factor} else "early"] = term
    return roles | {"product": root}


def _inner(term: Term) -> Iterator[Term]:
    for operand in term.args:
        if operand.args:
            yield operand
            yield from _inner(operand)


def _describe(match: Match) -> SiluMul | Refusal:
    gate, up = match.variables["gate"], match.variables["up"]
    if not match.root.shape:
        return Refusal(
            "gate and up are tensors without dimensions, expected rows",
            "Nothing to change: there is nothing to gain from one value.",
            is_unsupported=True,
        )
    for name, value in (("gate", gate), ("up", up)):
        if value.dtype not in FLOAT_DTYPES:
            return Refusal(
                f"{name} is {value.dtype}, expected float32, bfloat16 or float16",
                "Activate in one of these dtypes.",
            )
    if strip(up) is match.value("act"):
        return Refusal("the SiLU is squared, expected a product with up", "Nothing to change.")
    early = match.value("early")
    exact = ["exp", "denominator"]  # a negation rounds nothing
    if early is not None:
        exact += ["early", "sigmoid"]
    for role in exact:
        named, use = match.value(role), match.use(role)
        if named is None or (use is not None and held_dtype(use) == torch.float32):
            continue
        if early is not None and role != "exp" and role != "denominator":
            return _rounded_early(named, use)
        return rounded_inside(named)
    act_use, sigmoid_use = match.use("act"), match.use("sigmoid")
    act_dtype = held_dtype(act_use) if act_use is not None else None
    act_dtype = act_dtype if early is None else torch.float32
    sigmoid_dtype = held_dtype(sigmoid_use) if sigmoid_use is not None else None
    if act_dtype is None or (sigmoid_use is not None and sigmoid_dtype is None):
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


def _rounded_early(term: Term, use: Term | None) -> Refusal:
    dtype = term.dtype if use is None else held_dtype(use) or term.dtype
    return Refusal(
        f"gate is not multiplied by its sigmoid first, and {describe(term)} is rounded to {dtype} "
        "before all three are multiplied",
        "Write it as torch.nn.functional.silu(gate) * up, which rounds the activation alone.",
    )


MEANING = Meaning(
    name="silu_mul",
    kind="silu_mul",
    spellings=(silu_mul, sigmoid_mul, up_first, sigmoid_last, divided_product, divided_up),
    examples=({"gate": torch.ones(ROWS, HIDDEN), "up": torch.ones(ROWS, HIDDEN)},),
    roles=_roles,
    describe=_describe,
    anchor=is_near,
    hint="Write it as torch.nn.functional.silu(gate) * up with gate and up of one shape: "
    "up.expand_as(gate), or gate.expand_as(up).",
    explain=what_differs,
    part={
        silu_mul: "exp",
        sigmoid_mul: "sigmoid",
        up_first: "sigmoid",
        sigmoid_last: "sigmoid",
        divided_product: "exp",
        divided_up: "exp",
    },
)
