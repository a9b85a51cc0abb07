"""The bounds of "the same result", for `check_numerics`: what an operator may differ from eager.

Each check takes the operator's value and the original nodes' value on the same inputs and raises
`NumericsError` with the worst element. A residual is bit-equal; halves differ by an ulp for each
rounding behind the reduction, and rarely; FP8 codes by one code, and rarely; a matmul is held to a
float64 reference. NaN must meet NaN, infinities must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mi300_inductor.op_checks import FP8_DTYPES

# fp32 results differ by the order of the sum and by exp's last bits.
FP32_TOLERANCE = 1e-5
# Part of the elements of a half or FP8 result that may differ at all.
RARE = 1e-3
FLIPS = 1
COLUMNS = 1024


class NumericsError(RuntimeError):
    """A fused operator differs from the original nodes by more than the contract allows."""


def count_roundings(settings: Mapping[str, Any]) -> int:
    """How often the operator rounds to a half dtype behind its reduction or its exp."""
    names = ("norm_dtype", "sigmoid_dtype", "act_dtype", "y_dtype")
    halves = (torch.bfloat16, torch.float16)
    return max(1, sum(settings.get(name) in halves for name in names))


def check_equal(where: str, got: Tensor, want: Tensor) -> None:
    """Bit-equality, for the residual."""
    _check_special(where, got, want)
    _raise_worst(where, got, want, (got != want) & ~want.isnan(), "bit-equal values")


def check_close(where: str, got: Tensor, want: Tensor, roundings: int) -> None:
    """Halves: `roundings` ulp, 99.9 % equal. fp32: `FP32_TOLERANCE`, or an ulp of what was lost."""
    _check_special(where, got, want)
    if want.dtype == torch.float32:
        bound = want.abs() * FP32_TOLERANCE + torch.finfo(torch.float32).tiny
        wrong = _differs(got, want) & ((got - want).abs() > bound)
        _raise_worst(where, got, want, wrong, f"a relative difference of {FP32_TOLERANCE}")
        return
    distance = (_ordered(got) - _ordered(want)).abs().where(want.isfinite(), 0)
    _raise_worst(where, got, want, distance > roundings, f"a difference of {roundings} ulp")
    _check_rare(where, got, want, distance > 0)


def check_codes(where: str, got: Tensor, want: Tensor, same_scale: Tensor | None = None) -> None:
    """FP8 codes: one code apart, in at most max(1, n / 1000) elements.

    Args:
        where: Operator and output, for the message.
        got: The operator's codes, [..., hidden].
        want: The original nodes' codes.
        same_scale: For scales computed from the value, whether each group's scale is bit-equal,
            [groups]; in the other groups any number of codes may differ by one.
    """
    _check_special(where, got, want)
    distance = (_ordered(got) - _ordered(want)).abs().where(~want.float().isnan(), 0)
    _raise_worst(where, got, want, distance > FLIPS, f"a difference of {FLIPS} code")
    if same_scale is not None and same_scale.numel():
        distance = distance.reshape(same_scale.numel(), -1) * same_scale.reshape(-1, 1)
        distance = distance.reshape(got.shape)
    _check_rare(where, got, want, distance > 0)


def check_scale(where: str, got: Tensor, want: Tensor, roundings: int, dtype: torch.dtype) -> None:
    """A computed scale: as far apart as the largest value of its group may be."""
    _check_special(where, got, want)
    bound = max(FP32_TOLERANCE, roundings * torch.finfo(dtype).eps)
    smallest = torch.finfo(dtype).smallest_normal * bound  # steps are absolute below it
    wrong = _differs(got, want) & ((got - want).abs() > want.abs() * bound + smallest)
    _raise_worst(where, got, want, wrong, f"a relative difference of {bound:.2g}")


def check_matmul(where: str, got: Tensor, want: Tensor, arguments: Mapping[str, Any]) -> None:
    """A matmul against float64: an ulp of the result per rounding, plus fp32's accumulation error.

    Args:
        where: Operator and output, for the message.
        got: The operator's result, [m, n] in any shape.
        want: The original nodes' result; says only where NaN and infinities must be.
        arguments: The operator's arguments by name.
    """
    _check_special(where, got, want)
    a, weight = arguments["a"].double(), arguments["weight"]
    rows, columns = a.shape[0], weight.shape[0]
    got = got.reshape(rows, columns)
    eps = torch.finfo(got.dtype).eps
    # Errors of a sum of k terms in fp32 grow like the square root of k; 4 is room for bad luck.
    accumulated = 4 * max(1.0, a.shape[1]) ** 0.5 * 2.0**-24
    for start in range(0, columns, COLUMNS):
        part = slice(start, start + COLUMNS)
        exact, size, rounded = _reference(a, weight, part, arguments)
        bound = rounded * eps + size * accumulated + torch.finfo(got.dtype).tiny
        wrong = exact.isfinite() & got[:, part].isfinite()
        wrong &= (got[:, part].double() - exact).abs() > bound
        limit = (
            f"an error of {eps:.2g} of what is rounded and {accumulated:.2g} of the sum of sizes"
        )
        _raise_worst(f"{where}[:, {start}:]", got[:, part], exact, wrong, limit)


def _reference(
    a: Tensor, weight: Tensor, part: slice, arguments: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Some columns of the result in float64, and of the sum of the absolute values of its terms.

    The last is the sum of the absolute values that are rounded to the result's dtype: the result,
    and with an addend the product, which may be far larger than what remains of it.
    """
    columns = weight.shape[0]
    b = weight[part].double()
    exact, size = a @ b.T, a.abs() @ b.abs().T
    for name, length, shape in (("scale_a", a.shape[0], (-1, 1)), ("scale_b", columns, (1, -1))):
        if arguments[name] is not None:
            # One value for all may have as many dimensions as one per row or column.
            scale = arguments[name].double().reshape(-1).expand(length)
            scale = scale.reshape(shape) if name == "scale_a" else scale[part].reshape(shape)
            exact, size = exact * scale, size * scale.abs()
    rounded = torch.zeros_like(exact)
    for name in ("bias", "addend"):
        if arguments[name] is not None:
            rounded = exact.abs() if name == "addend" else rounded
            term = arguments[name].double()[..., part]
            exact, size = exact + term, size + term.abs()
    return exact, size, rounded + exact.abs()


def _ordered(values: Tensor) -> Tensor:
    """Integers in the order of the values, neighbours one apart; both zeros are 0."""
    width = values.element_size() * 8
    bits = values.contiguous().view(torch.int8 if width == 8 else torch.int16).int()
    magnitude = bits & ((1 << (width - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def _differs(got: Tensor, want: Tensor) -> Tensor:
    return (got != want) & ~want.isnan() & ~want.isinf()


def _check_special(where: str, got: Tensor, want: Tensor) -> None:
    if got.shape != want.shape or got.dtype != want.dtype:
        raise NumericsError(
            f"check_numerics: {where} has another form; got {tuple(got.shape)} {got.dtype}, "
            f"expected {tuple(want.shape)} {want.dtype}. Please report the model."
        )
    first, second = (t.float() if t.dtype in FP8_DTYPES else t for t in (got, want))
    wrong = (first.isnan() != second.isnan()) | (second.isinf() & (first != second))
    _raise_worst(where, got, want, wrong, "NaN and infinities where eager has them")


def _check_rare(where: str, got: Tensor, want: Tensor, wrong: Tensor) -> None:
    allowed = max(1, int(wrong.numel() * RARE))
    if int(wrong.sum()) > allowed:
        limit = f"at most {allowed} of {wrong.numel()} elements that differ, not {int(wrong.sum())}"
        _raise_worst(where, got, want, wrong, limit)


def _raise_worst(where: str, got: Tensor, want: Tensor, wrong: Tensor, limit: str) -> None:
    if not bool(wrong.any()):
        return
    error = (got.double() - want.double()).abs().nan_to_num(torch.inf).where(wrong, -1.0)
    flat = int(error.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), error.shape))
    place = f"[{', '.join(map(str, index))}]"
    raise NumericsError(
        f"check_numerics: {where} differs from the original nodes; got {float(got[index])} at "
        f"{place} where they give {float(want[index])}, expected {limit}. Please report the model; "
        f"options={{'disable': [kind]}} leaves the kind to Inductor."
    )
