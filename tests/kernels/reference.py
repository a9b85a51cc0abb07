"""The operators' formulas in plain PyTorch, as the tests' independent reference.

Written from the docstring of `mi300_inductor.ops`, with none of its code. Every function takes the
operator's arguments and returns its outputs in order. Arithmetic is fp32 as eager does it, or, with
`work=torch.float64`, double between the stated rounding points, for error bounds. Casts to FP8 are
PyTorch's own on the device of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _norm(
    h: Tensor,
    weight: Tensor | None,
    eps: float,
    weight_offset: float,
    norm_dtype: torch.dtype,
    y_dtype: torch.dtype,
    work: torch.dtype,
) -> Tensor:
    h = h.to(work)
    mean = (h * h).mean(-1, keepdim=True)
    normed = (h * (1.0 / torch.sqrt(mean + eps))).to(norm_dtype).to(work)
    if weight is not None:
        normed = normed * (weight.to(work) + weight_offset)
    return normed.to(y_dtype)


def _sum(
    x: Tensor, residual: Tensor, sum_dtype: torch.dtype, residual_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    h = (x.float() + residual.float()).to(sum_dtype)
    return h, h.to(residual_dtype)


def codes(
    y: Tensor,
    scale: Tensor,
    q_dtype: torch.dtype,
    scaling: str,
    scaled_dtype: torch.dtype,
    clamp_min: float,
    clamp_max: float,
) -> Tensor:
    """The static formula for one scale."""
    value, scale = y.float(), scale.to(scaled_dtype).float()
    if scaling == "div":
        value = value / scale
    elif scaling == "mul":
        value = value * scale
    elif scaling == "mul_reciprocal":
        value = value * (1.0 / scale)
    else:
        raise ValueError(scaling)
    value = value.to(scaled_dtype).float()
    return value.clamp(clamp_min, clamp_max).to(q_dtype)


def _quant(
    y: Tensor,
    scales: Sequence[Tensor],
    q_dtype: torch.dtype,
    scaling: str,
    scaled_dtype: torch.dtype,
    clamp_min: float,
    clamp_max: float,
    return_y: bool,
) -> tuple[Tensor, Tensor]:
    rest = (q_dtype, scaling, scaled_dtype, clamp_min, clamp_max)
    each = [codes(y, scale.reshape(()), *rest) for scale in scales]
    q = each[0] if len(each) == 1 else torch.stack([c.view(torch.uint8) for c in each])
    return q.view(q_dtype), y if return_y else y.new_empty(0)


def _quant_dynamic(
    y: Tensor,
    group_size: int,
    scale_form: str,
    scale_const: float,
    amax_min: float,
    scale_min: float,
    q_dtype: torch.dtype,
    scaling: str,
    scaled_dtype: torch.dtype,
    clamp_min: float,
    clamp_max: float,
    return_y: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    hidden = y.shape[-1]
    size = hidden if group_size == -1 else group_size
    groups = y.reshape(1, -1) if size == 0 else y.reshape(*y.shape[:-1], -1, size)
    amax = groups.float().abs().amax(-1, keepdim=True)
    if amax_min != 0.0:
        amax = amax.clamp_min(torch.tensor(amax_min, dtype=torch.float32).item())
    const = torch.tensor(scale_const, dtype=torch.float32, device=y.device)
    form, rounded, _ = scale_form.partition("_rounded")

    def to_y(value: Tensor) -> Tensor:
        return value.to(y.dtype).float() if rounded else value

    scale = {
        "amax_div": lambda: to_y(amax / const),
        "amax_mul": lambda: to_y(amax * const),
        "div_amax": lambda: to_y(torch.div(const, amax)),
        "reciprocal_mul": lambda: to_y(to_y(amax.reciprocal()) * const),
    }[form]()
    if scale_min != 0.0:
        scale = scale.clamp_min(torch.tensor(scale_min, dtype=torch.float32).item())
    q = codes(groups, scale, q_dtype, scaling, scaled_dtype, clamp_min, clamp_max)
    scale = scale.reshape(()) if size == 0 else scale.squeeze(-1)
    return q.reshape(y.shape), scale, y if return_y else y.new_empty(0)


def rms_norm(x: Tensor, *norm: object, work: torch.dtype = torch.float32) -> Tensor:
    """Arguments: x, weight, eps, weight_offset, norm_dtype, y_dtype."""
    return _norm(x, *norm, work)  # type: ignore[arg-type]


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    sum_dtype: torch.dtype,
    residual_dtype: torch.dtype,
    *norm: object,
    work: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Arguments: x, residual, sum_dtype, residual_dtype, then those of a norm."""
    h, residual_out = _sum(x, residual, sum_dtype, residual_dtype)
    return _norm(h, *norm, work), residual_out  # type: ignore[arg-type]


def rms_norm_quant(x: Tensor, *args: object, work: torch.dtype = torch.float32) -> tuple:
    """Arguments: those of `rms_norm`, then scales and the target."""
    return _quant(rms_norm(x, *args[:5], work=work), *args[5:])  # type: ignore[arg-type]


def add_rms_norm_quant(
    x: Tensor, residual: Tensor, *args: object, work: torch.dtype = torch.float32
) -> tuple:
    """Arguments: those of `add_rms_norm`, then scales and the target."""
    y, residual_out = add_rms_norm(x, residual, *args[:7], work=work)  # type: ignore[arg-type]
    q, y = _quant(y, *args[7:])  # type: ignore[arg-type]
    return q, residual_out, y


def rms_norm_quant_dynamic(x: Tensor, *args: object, work: torch.dtype = torch.float32) -> tuple:
    """Arguments: those of `rms_norm`, then the scale rule and the target."""
    return _quant_dynamic(rms_norm(x, *args[:5], work=work), *args[5:])  # type: ignore[arg-type]


def add_rms_norm_quant_dynamic(
    x: Tensor, residual: Tensor, *args: object, work: torch.dtype = torch.float32
) -> tuple:
    """Arguments: those of `add_rms_norm`, then the scale rule and the target."""
    y, residual_out = add_rms_norm(x, residual, *args[:7], work=work)  # type: ignore[arg-type]
    q, scale, y = _quant_dynamic(y, *args[7:])  # type: ignore[arg-type]
    return q, scale, residual_out, y


def silu_mul(
    gate: Tensor,
    up: Tensor,
    sigmoid_dtype: torch.dtype | None,
    act_dtype: torch.dtype,
    y_dtype: torch.dtype,
    work: torch.dtype = torch.float32,
) -> Tensor:
    """The activation, rounded where the operator rounds."""
    g = gate.to(work)
    if sigmoid_dtype is None:
        act = g / (1.0 + torch.exp(-g))
    else:
        act = g * (1.0 / (1.0 + torch.exp(-g))).to(sigmoid_dtype).to(work)
    return (act.to(act_dtype).to(work) * up.to(work)).to(y_dtype)


def silu_mul_quant(
    gate: Tensor, up: Tensor, *args: object, work: torch.dtype = torch.float32
) -> tuple:
    """Arguments: those of `silu_mul`, then scales and the target."""
    return _quant(silu_mul(gate, up, *args[:3], work=work), *args[3:])  # type: ignore[arg-type]


def silu_mul_quant_dynamic(
    gate: Tensor, up: Tensor, *args: object, work: torch.dtype = torch.float32
) -> tuple:
    """Arguments: those of `silu_mul`, then the scale rule and the target."""
    y = silu_mul(gate, up, *args[:3], work=work)  # type: ignore[arg-type]
    return _quant_dynamic(y, *args[3:])  # type: ignore[arg-type]


def skinny_gemm(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    out_dtype: torch.dtype,
    work: torch.dtype = torch.float64,
) -> Tensor:
    """The matmul, accumulated in `work`, rounded to `out_dtype` once, and again after an addend."""
    out = a.to(work) @ weight.to(work).T
    if scale_a is not None and scale_b is not None:
        scale = scale_a.float().reshape(-1, 1) * scale_b.float().reshape(1, -1)
        out = out * scale.to(work)
    if bias is not None:
        out = out + bias.to(work)
    out = out.to(out_dtype)
    return out if addend is None else (out.to(work) + addend.to(work)).to(out_dtype)


OPS: dict[str, Callable[..., object]] = {
    op.__name__: op
    for op in (
        rms_norm,
        add_rms_norm,
        rms_norm_quant,
        add_rms_norm_quant,
        rms_norm_quant_dynamic,
        add_rms_norm_quant_dynamic,
        silu_mul,
        silu_mul_quant,
        silu_mul_quant_dynamic,
        skinny_gemm,
    )
}
