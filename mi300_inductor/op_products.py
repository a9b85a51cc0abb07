"""SiLU * mul and the decode matmul as functions to call by hand; formulas are in `ops.py`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack

from mi300_inductor.dtype_codes import code
from mi300_inductor.op_checks import FP8_DTYPES
from mi300_inductor.op_schemas import overload
from mi300_inductor.op_targets import (
    DynamicTarget,
    Target,
    dynamic_settings,
    input_dtype,
    scale_list,
    static_settings,
)
from mi300_inductor.shown import shown


def silu_mul(
    gate: Tensor,
    up: Tensor,
    sigmoid_dtype: torch.dtype | None = None,
    act_dtype: torch.dtype | None = None,
    y_dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes silu(gate) * up.

    For a packed projection pass its halves: `gate, up = gate_up.chunk(2, -1)`; the rows may lie
    apart in memory.

    Args:
        gate: [..., width], bf16, fp16 or fp32.
        up: Same shape.
        sigmoid_dtype: None: silu in one piece, as `F.silu`. A dtype: sigmoid(gate) is rounded to
            it and then multiplied, as in `gate * torch.sigmoid(gate)`.
        act_dtype: Dtype to which silu(gate) is rounded; None means that of `gate`, as eager does.
        y_dtype: Dtype of the result; None means that of `gate`.

    Returns:
        y, [..., width], contiguous.

    Raises:
        RuntimeError: if the shapes differ, for other dtypes, or several devices.
    """
    dtypes = _dtypes("silu_mul", gate, sigmoid_dtype, act_dtype, y_dtype)
    y: Tensor = overload("silu_mul")(gate, up, *dtypes)
    return y


def silu_mul_quant(
    gate: Tensor,
    up: Tensor,
    scales: Tensor | Sequence[Tensor],
    sigmoid_dtype: torch.dtype | None = None,
    act_dtype: torch.dtype | None = None,
    y_dtype: torch.dtype | None = None,
    **target: Unpack[Target],
) -> tuple[Tensor, Tensor | None]:
    """Computes silu(gate) * up and quantises it to FP8 with static scales.

    Args:
        gate: As in `silu_mul`; so are `up`, `sigmoid_dtype`, `act_dtype` and `y_dtype`.
        up: Same shape.
        scales: One fp32 tensor of one element, or one to four of them.
        sigmoid_dtype: Dtype to which sigmoid(gate) is rounded; None: silu in one piece.
        act_dtype: Dtype to which silu(gate) is rounded.
        y_dtype: Dtype of the value that is quantised.
        **target: See `Target`.

    Returns:
        (q, y): q has the shape of `gate`, or [len(scales), ...] for several scales.

    Raises:
        RuntimeError: as `silu_mul`, and for a format or scale that is not supported.
    """
    dtypes = _dtypes("silu_mul_quant", gate, sigmoid_dtype, act_dtype, y_dtype)
    settings = static_settings("silu_mul_quant", gate, target)
    q, y = overload("silu_mul_quant")(
        gate, up, *dtypes, scale_list("silu_mul_quant", scales), *settings
    )
    return q, y if settings[-1] else None


def silu_mul_quant_dynamic(
    gate: Tensor,
    up: Tensor,
    sigmoid_dtype: torch.dtype | None = None,
    act_dtype: torch.dtype | None = None,
    y_dtype: torch.dtype | None = None,
    **target: Unpack[DynamicTarget],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Computes silu(gate) * up and quantises it to FP8 with scales computed from the result.

    Args are those of `silu_mul`, and `DynamicTarget`.

    Returns:
        (q, scale, y): scale is fp32, [..., 1] per token, [..., groups] per group, [] per tensor.

    Raises:
        RuntimeError: as `silu_mul`, and if `group_size` does not divide the width.
    """
    dtypes = _dtypes("silu_mul_quant_dynamic", gate, sigmoid_dtype, act_dtype, y_dtype)
    settings = dynamic_settings("silu_mul_quant_dynamic", gate, target)
    q, scale, y = overload("silu_mul_quant_dynamic")(gate, up, *dtypes, *settings)
    return q, scale, y if settings[-1] else None


def _dtypes(
    op: str,
    gate: Tensor,
    sigmoid_dtype: torch.dtype | None,
    act_dtype: torch.dtype | None,
    y_dtype: torch.dtype | None,
) -> tuple[int | None, int, int]:
    kind = input_dtype(op, gate)
    sigmoid = None if sigmoid_dtype is None else code(sigmoid_dtype)
    return sigmoid, code(act_dtype or kind), code(y_dtype or kind)


def skinny_gemm(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiplies a few rows with a weight: scale_a * scale_b * (a @ weight.T) + bias + addend.

    Accumulated in fp32; the same inputs give the same bits on every run. The matrix unit of a CPU
    (AMX) takes subnormal bf16 values and subnormal sums as zero, as torch's own product does there.

    Args:
        a: [m, k], bf16, fp16, fp32 or FP8.
        weight: [n, k], as `nn.Linear` stores it; the dtype of `a`, or FP8 with FP8.
        scale_a: With FP8, and only then: fp32, one value or m.
        scale_b: With FP8, and only then: fp32, one value or n.
        bias: [n], added before the result is rounded; None means none.
        addend: [m, n] or [n], added after the result is rounded; None means none.
        out_dtype: Dtype of the result; None means that of `a`, bf16 with FP8.

    Returns:
        [m, n].

    Raises:
        RuntimeError: if shapes or dtypes do not fit, or scales are missing or too many.
    """
    if out_dtype is None:
        out_dtype = _usual_result("skinny_gemm", a)
    out: Tensor = overload("skinny_gemm")(a, weight, scale_a, scale_b, bias, addend, out_dtype)
    return out


def skinny_gemm_quant(
    a: Tensor,
    weight: Tensor,
    scale: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    y_dtype: torch.dtype | None = None,
    **target: Unpack[Target],
) -> Tensor:
    """Computes `skinny_gemm` and quantises its result to FP8 with a static scale.

    Args:
        a: As in `skinny_gemm`; so are the other operands.
        weight: [n, k].
        scale: Of the result: one fp32 value.
        scale_a: With FP8, and only then: fp32, one value or m.
        scale_b: With FP8, and only then: fp32, one value or n.
        bias: [n], or None.
        addend: [m, n] or [n], or None.
        y_dtype: Dtype to which the result is rounded before it is quantised; None means that of
            `a`, bf16 with FP8.
        **target: See `Target`; the unquantised result is not to be had (`return_y`).

    Returns:
        q, [m, n].

    Raises:
        RuntimeError: as `skinny_gemm`, and for a format or scale that is not supported.
    """
    op = "skinny_gemm_quant"
    usual = _usual_result(op, a)
    settings = static_settings(op, a, target)
    if settings[-1]:
        raise RuntimeError(
            f"{op}: the result is not written unquantised as well; got return_y=True, expected "
            "False. Call skinny_gemm and quantise its result."
        )
    operands = a, weight, scale_a, scale_b, bias, addend
    q: Tensor = overload(op)(*operands, code(y_dtype or usual), scale, *settings[:-1])
    return q


def skinny_gemm_list(
    a: Sequence[Tensor],
    weight: Sequence[Tensor],
    scale_a: Sequence[Tensor] | None = None,
    scale_b: Sequence[Tensor] | None = None,
    bias: Sequence[Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
) -> list[Tensor]:
    """Several `skinny_gemm`s in one call, and where a device can, in one launch.

    The same inputs give the same bits on every run; on a CPU they are those of the single calls.

    Args:
        a: Tensors of one shape and dtype, as `a` of `skinny_gemm`; so are the others.
        weight: One for each of `a`.
        scale_a: One for each of `a`, or None.
        scale_b: One for each of `a`, or None.
        bias: One for each of `a`, or None.
        out_dtype: Dtype of the results; None means that of `a`, bf16 with FP8.

    Returns:
        The results, in order.

    Raises:
        RuntimeError: as `skinny_gemm`, and if the lists differ in length.
    """
    if isinstance(a, Tensor):
        raise TypeError(
            f"skinny_gemm_list: the operands are no lists; got {shown(a)}, expected one tensor for "
            "each matmul. Put it into a list, or call skinny_gemm."
        )
    if not a:
        raise RuntimeError(
            "skinny_gemm_list: there is nothing to multiply; got no tensors, expected one or more. "
            "Leave the call out."
        )
    if out_dtype is None:
        out_dtype = _usual_result("skinny_gemm_list", a[0])
    out: list[Tensor] = overload("skinny_gemm_list")(a, weight, scale_a, scale_b, bias, out_dtype)
    return out


def _usual_result(op: str, a: Tensor) -> torch.dtype:
    """The dtype of a matmul's result where none is asked for."""
    kind = input_dtype(op, a)
    return torch.bfloat16 if kind in FP8_DTYPES else kind
