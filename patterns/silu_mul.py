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
from mi300_inductor.graph.spelling import HIDDEN, ROWS, Match
from mi300_inductor.graph.term import (
    FLOAT_DTYPES,
    HALF_DTYPES,
    Term,
    held_dtype,
    operand_classes,
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
    gate = _sigmoid_of(factor) if sigmoid is not None else _exponent(factor)
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
        return _rounded_inside(named)
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


def _rounded_inside(term: Term) -> Refusal:
    return Refusal(
        f"{describe(term)} is rounded to {term.dtype} inside the SiLU",
        "Use torch.nn.functional.silu, or convert gate with .float() first.",
    )


def _rounded_early(term: Term, use: Term | None) -> Refusal:
    dtype = term.dtype if use is None else held_dtype(use) or term.dtype
    return Refusal(
        f"gate is not multiplied by its sigmoid first, and {describe(term)} is rounded to {dtype} "
        "before all three are multiplied",
        "Write it as torch.nn.functional.silu(gate) * up, which rounds the activation alone.",
    )


def _is_anchor(term: Term) -> bool:
    """The smallest product of a sigmoid with something else than its own argument.

    That is a SiLU times something, in whatever order, or a sigmoid gate. So is the product with a
    SiLU that is clamped.
    """
    if term.op == "glu" or _clamp_of_silu(term) is not None:
        return True
    if term.op not in ("mul", "div") or not _has_others(term):
        return False
    return not any(_has_others(strip(operand)) for operand in term.args)


def _clamp_of_silu(term: Term) -> Term | None:
    """The clamp between a SiLU and its product with something else."""
    if term.op != "mul" or any("full" not in operand_classes(a, term) for a in term.args):
        return None
    for operand in map(strip, term.args):
        inner = operand
        while inner.op in ("min", "max") and inner.args[1].is_const:
            inner = strip(inner.args[0])
        if inner is not operand:
            factors, sigmoids = _factors(inner)
            if factors == [gate for _, gate in sigmoids]:
                return operand
    return None


def _has_others(term: Term) -> bool:
    factors, sigmoids = _factors(term)
    gates = [gate for _, gate in sigmoids]
    others = [factor for factor in factors if not factor.is_const and factor not in gates]
    if any(gate in factors for gate in gates):
        return bool(others)
    # A gate without its SiLU; where a sigmoid is read twice, a backward computes with it.
    return bool(others) and any(_readers(sigmoid) == 1 for sigmoid, _ in sigmoids)


def _factors(term: Term) -> tuple[list[Term], list[tuple[Term, Term]]]:
    """The factors of a product, and of each sigmoid among them its term and its argument."""
    _, sigmoids = _split(term, set())
    return _split(term, {gate for _, gate in sigmoids})


def _split(term: Term, gates: set[Term]) -> tuple[list[Term], list[tuple[Term, Term]]]:
    """`_factors`, where a gate that is a product itself counts as one."""
    factors: list[Term] = []
    sigmoids: list[tuple[Term, Term]] = []
    pending = [term]
    while pending:
        value = strip(pending.pop())
        gate = _sigmoid_of(value)
        if gate is not None:
            sigmoids.append((value, gate))
        elif value.op == "mul" and value not in gates:
            pending.extend(value.args)
        elif value.op == "div" and _exponent(strip(value.args[1])) is not None:
            pending.append(value.args[0])
            divisor = strip(value.args[1])
            sigmoids.append((divisor, _exponent(divisor) or divisor))
        else:
            factors.append(value)
    return factors, sigmoids


def _sigmoid_of(term: Term) -> Term | None:
    """What a value is the sigmoid of."""
    if term.op == "sigmoid":
        return strip(term.args[0])
    if term.op == "div" and term.args[0].is_const and term.args[0].value == 1.0:
        return _exponent(strip(term.args[1]))
    return None


def _exponent(divisor: Term) -> Term | None:
    """What `1 + exp(-x)` is computed from."""
    if divisor.op != "add":
        return None
    exponential = next((a for a in map(strip, divisor.args) if a.op == "exp"), None)
    negated = strip(exponential.args[0]) if exponential is not None else None
    return strip(negated.args[0]) if negated is not None and negated.op == "mul" else None


def _readers(term: Term) -> int:
    return sum(len(node.users) for node in term.nodes)


def _explain(anchor: Term) -> Refusal | None:
    """What is wrong with a product that no spelling matches."""
    if anchor.op == "glu":
        return Refusal(
            "torch.nn.functional.glu multiplies by the sigmoid of gate alone, not by its SiLU",
            _NO_SILU,
            is_unsupported=True,
        )
    clamp = _clamp_of_silu(anchor)
    if clamp is not None:
        return Refusal(
            f"the SiLU has a bound, {describe(clamp)}, before it is multiplied by up",
            "Clamp gate instead if that is meant: silu(gate.clamp(max=limit)) * up. A clamp behind "
            "the SiLU is not a kind of this backend; Inductor compiles it.",
            is_unsupported=True,
        )
    factors, sigmoids = _factors(anchor)
    is_norm = any(factor.op == "rsqrt" for factor in factors)  # of gate itself, which is gated
    for sigmoid, gate in sigmoids:
        if gate not in factors or is_norm:
            continue
        divisor = next((t for t in (*sigmoid.args, sigmoid) if strip(t).op == "add"), None)
        steps = [] if divisor is None else [*map(strip, strip(divisor).args), strip(divisor)]
        rounded = next((t for t in steps if t.dtype in HALF_DTYPES), None)
        if rounded is not None:
            return _rounded_inside(rounded)
        return None
    gate = sigmoids[0][1]
    if any(strip(operand) in factors for operand in gate.args):
        return Refusal(
            f"the sigmoid is of {describe(gate)}, expected of gate itself",
            "Use torch.nn.functional.silu(gate) * up if that is meant. Other activations (a quick "
            "GELU, or GPT-OSS's SwiGLU with its alpha) are not a kind of this backend; Inductor "
            "compiles them.",
            is_unsupported=True,
        )
    return Refusal(
        f"gate, {describe(gate)}, is not multiplied by its sigmoid, so this is a sigmoid gate",
        _NO_SILU,
        is_unsupported=True,
    )


_NO_SILU = (
    "Use torch.nn.functional.silu(gate) * up if that is meant. A sigmoid gate is not a kind of "
    "this backend; Inductor compiles it."
)


MEANING = Meaning(
    name="silu_mul",
    kind="silu_mul",
    spellings=(silu_mul, sigmoid_mul, up_first, sigmoid_last, divided_product, divided_up),
    examples=({"gate": torch.ones(ROWS, HIDDEN), "up": torch.ones(ROWS, HIDDEN)},),
    roles=_roles,
    describe=_describe,
    anchor=_is_anchor,
    hint="Write it as torch.nn.functional.silu(gate) * up with gate and up of one shape.",
    explain=_explain,
    part={
        silu_mul: "exp",
        sigmoid_mul: "sigmoid",
        up_first: "sigmoid",
        sigmoid_last: "sigmoid",
        divided_product: "exp",
        divided_up: "exp",
    },
)
