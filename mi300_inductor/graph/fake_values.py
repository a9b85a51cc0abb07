"""Fake tensors of calls that are made again and again: one run of a fake kernel serves all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from mi300_inductor.inductor import outside_fake_mode


def layout_of(value: Any) -> Any:
    """Equal for arguments that give results of equal layout; None where a size is a symbol."""
    if isinstance(value, Tensor):
        layout = (*value.shape, *value.stride())
        if not all(isinstance(size, int) for size in layout):
            return None
        return (Tensor, value.dim(), layout, value.dtype, value.device)
    if isinstance(value, tuple | list):
        parts = tuple(layout_of(item) if item is not None else () for item in value)
        return None if None in parts else parts
    return value


def another(value: Any) -> Any:
    """A new value with the layout of a fake one: fake tensors that share no memory with it."""
    with outside_fake_mode():  # past the dispatch of a fake mode, which takes most of the time
        return _another(value)


def _another(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        empty = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=torch.device("meta")
        )
        return FakeTensor(value.fake_mode, empty, value.device)
    return type(value)(_another(item) for item in value)
