"""What the fake implementations check, and those of the matmuls.

A fake refuses what the kernel refuses. Those of the matmuls do it in the same words, with C++'s
names of dtypes (`csrc/include/mi300/gemm_operands.h`), so that a call fails alike in eager and
compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mi300_inductor.dtype_codes import dtype_of

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)

_CPP_NAMES = {
    **{torch.float64: "Double", torch.float32: "Float", torch.float16: "Half"},
    **{torch.bfloat16: "BFloat16", torch.uint8: "Byte", torch.int8: "Char", torch.int16: "Short"},
    **{torch.int32: "Int", torch.int64: "Long", torch.complex64: "ComplexFloat"},
    torch.complex128: "ComplexDouble",
}


def require(ok: bool, message: str) -> None:
    """Raises a RuntimeError unless a condition holds."""
    if not ok:
        raise RuntimeError(message)


def cpp_name(dtype: torch.dtype) -> str:
    """A dtype as C++ prints it, for example `Float` or `Float8_e4m3fn`."""
    return _CPP_NAMES.get(dtype, str(dtype).removeprefix("torch.").capitalize())


def _check_scale(name: str, scale: Tensor | None, is_wanted: bool, length: int, a: Tensor) -> None:
    op, counts = "skinny_gemm", ("none", "one")
    require(
        (scale is not None) == is_wanted,
        f"{op}: {name} goes with FP8 operands and with no others; got "
        f"{counts[scale is not None]} for {cpp_name(a.dtype)}, expected {counts[is_wanted]}. "
        "Pass one scale per operand with FP8, none otherwise.",
    )
    if scale is None:
        return
    require(
        scale.dtype == torch.float32 and scale.numel() in (1, length),
        f"{op}: {name} has the wrong size or dtype; got {list(scale.shape)} "
        f"{cpp_name(scale.dtype)}, expected 1 or {length} Float values. "
        "Pass a per-tensor or a per-row/per-column scale.",
    )


def _check_operands(a: Tensor, weight: Tensor, out_dtype: torch.dtype) -> None:
    op = "skinny_gemm"
    require(
        a.dim() == 2 and weight.dim() == 2 and a.shape[1] == weight.shape[1],
        f"{op}: the operands do not fit; got a {list(a.shape)} and weight {list(weight.shape)}, "
        "expected [m, k] and [n, k]. Pass the weight as nn.Linear stores it.",
    )
    is_fp8 = a.dtype in FP8_DTYPES and weight.dtype in FP8_DTYPES
    require(
        is_fp8 or (a.dtype == weight.dtype and a.dtype in FLOATS),
        f"{op}: unsupported operand dtypes; got {cpp_name(a.dtype)} and {cpp_name(weight.dtype)}, "
        "expected two FP8 dtypes or the same float dtype. Convert one of them.",
    )
    require(
        out_dtype in FLOATS,
        f"{op}: unsupported out_dtype; got {cpp_name(out_dtype)}, expected float32, bfloat16 or "
        "float16. Choose one of these.",
    )


def fake_skinny_gemm(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """An empty result of `skinny_gemm`.

    Raises:
        RuntimeError: as the operator.
    """
    op = "skinny_gemm"
    _check_operands(a, weight, out_dtype)
    rows, columns = a.shape[0], weight.shape[0]
    is_fp8 = a.dtype in FP8_DTYPES
    _check_scale("scale_a", scale_a, is_fp8, rows, a)
    _check_scale("scale_b", scale_b, is_fp8, columns, a)
    if bias is not None:
        require(
            bias.dim() == 1 and bias.shape[0] == columns,
            f"{op}: the bias does not fit; got {list(bias.shape)}, expected [{columns}]. "
            "Pass one value per output column.",
        )
    if addend is not None:
        require(
            tuple(addend.shape) in ((rows, columns), (columns,)),
            f"{op}: the addend does not fit; got {list(addend.shape)}, expected "
            f"[{rows}, {columns}] or [{columns}]. Expand it first.",
        )
    for other in (bias, addend):
        require(
            other is None or other.dtype in FLOATS,
            f"{op}: unsupported scale, bias or addend; got "
            f"{cpp_name(other.dtype if other is not None else a.dtype)} on {a.device}, expected a "
            f"float dtype on {a.device}. Convert or move it.",
        )
    return a.new_empty((rows, columns), dtype=out_dtype)


def fake_skinny_gemm_quant(
    a: Tensor,
    weight: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    addend: Tensor | None,
    y_dtype: int,
    scale: Tensor,
    q_dtype: int,
    scaling: str,
    scaled_dtype: int,
    clamp_min: float,
    clamp_max: float,
) -> Tensor:
    """An empty result of `skinny_gemm_quant`.

    Raises:
        RuntimeError: as the operator.
    """
    op, y, q = "skinny_gemm_quant", dtype_of(y_dtype), dtype_of(q_dtype)
    result = fake_skinny_gemm(a, weight, scale_a, scale_b, bias, addend, y)
    require(
        q in FP8_DTYPES,
        f"{op}: unsupported q_dtype; got {cpp_name(q)}, expected Float8_e4m3fn, Float8_e4m3fnuz or "
        "Float8_e5m2. Choose one of these.",
    )
    require(
        scale.numel() == 1 and scale.dtype == torch.float32,
        f"{op}: the scale of the result is one fp32 value; got {list(scale.shape)} "
        f"{cpp_name(scale.dtype)}, expected [1] Float. Quantise rows apart with their own scales.",
    )
    return torch.empty_like(result, dtype=q)


def fake_skinny_gemm_list(
    a: Sequence[Tensor],
    weight: Sequence[Tensor],
    scale_a: Sequence[Tensor] | None,
    scale_b: Sequence[Tensor] | None,
    bias: Sequence[Tensor] | None,
    out_dtype: torch.dtype,
) -> list[Tensor]:
    """Empty results of `skinny_gemm_list`.

    Raises:
        RuntimeError: as the operator.
    """
    count = len(a)
    lists = {"weight": weight, "scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    for name, values in lists.items():
        require(
            values is None or len(values) == count,
            f"skinny_gemm_list: {name} has another length than a; got {len(values or ())}, "
            f"expected {count}. Pass one for each matmul.",
        )

    def entry(values: Sequence[Tensor] | None, index: int) -> Tensor | None:
        return None if values is None else values[index]

    results = []
    for i in range(count):
        scales = entry(scale_a, i), entry(scale_b, i)
        results.append(fake_skinny_gemm(a[i], weight[i], *scales, entry(bias, i), None, out_dtype))
    return results
