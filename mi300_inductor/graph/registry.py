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

from mi300_inductor.graph.check_spelling import check_spelling
from mi300_inductor.graph.meaning import Meaning
from mi300_inductor.graph.spelling import Spelling
from mi300_inductor.graph.trace import compile_spelling
from mi300_inductor.inductor import outside_fake_mode
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


@functools.cache
def matchers(meaning_name: str, function: Callable[..., Any]) -> tuple[Spelling, ...]:
    """A spelling of a meaning, compiled with each of its examples."""
    meaning = next(m for m in meanings() if m.name == meaning_name)
    examples = examples_of(meaning, function)
    return tuple(compile_spelling(function, e, meaning.roles) for e in examples)


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
            else than the built-in spellings with the same parameters, or with other operations.
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
        check_spelling(
            meaning,
            function,
            examples_of(meaning, function),
            functools.partial(matchers, meaning_name),
        )
        present = _user_spellings.setdefault(meaning_name, [])
        present[:] = [old for old in present if old.__qualname__ != function.__qualname__]
        present.append(function)
        from mi300_inductor.graph.recognise import compiled

        compiled.cache_clear()
        return function

    return add
