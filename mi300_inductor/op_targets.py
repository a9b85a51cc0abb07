"""What quantisation produces, as keyword arguments of the functions in `ops.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from mi300_inductor.arch import CPU, detect
from mi300_inductor.dtype_codes import code
from mi300_inductor.op_checks import FP8_DTYPES
from mi300_inductor.shown import shown

ROUND_NOT = torch.float32


class Target(TypedDict, total=False):
    """What the quantised value becomes.

    Attributes:
        q_dtype: The FP8 format; by default the device's own: e4m3fnuz on gfx942, else e4m3fn.
        scaling: `div` (default), `mul` or `mul_reciprocal`; see `ops.py`.
        scaled_dtype: Dtype to which the scaled value is rounded; float32 (default) means not.
        clamp_min: Lower bound before the conversion; by default the format's smallest number.
        clamp_max: Upper bound; by default the format's largest number. Infinite: no clamp.
        return_y: Whether to return `y` as well; by default not, and `y` is None.
    """

    q_dtype: torch.dtype
    scaling: str
    scaled_dtype: torch.dtype
    clamp_min: float
    clamp_max: float
    return_y: bool


class DynamicTarget(Target, total=False):
    """The same with a scale computed from the value.

    Attributes:
        group_size: -1 (default) one scale per row, 0 one for the tensor, g > 0 one per g elements.
        scale_form: `amax_div` (default), `amax_mul`, `div_amax`, `reciprocal_mul`, each also with
            `_rounded` behind it; see `ops.py`.
        scale_const: The constant of that form; by default the format's largest number.
        amax_min: Lower bound of amax; 0 (default) means none.
        scale_min: Lower bound of the scale; by default 1e-12, so that a row of zeros gives zeros.
    """

    group_size: int
    scale_form: str
    scale_const: float
    amax_min: float
    scale_min: float


def scale_list(op: str, scales: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """The static scales as the operators take them.

    Raises:
        TypeError: for anything but tensors.
    """
    listed = [scales] if isinstance(scales, Tensor) else scales
    if not isinstance(listed, list | tuple) or not all(isinstance(s, Tensor) for s in listed):
        raise TypeError(
            f"{op}: the scales are no tensors; got {shown(scales)}, expected an fp32 tensor of one "
            "element, or a list of them. Make one with torch.tensor([scale])."
        )
    return list(listed)


def input_dtype(op: str, x: Tensor) -> torch.dtype:
    """The dtype of an operator's first input.

    Raises:
        TypeError: for anything but a tensor.
    """
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{op}: the input is no tensor; got {shown(x)}, expected a tensor of rows. Make one "
            "with torch.tensor."
        )
    return x.dtype


def static_settings(op: str, x: Tensor, given: Target) -> tuple[Any, ...]:
    """The operator's arguments from `q_dtype` on; the last one is `return_y`.

    Raises:
        TypeError: for a keyword that is not in `Target`.
    """
    _check_names(op, given, Target)
    return _settings(x, given)


def _settings(x: Tensor, given: Target) -> tuple[Any, ...]:
    q_dtype = given.get("q_dtype")
    if q_dtype is None:
        q_dtype = ((not x.is_cpu and detect(x.device)) or CPU).fp8_dtype
    largest = torch.finfo(q_dtype).max if q_dtype in FP8_DTYPES else 0.0
    return (
        code(q_dtype),
        given.get("scaling", "div"),
        code(given.get("scaled_dtype", ROUND_NOT)),
        given.get("clamp_min", -largest),
        given.get("clamp_max", largest),
        given.get("return_y", False),
    )


def dynamic_settings(op: str, x: Tensor, given: DynamicTarget) -> tuple[Any, ...]:
    """The operator's arguments from `group_size` on; the last one is `return_y`.

    Raises:
        TypeError: for a keyword that is not in `DynamicTarget`.
    """
    _check_names(op, given, DynamicTarget)
    target = _settings(x, given)
    return (
        given.get("group_size", -1),
        given.get("scale_form", "amax_div"),
        given.get("scale_const", target[4]),
        given.get("amax_min", 0.0),
        given.get("scale_min", 1e-12),
        *target,
    )


def _check_names(op: str, given: Target, allowed: type) -> None:
    if not given:
        return
    names = allowed.__annotations__
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise TypeError(
            f"{op}: unknown argument; got {', '.join(unknown)}, expected one of "
            f"{', '.join(names)}. Check the spelling."
        )
