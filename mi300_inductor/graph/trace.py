"""Plain functions as patterns: traced, canonicalised, and compiled into matchers.

A spelling is traced in fp32 through Inductor's decompositions and through the same canonicaliser as
the user's graph. Its scalar parameters are traced with marker numbers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from mi300_inductor.graph.canonicalise import Canonicaliser, writes
from mi300_inductor.graph.spelling import Spelling
from mi300_inductor.graph.term import Term, strip
from mi300_inductor.inductor import decomposition_table, outside_fake_mode
from mi300_inductor.shown import shown

# Marker numbers for scalar parameters: exact in fp32, and no result of any formula here.
MARKERS = (0.01171875, 7.15625, 301.75, 0.000762939453125, 1234.5)


@dataclass(frozen=True, eq=False)
class Pattern:
    """A traced function: its result, its parameters, and all terms in the order of computation."""

    root: Term
    variables: Mapping[Term, str]
    terms: tuple[Term, ...]


def compile_spelling(
    function: Callable[..., Any],
    example: Mapping[str, torch.Tensor | None],
    roles: Callable[[Term], dict[str, Term]],
) -> Spelling:
    """Traces a plain function into a matcher.

    Args:
        function: Its parameters are named as in `example`; it returns one tensor.
        example: Parameter name to a tensor, or to None for a scalar variable.
        roles: Finds the named terms of the meaning in the pattern.

    Raises:
        ValueError: as `traced`.
    """
    pattern = traced(function, example)
    return Spelling((function.__name__,), pattern.root, pattern.variables, roles(pattern.root))


def traced(function: Callable[..., Any], example: Mapping[str, torch.Tensor | None]) -> Pattern:
    """The terms of a plain function; parameters as in `compile_spelling`.

    Raises:
        ValueError: where the function cannot be traced, does not read each parameter as it is, or
            returns something else than a tensor.
    """
    names = list(inspect.signature(function).parameters)
    markers = iter(MARKERS)
    given = {n: next(markers) if example[n] is None else example[n] for n in names}
    tensors = [n for n in names if isinstance(given[n], torch.Tensor)]
    module = _graph_module(function, given, tensors)
    canonical = Canonicaliser(module.graph)
    output = module.graph.find_nodes(op="output")[0].args[0]
    if not isinstance(output, torch.fx.Node):
        raise ValueError(
            f"spelling {function.__name__}: wrong result; got {shown(output)}, expected one "
            "tensor. Return the value of the formula alone."
        )
    placeholders = module.graph.find_nodes(op="placeholder")
    variables = {canonical.term(p): n for p, n in zip(placeholders, tensors, strict=True)}
    scalars = {given[n]: n for n in names if example[n] is None}
    for term in canonical.terms:
        if term.is_const and term.value in scalars:
            variables[term] = scalars[term.value]
    missing = set(names) - set(variables.values())
    if missing:
        raise ValueError(
            f"spelling {function.__name__}: parameters without effect; got "
            f"{', '.join(sorted(missing))}, expected each to be read once as it is. Do not compute "
            "with scalar parameters beforehand."
        )
    return Pattern(strip(canonical.term(output)), variables, tuple(canonical.terms))


def _graph_module(
    function: Callable[..., Any], given: Mapping[str, Any], tensors: list[str]
) -> fx.GraphModule:
    """The functional graph of a function with its scalar parameters as numbers."""

    def of_tensors(*args: torch.Tensor) -> Any:
        return function(**{**given, **dict(zip(tensors, args, strict=True))})

    inputs = [given[n] for n in tensors]
    with torch.no_grad(), outside_fake_mode():
        try:
            module = make_fx(of_tensors, dict(decomposition_table()), tracing_mode="real")(*inputs)
        except Exception as error:
            raise ValueError(
                f"spelling {function.__name__}: it cannot be traced; got {type(error).__name__}: "
                f"{str(error).partition(chr(10))[0]}, expected a formula that does not depend on "
                "the values of tensors. Take `if`, .item() and the like out of it."
            ) from error
        if any(writes(node) for node in module.graph.nodes):
            # A decomposition writes in place; the user's graph is functional, so this one must be.
            module = make_fx(functionalize(module), tracing_mode="real")(*inputs)
    return module
