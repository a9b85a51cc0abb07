"""Each refusal says the first condition that failed, with the values, and what to change."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def norm(x, w, eps=1e-6):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return w * h.to(x.dtype)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def rstd_in_half(x, w, s):
    rstd = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (x * rstd.to(x.dtype))


def scale_per_column(x, w, s):
    return quant(norm(x, w), w.float().abs() + 0.1)


def scale_of_the_columns(x, w, s):
    y = norm(x, w)
    return quant(y, y.abs().amax(0, keepdim=True).float() / 448)


def rounded_to_both_halves(x, w, s):
    scaled = norm(x, w) / s.to(BF16)
    return scaled.float().to(torch.float16).to(E4M3FN)


def eps_from_a_tensor(x, w, s):
    return norm(x, w, s)


def mean_over_rows(x, w, s):
    return x.float() * torch.rsqrt(x.float().pow(2).mean(0, keepdim=True) + 1e-6) * w


def mean_over_two_dims(x, w, s):
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean((0, 1), keepdim=True) + 1e-6) * w


def squared_in_half(x, w, s):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def other_value_scaled(x, w, s):
    h = x.float()
    return (h + 1) * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def eps_times_alpha(x, w, s):
    h = x.float()
    return h * torch.rsqrt(torch.add(h.pow(2).mean(-1, keepdim=True), s, alpha=2)) * w


def weight_from_one(x, w, s):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h + h * w.float()).to(x.dtype)


def doubled(x, w, s):
    return quant(norm(x, w) * 2, s)


def scale_of_both_ends(x, w, s):
    y = norm(x, w)
    amax = torch.maximum(-y.amin(-1, keepdim=True), y.amax(-1, keepdim=True))
    return quant(y, amax.float() / 448)


def weight_with_gaps(x, w, s):
    return functional.linear(x, x.new_ones(ROWS, 2 * HIDDEN).cumsum(0)[:, ::2])


def eps_outside(x, w, s):
    h = x.float()
    return h / (h.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6) * w


def rstd_used_elsewhere(x, w, s):
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (h * rstd).to(x.dtype), rstd * 2


def rstd_returned(x, w, s):
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * (h * rstd).to(x.dtype), rstd


def scale_per_row(x, w, s):
    y = norm(x, w)
    return quant(y, y.float().std(-1, keepdim=True) + 1)


def rounded_before_the_cast(x, w, s):
    return (norm(x, w).float() / s).to(BF16).to(E4M3FN)


def bound_from_a_tensor(x, w, s):
    y = norm(x, w).float() / s
    return torch.minimum(y.clamp(min=-448), s * 448).to(E4M3FN)


def divided_in_half(x, w, s):
    return (norm(x, w) / s[0]).clamp(-448, 448).to(E4M3FN)


def scale_of_another_value(x, w, s):
    return quant(norm(x, w), x.abs().amax(-1, keepdim=True).float() / 448)


def scale_before_rounding(x, w, s):
    y = functional.rms_norm(x.float(), (HIDDEN,), w.float(), 1e-6)
    return quant(y.to(BF16), y.abs().amax(-1, keepdim=True) / 448)


def unsupported_format(x, w, s):
    return (norm(x, w).float() / s).to(torch.float8_e5m2fnuz)


def quantised_input(x, w, s):
    return quant(x, s)


def scale_rounded_to_half(x, w, s):
    y = norm(x.float(), w.float())
    return quant(y, y.abs().amax(-1, keepdim=True).to(BF16) / 448)


def reciprocal_rounded_to_half(x, w, s):
    y = norm(x, w)
    inverse = y.abs().amax(-1, keepdim=True).reciprocal()
    return (y.float() * (inverse.float() * 448)).clamp(-448, 448).to(E4M3FN)


def silu_in_half(x, w, s):
    return x / (1 + torch.exp(-x)) * (x + 1)


def silu_of_column(x, w, s):
    return functional.silu(x) * x[:, :1]


def weight_as_k_by_n(x, w, s):
    return x @ x.new_ones(HIDDEN, 16).cumsum(0)


def norm_in_double(x, w, s):
    h = x.double()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w).float()


def gate_in_double(x, w, s):
    return (functional.silu(x.double()) * x).float()


def quantised_double(x, w, s):
    return (norm(x, w).double() / s.double()).to(E4M3FN)


def two_computed_scales(x, w, s):
    y = norm(x, w)
    g = y.view(ROWS, 2, -1)
    rows, groups = (v.abs().amax(-1, keepdim=True).float() / 448 for v in (y, g))
    return quant(y, rows), quant(g, groups)


def rounded_to_two_dtypes(x, w, s):
    y = functional.rms_norm(x.float(), (HIDDEN,), w.float(), 1e-6)
    return quant(y.to(BF16).to(torch.float16), s)


def bias_of_full_size(x, w, s):
    return torch.addmm(x[:, :16], x, x.new_ones(16, HIDDEN).t())


def scale_from_the_stored_sum(x, w, s):
    h = x + x.flip(0)
    return quant(norm(h, w), h.abs().amax().float() / 448), h


CASES = [
    (rstd_in_half, "rms_norm: the norm is not in float32 throughout: rsqrt (rsqrt) is rounded to"
     " torch.bfloat16", "Keep the reciprocal root in float32"),
    (scale_per_column, "rms_norm_quant: the value is scaled by an addition (add_1) of shape [64],"
     " expected one value for the tensor, for each row or for each group of a row", "amax(-1"),
    (scale_of_the_columns, "rms_norm_quant: the value is scaled by a division (div) of shape"
     " [1, 64], expected one value for the tensor, for each row or for each group of a row",
     "amax(-1"),
    (rounded_to_both_halves, "rms_norm_quant: the scaled value is rounded to several dtypes before"
     " it is converted to FP8", "Convert to FP8 directly"),
    (eps_from_a_tensor, "rms_norm: eps is not a constant: it is a graph input (arg1_1)",
     "Keep eps as a Python number"),
    (eps_times_alpha, "rms_norm: eps is added with alpha=2, expected a plain sum of the mean and a"
     " number", "Write mean(x.float()**2"),
    (weight_from_one, "rms_norm: mul, x * rstd, is multiplied by the weight and added to the"
     " product", "Write it as h * (1 + weight)"),
    (doubled, "rms_norm_quant: the result of the norm or activation is multiplied or divided by the"
     " number 2 before it is scaled", "Fold this factor into the scale"),
    (scale_of_both_ends, "rms_norm_quant: the scale div has one value per row but does not follow"
     " from the largest absolute value of that row in a known way: it is the maximum of amax and"
     " -amin, expected abs().amax", "amax(-1"),
    (weight_with_gaps, "skinny_gemm: the weight is not dense: its second operand [64, 12] has"
     " stride 2 along k, expected 1", "weight.contiguous()"),
    (mean_over_rows, "rms_norm: the mean of squares is over dimensions [0] of 2, expected the last"
     " one alone", "x.movedim(dim, -1)"),
    (mean_over_two_dims, "rms_norm: the mean of squares is over dimensions [0, 1] of 2, expected"
     " the last one alone", "or flatten several"),
    (squared_in_half, "rms_norm: the norm is not in float32 throughout: a multiplication (pow_1)"
     " is rounded to torch.bfloat16", ".float()"),
    (other_value_scaled, "rms_norm: x is not the same value in both places where the formula reads"
     " it: an addition (add) and a graph input (arg0_1)", "x.float()"),
    (eps_outside, "rms_norm: eps is added outside the square root", "inside"),
    (rstd_used_elsewhere, "rms_norm: rsqrt, a value inside the fusion, is also used by mul_2",
     "use the result or the input"),
    (rstd_returned, "rms_norm: rsqrt, a value inside the fusion, is a result of the graph",
     "Do not return"),
    (scale_per_row, "rms_norm_quant: the scale add_1 has one value per row but does not follow from"
     " the largest absolute value of that row in a known way: expected a division or a lower bound"
     " or a multiplication here, found an addition (add_1)", "amax"),
    (scale_of_another_value, "rms_norm_quant: the scale div has one value per row but does not"
     " follow from the largest absolute value of that row in a known way: it is that of a graph"
     " input (arg0_1), and a multiplication (mul_1) is quantised", "that is quantised"),
    (scale_before_rounding, "rms_norm_quant: the scale div has one value per row but does not"
     " follow from the largest absolute value of that row in a known way: it is that of the value"
     " rounded to torch.float32, and the value rounded to torch.bfloat16 is quantised",
     "that is quantised"),
    (rounded_before_the_cast, "rms_norm_quant: the scaled value is rounded again, to"
     " torch.bfloat16, before it is converted to FP8", "Convert to FP8 directly"),
    (bound_from_a_tensor, "rms_norm_quant: clamp_max is a multiplication (mul_2), expected a number"
     " that is known while compiling", "clamp(-max"),
    (divided_in_half, "rms_norm_quant: what a float32 scale divides or multiplies is rounded"
     " to torch.bfloat16", "Scale in float32"),
    (unsupported_format, "rms_norm_quant: torch.float8_e5m2fnuz is not supported, expected one of"
     " torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2", "Use one"),
    (norm_in_double, "rms_norm: the input of the norm is torch.float64, expected float32, bfloat16"
     " or float16", "Normalise in one of these"),
    (gate_in_double, "silu_mul: gate is torch.float64, expected float32, bfloat16 or float16",
     "Activate in one of these"),
    (quantised_double, "quant: the quantised value is torch.float64, expected float32, bfloat16 or"
     " float16", "Quantise a float tensor"),
    (two_computed_scales, "rms_norm_quant: the value is quantised in several ways with computed"
     " scales; a fusion computes one", "Quantise the value once"),
    (rounded_to_two_dtypes, "rms_norm_quant: the value is rounded twice before it is quantised, to"
     " different dtypes", "Cast once"),
    (bias_of_full_size, "skinny_gemm: the bias has shape [12, 16], expected one value per column",
     "after the matmul"),
    (scale_from_the_stored_sum, "add_rms_norm_quant: an input of the fusion is computed from add,"
     " one of its results", "from something else"),
    (quantised_input, "quant: the quantised value is not the result of an RMSNorm or of SiLU*mul,"
     " so there is no kernel to merge it into", "Nothing to change"),
    (scale_rounded_to_half, "rms_norm_quant: the scale is rounded to torch.bfloat16, and the value"
     " that it follows from is torch.float32", "Compute the scale in float32"),
    (reciprocal_rounded_to_half, "rms_norm_quant: of the reciprocal of amax and the scale only one"
     " is rounded to torch.bfloat16", "Convert amax with .float()"),
    (silu_in_half, "silu_mul: exp (exp) is rounded to torch.bfloat16 inside the SiLU",
     "torch.nn.functional.silu"),
    (silu_of_column, "silu_mul: an operand of a multiplication (mul) has shape [12, 1], expected"
     " one value per element", "one shape"),
    (weight_as_k_by_n, "skinny_gemm: the weight is stored as [k, n]: its second operand [64, 16]"
     " has stride 16 along k, expected 1", "Store the weight as [n, k]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "reason", "hint"), CASES, ids=lambda v: getattr(v, "__name__", "")
)
def test_the_reason_and_the_hint_are_given(model, reason, hint):
    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    found = [re.sub(r" \(tests/patterns/\w+\.py:\d+: .+\)$", "", text) for text in made.reasons]
    assert reason in found
    rejection = made.rejected[found.index(reason)]
    assert hint in rejection.hint
    assert "test_rejections.py:" in rejection.source
    check_same(made.got, made.want)
