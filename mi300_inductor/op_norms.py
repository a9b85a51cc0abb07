"""The RMSNorm operators as functions to call by hand; formulas and terms are in `ops.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from mi300_inductor.dtype_codes import code
from mi300_inductor.op_schemas import overload
from mi300_inductor.op_targets import (
    ROUND_NOT,
    DynamicTarget,
    Target,
    dynamic_settings,
    input_dtype,
    scale_list,
    static_settings,
)


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
) -> Tensor:
    """RMS-normalises over the last dimension.

    Args:
        x: [..., hidden], bf16, fp16 or fp32; any row stride.
        weight: [hidden], a float dtype; None means no weight.
        eps: Added to the mean square.
        weight_offset: Added to the weight; 1.0 for Gemma.
        norm_dtype: Dtype to which x * rstd is rounded before the weight; float32: not rounded (as
            `F.rms_norm`), the dtype of `x`: as Hugging Face's Llama.
        y_dtype: Dtype of the result; None means that of `x`.

    Returns:
        y, [..., hidden], contiguous.

    Raises:
        RuntimeError: for a weight of another length, other dtypes, or several devices.
    """
    norm = _norm("rms_norm", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    y: Tensor = overload("rms_norm")(x, *norm)
    return y


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
    *,
    sum_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Adds the residual, then RMS-normalises over the last dimension.

    Args:
        x: [..., hidden], as in `rms_norm`.
        residual: Same shape as `x`.
        weight: As in `rms_norm`; so are `eps`, `weight_offset`, `norm_dtype` and `y_dtype`.
        eps: Added to the mean square.
        weight_offset: Added to the weight.
        norm_dtype: Dtype to which the normalised value is rounded before the weight.
        y_dtype: Dtype of `y`; None means that of `x`.
        sum_dtype: Dtype to which the sum is rounded before it is normalised; None: that of `x`.
        residual_dtype: Dtype of `residual_out`; None means `sum_dtype`.

    Returns:
        (y, residual_out), both [..., hidden]; residual_out is x + residual.

    Raises:
        RuntimeError: as `rms_norm`, and if `residual` has another shape.
    """
    norm = _norm("add_rms_norm", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    y, total = overload("add_rms_norm")(*_sum(x, residual, sum_dtype, residual_dtype), *norm)
    return y, total


def rms_norm_quant(
    x: Tensor,
    weight: Tensor | None,
    scales: Tensor | Sequence[Tensor],
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
    **target: Unpack[Target],
) -> tuple[Tensor, Tensor | None]:
    """RMS-normalises and quantises to FP8 with static scales.

    Args:
        x: As in `rms_norm`; so are `weight`, `eps`, `weight_offset`, `norm_dtype` and `y_dtype`.
        weight: [hidden] or None.
        scales: One fp32 tensor of one element, or one to four of them.
        eps: Added to the mean square.
        weight_offset: Added to the weight.
        norm_dtype: Dtype to which the normalised value is rounded before the weight.
        y_dtype: Dtype of the value that is quantised; None means that of `x`.
        **target: See `Target`.

    Returns:
        (q, y): q has the shape of `x`, or [len(scales), ...] for several scales.

    Raises:
        RuntimeError: as `rms_norm`, and for a format or scale that is not supported.
    """
    norm = _norm("rms_norm_quant", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    settings = static_settings("rms_norm_quant", x, target)
    q, y = overload("rms_norm_quant")(x, *norm, scale_list("rms_norm_quant", scales), *settings)
    return q, y if settings[-1] else None


def add_rms_norm_quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scales: Tensor | Sequence[Tensor],
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
    *,
    sum_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    **target: Unpack[Target],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Adds the residual, RMS-normalises and quantises to FP8 with static scales.

    Args are those of `add_rms_norm` and `rms_norm_quant`.

    Returns:
        (q, residual_out, y).

    Raises:
        RuntimeError: as those two.
    """
    norm = _norm("add_rms_norm_quant", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    settings = static_settings("add_rms_norm_quant", x, target)
    added = _sum(x, residual, sum_dtype, residual_dtype)
    q, total, y = overload("add_rms_norm_quant")(
        *added, *norm, scale_list("add_rms_norm_quant", scales), *settings
    )
    return q, total, y if settings[-1] else None


def rms_norm_quant_dynamic(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
    **target: Unpack[DynamicTarget],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """RMS-normalises and quantises to FP8 with scales computed from the result.

    Args are those of `rms_norm`, and `DynamicTarget`.

    Returns:
        (q, scale, y): scale is fp32, [..., 1] per token, [..., groups] per group, [] per tensor.

    Raises:
        RuntimeError: as `rms_norm`, and if `group_size` does not divide hidden.
    """
    norm = _norm("rms_norm_quant_dynamic", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    settings = dynamic_settings("rms_norm_quant_dynamic", x, target)
    q, scale, y = overload("rms_norm_quant_dynamic")(x, *norm, *settings)
    return q, scale, y if settings[-1] else None


def add_rms_norm_quant_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
    norm_dtype: torch.dtype = ROUND_NOT,
    y_dtype: torch.dtype | None = None,
    *,
    sum_dtype: torch.dtype | None = None,
    residual_dtype: torch.dtype | None = None,
    **target: Unpack[DynamicTarget],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Adds the residual, RMS-normalises and quantises to FP8 with scales from the result.

    Args are those of `add_rms_norm`, and `DynamicTarget`.

    Returns:
        (q, scale, residual_out, y).

    Raises:
        RuntimeError: as `add_rms_norm`, and if `group_size` does not divide hidden.
    """
    norm = _norm("add_rms_norm_quant_dynamic", x, weight, eps, weight_offset, norm_dtype, y_dtype)
    settings = dynamic_settings("add_rms_norm_quant_dynamic", x, target)
    added = _sum(x, residual, sum_dtype, residual_dtype)
    q, scale, total, y = overload("add_rms_norm_quant_dynamic")(*added, *norm, *settings)
    return q, scale, total, y if settings[-1] else None


def _norm(
    op: str,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    norm_dtype: torch.dtype,
    y_dtype: torch.dtype | None,
) -> tuple[Any, ...]:
    """The operators' arguments from `weight` to `y_dtype`."""
    kind = input_dtype(op, x)
    return weight, eps, weight_offset, code(norm_dtype), code(y_dtype or kind)


def _sum(
    x: Tensor, residual: Tensor, sum_dtype: torch.dtype | None, residual_dtype: torch.dtype | None
) -> tuple[Any, ...]:
    sum_dtype = sum_dtype or x.dtype
    return x, residual, code(sum_dtype), code(residual_dtype or sum_dtype)
