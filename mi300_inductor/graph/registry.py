"""The meanings and their spellings: those of `patterns/` and those that users add."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import marshal
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from mi300_inductor.graph.meaning import Meaning
from mi300_inductor.graph.spelling import compile_spelling
from mi300_inductor.inductor import decomposition_table, outside_fake_mode
from mi300_inductor.shown import shown

Function = TypeVar("Function", bound=Callable[..., torch.Tensor])

_user_spellings: dict[str, list[Callable[..., Any]]] = {}


@functools.cache
def meanings() -> tuple[Meaning, ...]:
    """All meanings, one per file of `patterns/`, in alphabetical order."""
    patterns = importlib.import_module("mi300_inductor.patterns")
    names = sorted(module.name for module in pkgutil.iter_modules(patterns.__path__))
    with outside_fake_mode():  # the examples that they make are traced as they are
        modules = [importlib.import_module(f"{patterns.__name__}.{name}") for name in names]
    return tuple(module.MEANING for module in modules)


def examples_of(
    meaning: Meaning, function: Callable[..., Any]
) -> list[Mapping[str, torch.Tensor | None]]:
    """The examples with which a spelling is traced: the smallest that name its parameters."""
    names = set(inspect.signature(function).parameters)
    fitting = [example for example in meaning.examples if names <= set(example)]
    smallest = min((len(example) for example in fitting), default=0)
    return [example for example in fitting if len(example) == smallest]


def user_spellings(meaning_name: str) -> tuple[Callable[..., Any], ...]:
    """The spellings that users have added to a meaning."""
    return tuple(_user_spellings.get(meaning_name, ()))


def user_spellings_key() -> str:
    """Changes when a user adds a spelling; part of the pass's uuid."""
    digest = hashlib.sha256()
    for name in sorted(_user_spellings):
        for function in _user_spellings[name]:
            digest.update(name.encode())
            digest.update(_text_of(function))
    return digest.hexdigest() if _user_spellings else ""


def _text_of(function: Callable[..., Any]) -> bytes:
    try:
        return inspect.getsource(function).encode()
    except (OSError, TypeError):  # typed into an interpreter
        return marshal.dumps(function.__code__)


def spelling(meaning_name: str) -> Callable[[Function], Function]:
    """Adds a spelling of a known meaning.

    Args:
        meaning_name: `rms_norm`, `silu_mul`, `quantize`, `dynamic_scale` or `matmul`.

    Returns:
        A decorator for a plain PyTorch function whose parameters are named as in the built-in
        spellings of that meaning, for example `(x, weight, eps)`, and which returns one tensor.

    Raises:
        TypeError: for something that is no plain function.
        ValueError: for an unknown meaning, other parameters, or a function that computes something
            else than the built-in spellings with the same parameters.
    """
    known = {meaning.name: meaning for meaning in meanings()}
    if meaning_name not in known:
        raise ValueError(
            f"spelling: unknown meaning; got {shown(meaning_name)}, expected one of "
            f"{', '.join(known)}. A new meaning needs a file in patterns/."
        )
    meaning = known[meaning_name]

    def add(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise TypeError(
                f"spelling: what is decorated is no function; got {shown(function)}, expected a "
                "plain Python function of tensors. Define it with `def`."
            )
        _check(meaning, function)
        present = _user_spellings.setdefault(meaning_name, [])
        present[:] = [old for old in present if old.__qualname__ != function.__qualname__]
        present.append(function)
        from mi300_inductor.graph.recognise import compiled

        compiled.cache_clear()
        return function

    return add


def _check(meaning: Meaning, function: Callable[..., Any]) -> None:
    """Refuses a spelling that cannot be compiled or does not mean what it should."""
    name = function.__name__
    examples = examples_of(meaning, function)
    if not examples:
        given = ", ".join(inspect.signature(function).parameters)
        expected = " or ".join(f"({', '.join(example)})" for example in meaning.examples)
        raise ValueError(
            f"spelling {name}: unknown parameters for {meaning.name}; got ({given}), expected "
            f"names from {expected}. Rename them."
        )
    arguments = _random_arguments(function, examples[0])
    result = _call(function, arguments)
    try:
        compile_spelling(function, examples[0], meaning.roles, decomposition_table())
    except (StopIteration, IndexError, AttributeError):
        raise ValueError(
            f"spelling {name}: not a form of {meaning.name}; got a formula without its "
            f"characteristic operation, expected something like "
            f"{meaning.spellings[0].__name__}. Compare it with the built-in spellings."
        ) from None
    same = [
        builtin
        for builtin in meaning.spellings
        if set(inspect.signature(builtin).parameters) == set(arguments)
    ]
    differences = [_difference(result, builtin(**arguments)) for builtin in same]
    if differences and min(differences) > _TOLERANCE:
        raise ValueError(
            f"spelling {name}: computes something else than {meaning.name}; got a result that is "
            f"off by {min(differences):.3g} (relative), expected at most {_TOLERANCE:g}. Compare "
            "it with the built-in spellings on the same inputs."
        )


_TOLERANCE = 1e-4


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return function(**arguments)
    except Exception as error:
        raise ValueError(
            f"spelling {function.__name__}: it fails on example arguments; got "
            f"{type(error).__name__}: {error}, expected a tensor. Call it with tensors and numbers "
            "as the built-in spellings are called."
        ) from error


def _random_arguments(
    function: Callable[..., Any], example: Mapping[str, torch.Tensor | None]
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    arguments: dict[str, Any] = {}
    for index, name in enumerate(inspect.signature(function).parameters):
        value = example[name]
        if value is None:
            arguments[name] = 0.25 * (index + 1) if "min" not in name else -3.0
        else:
            random = torch.rand(value.shape, generator=generator) + 0.5
            arguments[name] = random.to(value.dtype).as_strided(value.shape, value.stride())
    return arguments


def _difference(left: torch.Tensor, right: torch.Tensor) -> float:
    if left.shape != right.shape:
        return float("inf")
    return float(((left.float() - right.float()).abs() / right.float().abs().clamp(1e-6)).max())
