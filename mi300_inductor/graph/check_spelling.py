"""Refuses spellings of users that do not mean what they are registered for, and says why.

A spelling becomes a matcher, and what it matches is replaced by an operator that computes the
meaning from the parameters alone. So it may have no operation beside those of the built-in
spellings, a clamp for example, which the operator would not make; and it must give their values,
for numbers of every size, with zeros, NaN and infinities among them.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mi300_inductor.graph.meaning import Meaning, Refusal
from mi300_inductor.graph.spelling import Spelling
from mi300_inductor.graph.spelling_inputs import Inputs, inputs_for
from mi300_inductor.graph.term import FP8_DTYPES, Term
from mi300_inductor.graph.trace import Pattern, traced
from mi300_inductor.graph.words import in_words, operation_name
from mi300_inductor.inductor import outside_fake_mode

Example = Mapping[str, Tensor | None]

# Operations by which the matcher goes without a role: they change no value.
_MOVES = ("cast", "expand", "view")
_TOLERANCE = 1e-5
# A smaller value counts as this large: subnormal numbers have few digits, and a root enlarges them.
_SMALLEST = 1e-33


def check_spelling(
    meaning: Meaning,
    function: Callable[..., Any],
    examples: Sequence[Example],
    matchers: Callable[[Callable[..., Any]], Sequence[Spelling]],
) -> None:
    """Refuses a spelling that cannot be compiled or does not mean what it should.

    Args:
        meaning: What it should mean.
        function: The spelling.
        examples: Those of the meaning that have its parameters.
        matchers: Gives the compiled patterns of a built-in spelling.

    Raises:
        ValueError: with what differs.
    """
    builtins = _with_same_parameters(meaning, function)
    with torch.no_grad(), outside_fake_mode():
        tame = next(inputs_for(function, examples[0]))
        _call(function, tame)
        patterns = [traced(function, example) for example in examples]
        known = [term for b in builtins for m in matchers(b) for term in _operations(m)]
        reasons = [_other_form(meaning, pattern, known) for pattern in patterns]
        difference = _difference(function, builtins, examples)
    reason = next(filter(None, reasons), None)
    if reason is not None:
        off = f" ({difference})" if difference else ""
        raise ValueError(
            f"spelling {function.__name__}: not a form of {meaning.name}; got a formula where "
            f"{reason.reason}{off}, expected something like {builtins[0].__name__}. {reason.hint}"
        )
    if difference:
        raise ValueError(
            f"spelling {function.__name__}: computes something else than {meaning.name}; got "
            f"{difference}, expected at most {_TOLERANCE:g}. Compare it with the built-in "
            "spellings on the same inputs."
        )


def _with_same_parameters(
    meaning: Meaning, function: Callable[..., Any]
) -> list[Callable[..., Tensor]]:
    names = list(inspect.signature(function).parameters)
    of_builtins = {b: list(inspect.signature(b).parameters) for b in meaning.spellings}
    same = [b for b, own in of_builtins.items() if set(own) == set(names)]
    if not same:
        expected = dict.fromkeys(f"({', '.join(own)})" for own in of_builtins.values())
        raise ValueError(
            f"spelling {function.__name__}: unknown parameters for {meaning.name}; got "
            f"({', '.join(names)}), expected the names {' or '.join(expected)}. Rename them, and "
            "add those that are missing."
        )
    return same


def _call(function: Callable[..., Any], inputs: Inputs) -> Any:
    copies = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in inputs.arguments.items()
    }
    try:
        return function(**copies)
    except Exception as error:
        raise ValueError(
            f"spelling {function.__name__}: it fails on example arguments; got "
            f"{type(error).__name__}: {error}, expected a tensor. Call it with tensors and numbers "
            "as the built-in spellings are called."
        ) from error


def _operations(pattern: Spelling | Pattern) -> list[Term]:
    """The operations of a pattern, behind its parameters' names and without numbers."""
    found: dict[Term, None] = {}
    pending = [pattern.root]
    while pending:
        term = pending.pop()
        if term not in pattern.variables and not term.is_const and term not in found:
            found[term] = None
            pending.extend(term.args)
    return list(found)


def _other_form(meaning: Meaning, pattern: Pattern, known: Sequence[Term]) -> Refusal | None:
    """Why the operators of a meaning would not compute what a pattern stands for."""
    foreign = _foreign_operation(pattern, known)
    try:
        meaning.roles(pattern.root)
        has_roles = True
    except (StopIteration, IndexError, AttributeError):
        has_roles = False
    if foreign is None and has_roles:
        return None
    explained = None if has_roles else _explained(meaning, pattern)
    if explained is not None:
        return explained
    words = list(dict.fromkeys(in_words(term) for term in known))
    listed = f"{', '.join(words[:-1])} and {words[-1]}" if words[:-1] else words[0]
    if foreign is None:
        return Refusal(
            f"the operations of {meaning.name} do not follow each other",
            f"Write it with {listed} as the built-in spellings do.",
        )
    return Refusal(
        f"there is {_described(foreign)}, which {meaning.name} has not",
        f"A spelling of it has only {listed}: apply other operations outside of it, to its "
        "arguments or its result.",
    )


def _described(term: Term) -> str:
    bound = next((a for a in term.args if term.op in ("min", "max") and a.is_const), None)
    if bound is not None:
        return f"{in_words(term)} of {bound.value:g}"
    if term.op != "leaf":
        return in_words(term)
    node = term.node
    return operation_name(node.args[0] if node.target is operator.getitem else node)  # type: ignore[arg-type]


def _foreign_operation(pattern: Pattern, known: Sequence[Term]) -> Term | None:
    """An operation that no built-in spelling has, or a bound that is no parameter."""
    names = {term.op for term in known}
    for term in _operations(pattern):
        numbers = [a.value for a in term.args if a.is_const and a not in pattern.variables]
        is_bound = term.op in ("min", "max") and any(map(math.isfinite, numbers))
        if is_bound or (term.op not in names and term.op not in _MOVES):
            return term
    return None


def _explained(meaning: Meaning, pattern: Pattern) -> Refusal | None:
    """What the meaning says about a graph that looks like it and is another."""
    for term in pattern.terms:
        found = meaning.anchor(term) if term.nodes or term.origin else False
        refusal = found if isinstance(found, Refusal) else meaning.explain(term) if found else None
        if refusal is not None:
            return refusal
    return None


def _difference(
    function: Callable[..., Any],
    builtins: Sequence[Callable[..., Tensor]],
    examples: Sequence[Example],
) -> str:
    """The first difference from that built-in spelling which it is most like; empty if equal."""
    differences: dict[Callable[..., Tensor], list[str]] = {builtin: [] for builtin in builtins}
    for example in examples:
        for inputs in inputs_for(function, example):
            result = _call(function, inputs)
            for builtin, texts in differences.items():
                text = _compared(result, _call(builtin, inputs))
                texts += [f"{text} {inputs.kind}"] if text else []
    fewest = min(differences.values(), key=len)
    return fewest[0] if fewest else ""


def _compared(result: Any, wanted: Tensor) -> str:
    """The largest difference if it is too large."""
    if not isinstance(result, Tensor):
        return "a result that is no tensor"
    if result.shape != wanted.shape:
        return f"a result of shape {list(result.shape)} for {list(wanted.shape)}"
    allowed = _TOLERANCE
    if wanted.dtype not in FP8_DTYPES:
        allowed = max(allowed, 2 * torch.finfo(wanted.dtype).eps)
    left, right = result.double().flatten(), wanted.double().flatten()
    off = (left - right).abs() / right.abs().clamp(_SMALLEST)
    off = off.nan_to_num(math.inf, math.inf)
    off[(left == right) | (left.isnan() & right.isnan())] = 0
    at = int(off.argmax())
    largest = float(off[at])
    values = f"{float(left[at]):.4g} instead of {float(right[at]):.4g}"
    return f"a result off by {largest:.3g} relatively, {values}," if largest > allowed else ""
