"""Inputs on which a spelling is compared with the built-in ones: tame, large, tiny and special."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mi300_inductor.graph.term import FP8_DTYPES

# Of one tensor, the others being tame: subnormal numbers to almost the largest of fp32 and
# bfloat16, with the range of float16 and that of FP8 between.
_SIZES = (1e-40, 1e-30, 1e-12, 1e-6, 1e-3, 0.1, 10.0, 100.0, 1e4, 6e4, 1e8, 1e16, 1e30)
# Of all tensors at once: no product of two overflows.
_COMMON_SIZES = (1e-12, 1e-5, 1e-2, 100.0, 1e4, 1e15)
_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0)
# By which every scalar parameter is multiplied.
_FACTORS = (1.0, 1e-12, 1e-5, 100.0)
# In place of the sizes of the examples.
_OTHER_SIZES = {5: 3, 48: 80, 112: 64}


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arguments of a spelling, and what is said of them in a message."""

    kind: str
    arguments: Mapping[str, Any]


def inputs_for(
    function: Callable[..., Any], example: Mapping[str, Tensor | None]
) -> Iterator[Inputs]:
    """Arguments for a function, tame ones first; the same in every process."""
    names = list(inspect.signature(function).parameters)
    generator = torch.Generator().manual_seed(0)
    scalars = {
        name: -3.0 if name == "clamp_min" else 0.25 * (index + 1)
        for index, name in enumerate(names)
        if example[name] is None
    }
    shapes = {name: value for name, value in example.items() if name in names and value is not None}
    tame = {name: _tame(value, {}, generator) for name, value in shapes.items()}
    for factor in _FACTORS if scalars else _FACTORS[:1]:
        numbers = {name: value * factor for name, value in scalars.items()}
        said = "".join(f" and {name} {value:.3g}" for name, value in numbers.items())
        yield Inputs(f"with tensors of about 1{said}", tame | numbers)
        for kind, tensors in _sized(shapes, tame):
            yield Inputs(f"with {kind}{said}", tensors | numbers)
    for kind, tensors in _with_special_values(shapes, tame, generator):
        yield Inputs(f"with {kind}", tensors | scalars)
    others = {name: _tame(value, _OTHER_SIZES, generator) for name, value in shapes.items()}
    yield Inputs("with tensors of other sizes", others | scalars)


def _sized(
    shapes: Mapping[str, Tensor], tame: Mapping[str, Tensor]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    wide = [name for name, value in shapes.items() if value.dtype not in FP8_DTYPES]
    for name in wide:
        for size in _SIZES:
            yield f"{name} of about {size:g}", {**tame, name: tame[name] * size}
    for size in _COMMON_SIZES:
        scaled = {name: value * size if name in wide else value for name, value in tame.items()}
        yield f"tensors of about {size:g}", scaled


def _with_special_values(
    shapes: Mapping[str, Tensor], tame: Mapping[str, Tensor], generator: torch.Generator
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Special values throughout the first row, and here and there in the others."""
    for name, value in tame.items():
        for special in _SPECIAL:
            chosen = torch.rand(value.shape, generator=generator, device="cpu") < 0.01
            chosen.view(-1)[: value.shape[-1] if value.dim() == 2 else 1] = True
            filled = torch.where(chosen.to(value.device), special, value.float()).to(value.dtype)
            yield f"{special} in {name}", {**tame, name: _laid_out(filled, shapes[name])}


def _tame(example: Tensor, sizes: Mapping[int, int], generator: torch.Generator) -> Tensor:
    """Numbers of about 1 with either sign, shaped and laid out as an example."""
    shape = [sizes.get(size, size) for size in example.shape]
    random = torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") + 0.5
    signs = torch.rand(shape, generator=generator, device="cpu") < 0.5
    values = torch.where(signs, random, -random)
    return _laid_out(values.to(example.device, example.dtype), example)


def _laid_out(value: Tensor, example: Tensor) -> Tensor:
    if example.dim() == 2 and not example.is_contiguous():
        return value.t().contiguous().t()
    return value.contiguous()
