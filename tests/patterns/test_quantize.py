"""Every spelling of a quantisation behind a norm fuses with it, and equals eager."""

from __future__ import annotations

import pytest
import torch

from .engine import (
    BF16,
    E4M3FN,
    E5M2,
    F16,
    F32,
    LARGEST,
    check_same,
    fresh,
    run,
)

ROWS, HIDDEN = 24, 256


def norm(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def divided(y, s, q, top):
    return (y.float() / s).clamp(-top, top).to(q)


def divided_in_own_dtype(y, s, q, top):
    return (y / s.to(y.dtype)).clamp(-top, top).to(q)


def multiplied_by_inverse(y, s, q, top):
    return (y.float() * s).clamp(-top, top).to(q)


def multiplied_by_reciprocal(y, s, q, top):
    return (y.float() * s.reciprocal()).clamp(-top, top).to(q)


def multiplied_by_one_over(y, s, q, top):
    return (y.to(torch.float32) * (1.0 / s)).clamp(-top, top).to(q)


def two_clamps(y, s, q, top):
    return (y.float() / s).clamp_min(-top).clamp_max(top).to(q)


def two_clamps_upper_first(y, s, q, top):
    return (y.float() / s).clamp_max(top).clamp_min(-top).to(q)


def minimum_maximum(y, s, q, top):
    low, high = y.new_tensor(-top, dtype=torch.float32), y.new_tensor(top, dtype=torch.float32)
    return torch.minimum(torch.maximum(y.float() / s, low), high).to(q)


def torch_clip(y, s, q, top):
    return torch.clip(y.float() / s, min=-top, max=top).to(q)


def clamp_before_a_cast(y, s, q, top):
    return (y.float() / s).clamp(-top, top).to(torch.float32).to(q)


def not_clamped(y, s, q, top):
    return (y.float() / s).to(q)


def multiplied_not_clamped(y, s, q, top):
    return (y.float() * s).to(q)


def other_bounds(y, s, q, top):
    return (y.float() / s).clamp(-16.0, 15.0).to(q)


def upper_bound_only(y, s, q, top):
    return (y.float() / s).clamp(max=top).to(q)


def lower_bound_only(y, s, q, top):
    return (y.float() * s).clamp(min=-top).to(q)


def rectified(y, s, q, top):
    return (y.float() / s).clamp(0.0, top).to(q)


def bounds_rounded_to_the_dtype(y, s, q, top):
    return (y / s.to(y.dtype)).clamp(-17.01, 17.01).to(q)


def clamp_behind_a_view(y, s, q, top):
    return (y.float() / s).view(2, -1, y.shape[-1]).clamp(-top, top).to(q)


def clamp_behind_the_cast_chain(y, s, q, top):
    return (y / s.to(y.dtype)).to(torch.float32).clamp(-top, top).to(q)


def cast_between_the_clamps(y, s, q, top):
    return (y.float() / s).clamp(min=-top).to(torch.float32).clone().clamp(max=top).to(q)


def chosen_by_where(y, s, q, top):
    v = y.float() / s
    return torch.where(v > top, top, torch.where(v < -top, -top, v)).to(q)


def chosen_one_after_the_other(y, s, q, top):
    v = (y.float() * s).clone()
    v = torch.where(v >= top, torch.full_like(v, top), v)
    return torch.where(v <= -top, -top, v).to(q)


def masked_above(y, s, q, top):
    v = y.float() / s
    return v.masked_fill(v > top, top).clamp(min=-top).to(q)


def written_over(y, s, q, top):
    v = y.float() / s
    v[v > top] = top
    v[v < -top] = -top
    return v.to(q)


def without_a_scale(y, s, q, top):
    return y.to(q)


def without_a_scale_clamped(y, s, q, top):
    return y.clamp(-top, top).to(q)


def without_a_scale_clamped_in_fp32(y, s, q, top):
    return y.float().clamp(-top, top).to(q)


def reciprocal_in_own_dtype(y, s, q, top):
    return (y * s.to(y.dtype).reciprocal()).clamp(-top, top).to(q)


def torchao_affine(y, s, q, top):
    """`_quantize_affine_float8` of torchao with a given scale."""
    scaled = y.to(torch.float32) / s
    return scaled.clamp(min=-top, max=top).to(q)


def number_as_scale(y, s, q, top):
    return (y.float() / 0.03125).clamp(-top, top).to(q)


def number_as_factor(y, s, q, top):
    return (y * 8.0).to(q)


STATIC = (
    divided,
    divided_in_own_dtype,
    multiplied_by_inverse,
    multiplied_by_reciprocal,
    multiplied_by_one_over,
    two_clamps,
    two_clamps_upper_first,
    minimum_maximum,
    torch_clip,
    clamp_before_a_cast,
    not_clamped,
    multiplied_not_clamped,
    other_bounds,
    upper_bound_only,
    lower_bound_only,
    rectified,
    bounds_rounded_to_the_dtype,
    clamp_behind_a_view,
    clamp_behind_the_cast_chain,
    cast_between_the_clamps,
    chosen_by_where,
    chosen_one_after_the_other,
    masked_above,
    written_over,
    without_a_scale,
    without_a_scale_clamped,
    without_a_scale_clamped_in_fp32,
    reciprocal_in_own_dtype,
    torchao_affine,
    number_as_scale,
    number_as_factor,
)


PAIRS = [*((BF16, q) for q in LARGEST), (F16, E5M2), (F32, E4M3FN)]


@pytest.mark.parametrize(("dtype", "q_dtype"), PAIRS, ids=str)
@pytest.mark.parametrize("spelling", STATIC, ids=lambda f: f.__name__)
def test_every_static_spelling_fuses_once(spelling, dtype, q_dtype):
    def model(x, w, s):
        return spelling(norm(x, w), s, q_dtype, LARGEST[q_dtype])

    scale = torch.rand(1) * 0.05 + 0.01
    made = run(
        model, fresh(ROWS, HIDDEN, dtype=dtype, special=True), fresh(HIDDEN, dtype=dtype), scale
    )
    assert made.kinds == ["rms_norm_quant"], made.reasons
    assert not made.rejected
    check_same(made.got, made.want)
