"""Bounds of scales and of scaled values: what only looks like one of ours stays eager's."""

from __future__ import annotations

import pytest
import torch

from .engine import BF16, E4M3FN, F16, check_quantised, check_same, fresh, run
from .test_hints import check_hint, norm, quant

ROWS, HIDDEN = 12, 64


def scaled(x, w, s):
    return norm(x, w).float() / s


def largest(y):
    return y.abs().amax(-1, keepdim=True).float()


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("bounds", [(1e-2, 1e-9), (4.0, 1e-2), (1.5, 5e-3), (1e-2, 8e-3)])
@pytest.mark.parametrize("is_divided", [True, False])
def test_a_scale_with_two_lower_bounds_fuses(dtype, bounds, is_divided):
    def model(x, w):
        y = norm(x, w)
        amax = largest(y).clamp(min=bounds[0])
        s = (amax / 448 if is_divided else amax * (1 / 448)).clamp(min=bounds[1])
        return quant(y, s), s

    x = fresh(ROWS, HIDDEN, dtype=dtype)
    x[3] = 0.0
    made = run(model, x, fresh(HIDDEN, dtype=dtype))
    assert made.kinds == ["rms_norm_quant"], made.reasons
    check_quantised(made.got, made.want)


TWINS = [
    lambda v, x: torch.where(v < 448, v, 448.0),  # NaN becomes 448
    lambda v, x: torch.where(v > 448, 0.0, v),
    lambda v, x: torch.where(v > 300, 448.0, v),
    lambda v, x: torch.where(v > 448, 300.0, v),
    lambda v, x: torch.where(v < 3, 3.0, torch.where(v > 2, 2.0, v)),
    lambda v, x: torch.where(v > 2, 2.0, v.clamp(min=3)),
    lambda v, x: torch.where(x > 1, 1.0, v),
    lambda v, x: torch.where(v > 0, 0.0, v),
    lambda v, x: torch.where(v > 448, 448.0, x.float()),
    lambda v, x: torch.where(v == 448, 448.0, v),
    lambda v, x: torch.where(v > 448, v, torch.full_like(v, 448.0)),
    lambda v, x: torch.where(v[:1] > 1, 1.0, v),
    lambda v, x: torch.where(v[..., :1] > 1, 1.0, v),
    lambda v, x: torch.where(v.abs() > 2, v.sign() * 2, v),
    lambda v, x: v.index_put((v > 2,), v.new_tensor(2.0), accumulate=True),
    lambda v, x: v.index_put((v[:, 0] > 2,), v.new_tensor(2.0)),
    lambda v, x: torch.where(v.to(BF16) > 2, 2.0, v),
]


@pytest.mark.parametrize("choose", TWINS)
def test_what_only_looks_like_a_bound_is_none(choose):
    x, w = fresh(ROWS, HIDDEN, special=True), fresh(HIDDEN)
    made = run(lambda x, w: choose(scaled(x, w, 0.05), x).to(E4M3FN), x, w)
    assert "rms_norm_quant" not in made.kinds
    check_same(made.got, made.want)


def bound_in_half(v, x):
    return torch.where(v > 17.01, 17.01, v)  # no number of the dtype


def test_a_bound_that_is_rounded_is_no_clamp():
    made = run(
        lambda x, w: bound_in_half(norm(x, w), x).to(E4M3FN), fresh(ROWS, HIDDEN), fresh(HIDDEN)
    )
    assert made.kinds == ["rms_norm"]
    check_same(made.got, made.want)


def bound_of_the_scale(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, (largest(y) / 448).clamp(min=1e-6 if is_mended else s))


def bound_of_amax(x, w, s, is_mended):
    y = norm(x, w)
    amax = largest(y)
    return quant(y, (amax.clamp(min=0.5) if is_mended else torch.maximum(amax, s)) / 448)


def bound_of_a_reciprocal(x, w, s, is_mended):
    y = norm(x, w)
    factor = 448 / largest(y).clamp(min=1e-6 if is_mended else s[0])
    return (y.float() * factor).clamp(-448, 448).to(E4M3FN)


def largest_of_the_format(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, largest(y) / (448.0 if is_mended else s * 448))


def bound_from_above(x, w, s, is_mended):
    y = norm(x, w)
    amax = largest(y)
    return quant(y, (amax if is_mended else torch.minimum(amax, s)) / 448)


def number_from_above(x, w, s, is_mended):
    y = norm(x, w)
    amax = largest(y)
    return quant(y, (amax if is_mended else amax.clamp(1e-6, 1200.0)) / 448)


def zero_replaced(x, w, s, is_mended):
    y = norm(x, w)
    scale = largest(y) / 448
    scale = scale.clamp(min=1e-12) if is_mended else torch.where(scale == 0, 1.0, scale)
    return quant(y, scale)


def zero_masked(x, w, s, is_mended):
    y = norm(x, w)
    amax = largest(y)
    amax = amax.clamp(min=1e-12) if is_mended else amax.masked_fill(amax == 0, 1.0)
    return quant(y, amax / 448)


def bounds_of_the_value(x, w, s, is_mended):
    top = 448 if is_mended else s * 448
    return (norm(x, w).float() / s).clamp(-top, top).to(E4M3FN)


def scale_of_powers(x, w, s, is_mended):
    y = norm(x, w)
    scale = largest(y) / 448
    return quant(y, scale if is_mended else 2.0 ** scale.log2().ceil())


def scale_given_for_rows(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s if is_mended else x[:, :1].float().abs() + 0.5)


MISSES = [
    (scale_of_powers, "no kernel rounds a scale", "it is rounded to a power of two (pow_2)"),
    (scale_given_for_rows, "or use one static scale", "found an addition (add_1)"),
    (bound_of_the_scale, "Give the bound as a Python number", "its lower bound is a graph input"),
    (bound_of_amax, "Give the bound as a Python number", "its lower bound is a graph input"),
    (bound_of_a_reciprocal, "Give the bound as a Python number", "its lower bound is "),
    (largest_of_the_format, "Give the factor as a Python number", "it is divided by a mult"),
    (bound_from_above, "Leave it out: no kernel bounds", "it has an upper bound"),
    (number_from_above, "Leave it out: no kernel bounds", "it has an upper bound, the number 1200"),
    (zero_replaced, "Bound it from below instead", "torch.where (where) chooses it"),
    (zero_masked, "Bound it from below instead", "torch.where (where) chooses it"),
    (bounds_of_the_value, ".clamp(-max, max)", "clamp_min is a negation (neg), exp"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "hint", "reason"), MISSES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_model_changed_as_the_hint_says_gets_the_fusion(model, hint, reason):
    check_hint(model, "rms_norm_quant", hint)
    broken = run(
        lambda x, w, s: model(x, w, s, False), fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1)
    )
    assert reason in broken.reasons[0]


def test_scales_of_rows_that_are_an_input_are_named():
    scales = torch.rand(ROWS, 1) + 0.5
    made = run(lambda x, w, s: quant(norm(x, w), s), fresh(ROWS, HIDDEN), fresh(HIDDEN), scales)
    assert made.kinds == ["rms_norm"]
    assert made.reasons[0].endswith("in a known way: it is a graph input (arg2_1)")
