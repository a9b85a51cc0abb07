"""Every spelling of a dynamic quantisation behind a norm fuses with it, and equals eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import (
    BF16,
    E4M3FN,
    F16,
    F32,
    LARGEST,
    check_quantised,
    check_same,
    fresh,
    run,
)
from .test_quantize import norm

ROWS, HIDDEN = 24, 256
PAIRS = [*((BF16, q) for q in LARGEST), *((F16, q) for q in LARGEST), (F32, E4M3FN)]


def per_token(y, q, top):
    s = y.abs().amax(-1, keepdim=True).float() / top
    return (y.float() / s).clamp(-top, top).to(q), s


def per_token_by_max(y, q, top):
    s = (y.abs().max(-1, keepdim=True)[0].float() / top).clamp(min=1e-12)
    return (y.float() / s).clamp(-top, top).to(q), s


def per_token_max_without_keepdim(y, q, top):
    s = y.abs().max(dim=-1).values.unsqueeze(-1).to(torch.float32) / top
    return (y / s).to(q), s


def per_token_by_vector_norm(y, q, top):
    s = torch.linalg.vector_norm(y, float("inf"), dim=-1, keepdim=True).float() / top
    return (y.float() / s).clamp(-top, top).to(q), s


def per_token_amax_of_fp32(y, q, top):
    f = y.float()
    s = f.abs().amax(dim=-1, keepdim=True).clamp(min=1e-5) / top
    return (f * (1.0 / s)).clamp(-top, top).to(q), s


def per_token_times_constant(y, q, top):
    s = y.float().abs().amax(-1, keepdim=True) * (1.0 / top)
    return (y.float() / s).clamp(-top, top).to(q), s


def per_token_reciprocal(y, q, top):
    s = top / y.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    return (y.float() * s).clamp(-top, top).to(q), s


def per_token_reciprocal_returned(y, q, top):
    s = top / y.abs().amax(-1, keepdim=True).float().clamp(min=1e-12)
    return (y.float() * s).clamp(-top, top).to(q), s.reciprocal()


def per_token_scale_squeezed(y, q, top):
    s = y.abs().amax(-1).float() / top
    return (y.float() / s[:, None]).clamp(-top, top).to(q), s


def per_token_max_of_negated(y, q, top):
    s = torch.maximum(y.amax(-1, keepdim=True), -y.amin(-1, keepdim=True)).float() / top
    return (y.float() / s).clamp(-top, top).to(q), s


def per_group_of_128(y, q, top):
    g = y.view(y.shape[0], -1, 128)
    s = g.abs().amax(-1, keepdim=True).float() / top
    return (g.float() / s).clamp(-top, top).to(q).view(y.shape), s.squeeze(-1)


def per_group_of_64_bounded(y, q, top):
    g = y.reshape(*y.shape[:-1], y.shape[-1] // 64, 64).float()
    s = g.abs().amax(-1, keepdim=True).clamp_min(1e-4) / top
    return (g / s).to(q).reshape(y.shape), s


def per_tensor(y, q, top):
    s = y.abs().amax().float() / top
    return (y.float() / s).clamp(-top, top).to(q), s


def per_tensor_by_max(y, q, top):
    s = (y.abs().max().float() / top).clamp(min=1e-12)
    return (y.float() / s).clamp(-top, top).to(q), s


def per_tensor_reciprocal(y, q, top):
    s = top / y.float().abs().max().clamp(min=1e-12)
    return (y.float() * s).clamp(-top, top).to(q), s.reciprocal()


def per_token_in_own_dtype(y, q, top):
    s = y.abs().amax(-1, keepdim=True).clamp(min=1e-4) / top
    return (y / s).clamp(-top, top).to(q), s


def per_token_divided_in_own_dtype(y, q, top):
    s = (y.abs().max(-1, keepdim=True)[0] / top).float().clamp(min=1e-12)
    return (y.float() / s).clamp(-top, top).to(q), s


def per_token_bounded_in_own_dtype(y, q, top):
    s = (y.abs().amax(-1, keepdim=True) * (1.0 / top)).clamp(min=1e-5)
    return (y.float() / s.float()).clamp(-top, top).to(q), s


def per_token_reciprocal_in_own_dtype(y, q, top):
    s = top / y.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    return (y.float() * s.float()).clamp(-top, top).to(q), s


def per_token_quotient_in_own_dtype(y, q, top):
    s = torch.full((), top / 3) / y.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    return (y.float() * s).clamp(-top, top).to(q), s


def per_token_squeezed_in_own_dtype(y, q, top):
    s = y.abs().amax(-1) / top
    return (y / s[:, None]).clamp(-top, top).to(q), s.float()


def per_group_in_own_dtype(y, q, top):
    g = y.unflatten(-1, (-1, 64))
    s = g.abs().amax(-1, keepdim=True) / top
    return (g.float() / s).clamp(-top, top).to(q).flatten(-2), s.squeeze(-1)


def per_tensor_in_own_dtype(y, q, top):
    s = y.abs().max() / top
    return (y.float() / s).clamp(-top, top).to(q), s


def torchao_per_row(y, q, top):
    """torchao's `_choose_scale_float8` and `_quantize_affine_float8`, a scale for each row."""
    amax = y.view(y.shape[0], y.shape[1]).abs().amax(dim=[1], keepdim=True)
    scale = (torch.clamp(amax, min=1e-5, max=None) / top).reshape([y.shape[0], 1])
    scale = scale.to(dtype=torch.float32)
    scaled = y.to(torch.float32) / scale
    return scaled.clamp(min=-top, max=top).to(q), scale


def torchao_per_tensor(y, q, top):
    """The same with one scale for all."""
    scale = (y.abs().amax(dim=[0, 1], keepdim=True) / top).to(dtype=torch.float32)
    return (y.to(torch.float32) / scale).clamp(min=-top, max=top).to(q), scale


def torchao_with_leading_dimensions(y, q, top):
    """torchao's activations keep their leading dimensions."""
    y = y.view(2, -1, y.shape[-1])
    scale = (y.abs().amax(dim=[2], keepdim=True) / top).reshape([2, y.shape[1], 1])
    scale = scale.to(dtype=torch.float32)
    return (y.to(torch.float32) / scale).clamp(min=-top, max=top).to(q), scale


DYNAMIC = (
    per_token,
    per_token_by_max,
    per_token_max_without_keepdim,
    per_token_by_vector_norm,
    per_token_amax_of_fp32,
    per_token_times_constant,
    per_token_reciprocal,
    per_token_reciprocal_returned,
    per_token_scale_squeezed,
    per_group_of_128,
    per_group_of_64_bounded,
    per_tensor,
    per_tensor_by_max,
    per_tensor_reciprocal,
    per_token_in_own_dtype,
    per_token_divided_in_own_dtype,
    per_token_bounded_in_own_dtype,
    per_token_reciprocal_in_own_dtype,
    per_token_quotient_in_own_dtype,
    per_token_squeezed_in_own_dtype,
    per_group_in_own_dtype,
    per_tensor_in_own_dtype,
    torchao_per_row,
    torchao_per_tensor,
    torchao_with_leading_dimensions,
)


@pytest.mark.parametrize(("dtype", "q_dtype"), PAIRS, ids=str)
@pytest.mark.parametrize("spelling", DYNAMIC, ids=lambda f: f.__name__)
def test_every_dynamic_spelling_fuses_once(spelling, dtype, q_dtype):
    def model(x, w):
        return spelling(norm(x, w), q_dtype, LARGEST[q_dtype])

    made = run(model, fresh(ROWS, HIDDEN, dtype=dtype), fresh(HIDDEN, dtype=dtype))
    assert made.kinds == ["rms_norm_quant"], made.reasons
    assert not made.rejected
    check_quantised(made.got, made.want)


def grouped(z):
    s = z.abs().amax(-1, keepdim=True) / 448
    return (z / s).clamp(-448, 448).to(E4M3FN), s


def static(z):
    return (z / 0.01).clamp(-448, 448).to(E4M3FN), z.new_ones(1)


@pytest.mark.parametrize("returns_y", [False, True])
@pytest.mark.parametrize("quantised", [grouped, static])
@pytest.mark.parametrize("is_norm", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_groups_are_split_behind_the_widening_too(is_norm, quantised, returns_y, dtype):
    def model(x, other):
        y = norm(x, other) if is_norm else functional.silu(x) * other
        return *quantised(y.float().view(ROWS, -1, 64)), *([y] if returns_y else [])

    other = fresh(HIDDEN, dtype=dtype) if is_norm else fresh(ROWS, HIDDEN, dtype=dtype)
    made = run(model, fresh(ROWS, HIDDEN, dtype=dtype), other)
    assert len(made.kinds) == 1 and made.kinds[0].endswith("_quant"), made.reasons
    check_quantised(made.got[:2], made.want[:2])
    # A lost rounding changes nearly every scale, and codes of one value in fifty.
    assert (made.got[1] == made.want[1]).float().mean() > 0.9
    assert (made.got[0].float() == made.want[0].float()).float().mean() > 0.99
    check_same(made.got[2:], made.want[2:], ulps=2)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_a_scale_of_y_s_dtype_costs_no_conversion_where_it_is_read_in_fp32(dtype):
    """torchao passes it to `_scaled_mm`; a kernel between would cost what the fusion saves."""

    def model(x, w, weight):
        q, scale = torchao_per_tensor(norm(x, w), E4M3FN, 448.0)  # torch 2.11 takes no other here
        one = scale.new_ones(1, 1)
        return torch._scaled_mm(q, weight.t(), scale, one, out_dtype=torch.bfloat16)

    weight = torch.randn(64, HIDDEN).to(E4M3FN)
    made = run(model, fresh(ROWS, HIDDEN, dtype=dtype), fresh(HIDDEN, dtype=dtype), weight)
    assert made.kinds == ["rms_norm_quant", "skinny_gemm"], made.reasons
    assert torch.ops.prims.convert_element_type.default not in made.targets()
    assert "amax_div_rounded" in made.fused[0].op
    assert torch.allclose(made.got.float(), made.want.float(), rtol=0.02, atol=0.2)


def test_a_scale_of_y_s_dtype_is_returned_in_both_dtypes():
    def model(x, w):
        y = norm(x, w)
        s = y.abs().amax(-1, keepdim=True) / 448
        return (y.float() / s.float()).to(E4M3FN), s, s.float(), s * 2

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    assert [value.dtype for value in made.got] == [E4M3FN, BF16, F32, BF16]
    check_quantised(made.got[:2], made.want[:2])
    check_same(made.got[1:], made.want[1:], lost=BF16)


@pytest.mark.parametrize(
    ("scale_of", "found"),
    [
        (lambda y: y.abs().amax().float() / 448 + 1e-6, "found an addition (add_1)"),
        (lambda y: y.float().abs().mean() / 100, "found the result of mean.default (mean_1)"),
        (lambda y: torch.exp2(y.abs().amax().float().log2().ceil() - 8), "a power of two (exp2)"),
        (lambda y: torch.maximum(y.amax(), -y.amin()).float() / 448, "expected abs().amax"),
    ],
)
@pytest.mark.parametrize("rows", [1, 5])
def test_one_scale_that_is_computed_otherwise_is_named(scale_of, found, rows):
    """It is no static scale either: the kernel would have to wait for its own result."""

    def model(x, w):
        y = torch.nn.functional.rms_norm(x, (64,), w, 1e-6)
        return (y.float() / scale_of(y)).clamp(-448, 448).to(E4M3FN)

    made = run(model, fresh(rows, 64), fresh(64))
    assert made.kinds == ["rms_norm"]
    (refusal,) = made.rejected
    assert refusal.kind == "rms_norm_quant" and found in refusal.reason, refusal
    assert "is computed from the quantised value, but not from its largest" in refusal.reason
    assert "Compute it as y.abs().amax(" in refusal.hint
    check_same(made.got, made.want)
