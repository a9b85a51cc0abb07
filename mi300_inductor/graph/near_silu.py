"""What looks like a gated SiLU and is none: a product with a sigmoid, or with what a SiLU became.

`is_near` says where to look, `what_differs` names what is wrong with a product that no spelling
matches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from mi300_inductor.graph.meaning import Refusal
from mi300_inductor.graph.term import HALF_DTYPES, Term, same_dim, same_shape, strip
from mi300_inductor.graph.ways import JOINS, MOVES, REACH, SAME_ORDER, by_name, in_order, is_light
from mi300_inductor.graph.words import describe, operation_name

aten = torch.ops.aten

_NO_SILU = (
    "Use torch.nn.functional.silu(gate) * up if that is meant. A sigmoid gate is not a kind of "
    "this backend; Inductor compiles it."
)


def is_near(term: Term) -> bool | Refusal:
    """The smallest product of a sigmoid with something else than its own argument.

    That is a SiLU times something, in whatever order, or a sigmoid gate. So is a SiLU of which
    another operation makes a factor; the refusal names it.
    """
    if term.op == "glu":
        return True
    if term.op not in ("mul", "div") or not _split(term, set())[1]:
        return False
    if _is_silu(term):
        return _stands_before_product(term) or False
    return _has_others(term) and not any(_has_others(strip(operand)) for operand in term.args)


def _is_silu(term: Term) -> bool:
    factors, sigmoids = _factors(term)
    return len(sigmoids) == 1 and factors == [sigmoids[0][1]]


def _has_others(term: Term) -> bool:
    factors, sigmoids = _factors(term)
    gates = [gate for _, gate in sigmoids]
    others = [f for f in factors if not _is_number(f, term) and f not in gates]
    if any(gate in factors for gate in gates):
        return bool(others)
    # A gate without its SiLU; where a sigmoid is read twice, a backward computes with it.
    return bool(others) and any(_readers(sigmoid) == 1 for sigmoid, _ in sigmoids)


def _is_number(factor: Term, product: Term) -> bool:
    """Whether a factor is one value for the whole product, or a mask, and no second operand."""
    is_one = all(same_dim(dim, 1) for dim in factor.shape)
    return factor.dtype == torch.bool or (is_one and not same_shape(factor.shape, product.shape))


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
        gate = sigmoid_of(value)
        if gate is not None:
            sigmoids.append((value, gate))
        elif value.op == "mul" and value not in gates and not _is_normed(value):
            pending.extend(value.args)
        elif value.op == "div" and exponent_of(strip(value.args[1])) is not None:
            pending.append(value.args[0])
            divisor = strip(value.args[1])
            sigmoids.append((divisor, exponent_of(divisor) or divisor))
        else:
            factors.append(value)
    return factors, sigmoids


def _is_normed(product: Term) -> bool:
    """Whether a product is x times the reciprocal root in a norm: one value to what reads it."""
    return any(strip(operand).op == "rsqrt" for operand in product.args)


def sigmoid_of(term: Term) -> Term | None:
    """What a value is the sigmoid of."""
    if term.op == "sigmoid":
        return strip(term.args[0])
    if term.op == "div" and term.args[0].is_const and term.args[0].value == 1.0:
        return exponent_of(strip(term.args[1]))
    return None


def exponent_of(divisor: Term) -> Term | None:
    """What `1 + exp(-x)` is computed from."""
    if divisor.op != "add":
        return None
    exponential = next((a for a in map(strip, divisor.args) if a.op == "exp"), None)
    negated = strip(exponential.args[0]) if exponential is not None else None
    return strip(negated.args[0]) if negated is not None and negated.op == "mul" else None


def _readers(term: Term) -> int:
    return sum(len(node.users) for node in term.nodes)


def what_differs(anchor: Term) -> Refusal | None:
    """What is wrong with a product that no spelling matches."""
    if anchor.op == "glu":
        return Refusal(
            "torch.nn.functional.glu multiplies by the sigmoid of gate alone, not by its SiLU",
            _NO_SILU,
            is_unsupported=True,
        )
    factors, sigmoids = _factors(anchor)
    for sigmoid, gate in sigmoids:
        if gate not in factors:
            continue
        divisor = next((t for t in (*sigmoid.args, sigmoid) if strip(t).op == "add"), None)
        steps = [] if divisor is None else [*map(strip, strip(divisor).args), strip(divisor)]
        rounded = next((t for t in steps if t.dtype in HALF_DTYPES), None)
        if rounded is not None:
            return rounded_inside(rounded)
        return _no_up(factors)
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


def _no_up(factors: Sequence[Term]) -> Refusal | None:
    """Which factor of a SiLU is not its up, but a mask or a number."""
    masks = [factor for factor in factors if factor.dtype == torch.bool]
    for mask in masks:
        if operation_name(mask.node) == "native_dropout":
            return Refusal(
                f"dropout ({mask.node.name}) stands between the SiLU and its product with up",
                "Put the dropout behind the product, dropout(silu(gate) * up), if the model may be "
                "another one; or use model.eval() where nothing is trained.",
                is_unsupported=True,
            )
    for factor in (*masks, *(factor for factor in factors if factor.is_const)):
        return Refusal(
            f"the SiLU is multiplied by {describe(factor)} before it is multiplied by up",
            "Multiply the product instead: torch.nn.functional.silu(gate) * up * factor.",
        )
    return None


def rounded_inside(term: Term) -> Refusal:
    """What is wrong with a SiLU whose inner values are rounded."""
    return Refusal(
        f"{describe(term)} is rounded to {term.dtype} inside the SiLU",
        "Use torch.nn.functional.silu, or convert gate with .float() first.",
    )


def _stands_before_product(silu: Term) -> Refusal | None:
    """Names what is between a SiLU and the product of that with another value, its up.

    Multiplications on the way are looked through, and none of the other operations takes a second
    value, unless it puts both together.

    Returns:
        None if there is no such product, or nothing but multiplications stands before it.
    """
    ways, seen = [[node] for node in silu.nodes], set(silu.nodes)
    for way in ways:
        for user in way[-1].users:
            if user in seen or len(way) > REACH:
                continue
            seen.add(user)
            if not _is_product(user, way[-1]):
                ways += [[*way, user]] if is_light(user) and _is_of_one(user) else []
                continue
            steps = [node for node in reversed(way[1:]) if node.target not in SAME_ORDER]
            telling = by_name(n for n in steps if n.target is not aten.mul.Tensor)
            if telling:
                return Refusal(
                    "between the SiLU and its product with up " + in_order(telling),
                    _product_hint(telling),
                    is_unsupported=True,
                )
    return None


def _product_hint(names: Collection[str]) -> str:
    if all(name == "expand" for name in names):
        return "Expand gate instead: silu(gate.expand_as(up)) * up."
    if all(name in MOVES for name in names):
        return "Do it to gate instead, silu(gate[:, :n]) * up, or to the product."
    if all(name in ("where", "masked_fill") for name in names):
        return "Do it behind the product: (silu(gate) * up).masked_fill(mask, 0)."
    if all(name in JOINS for name in names):
        return "Multiply each part by its own up, and put the products together."
    if all(name.startswith("clamp") for name in names):
        return (
            "Clamp gate instead if that is meant: silu(gate.clamp(max=limit)) * up. A clamp behind "
            "the SiLU is not a kind of this backend; Inductor compiles it."
        )
    return (
        "No kernel makes this step. Use silu(gate) * up if the model allows it; else there is "
        "nothing to change, and Inductor compiles both."
    )


def _is_product(node: fx.Node, value: fx.Node) -> bool:
    """Whether a node is a product of a value and another one, both with as many elements."""
    if node.target is not aten.mul.Tensor or node.args[0] is node.args[1]:
        return False
    other = node.args[1] if node.args[0] is value else node.args[0]
    parts = [part.meta["val"] for part in (node, value, other) if isinstance(part, fx.Node)]
    return (
        len(parts) == 3
        and parts[2].dtype != torch.bool
        and all(same_shape(tuple(part.shape), tuple(parts[0].shape)) for part in parts)
    )


def _is_of_one(node: fx.Node) -> bool:
    """Whether a node changes one value, by itself or by a mask or factor, or joins several."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype == torch.bool:
        return False
    name = operation_name(node)
    return len(node.all_input_nodes) == 1 or name in ("mul", "nan_to_num", *MOVES, *JOINS)
