"""Operands that the model repeats itself mean the same as those that broadcast."""

from __future__ import annotations

import pytest
import torch

from .engine import BF16, E4M3FN, F16, check_same, fresh, run
from .test_hints import HIDDEN, ROWS, check_hint, norm, quant


def scale_of_rows(x, w, s):
    return quant(norm(x, w), s.expand(ROWS, 1))


def scale_of_elements(x, w, s):
    return quant(norm(x, w), s.expand_as(x))


def scale_of_elements_that_widens(x, w, s):
    return (norm(x, w) / s[0].expand_as(x)).clamp(-448, 448).to(E4M3FN)


def scale_repeated(x, w, s):
    return quant(norm(x, w), s.repeat(ROWS, HIDDEN))


def scale_read_elsewhere(x, w, s):
    scale = s.expand(ROWS, 1)
    return quant(norm(x, w), scale), scale + 1


def computed_scale(x, w, s):
    y = norm(x, w)
    return quant(y, (y.abs().amax(-1, keepdim=True).float() / 448).expand_as(y))


def weight_of_elements(x, w, s):
    return quant(norm(x, w.expand(ROWS, HIDDEN)), s)


def weight_of_heads(x, w, s):
    return quant(norm(x.view(ROWS, 4, 16), w[:16].expand(4, 16)), s)


def weight_repeated(x, w, s):
    return quant(norm(x.view(ROWS, 4, 16), w[:16].repeat(4, 1)), s)


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize(
    "model",
    [
        *(scale_of_rows, scale_of_elements, scale_of_elements_that_widens, scale_repeated),
        *(scale_read_elsewhere, computed_scale),
        *(weight_of_elements, weight_of_heads, weight_repeated),
    ],
    ids=lambda f: f.__name__,
)
def test_an_expanded_operand_fuses(model, dtype):
    x, w = fresh(ROWS, HIDDEN, dtype=dtype, special=True), fresh(HIDDEN, dtype=dtype)
    made = run(model, x, w, torch.rand(1) + 0.5)
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    check_same(made.got, made.want)


TWINS = [
    lambda x, w, s: quant(norm(x[:1], w), s.expand(ROWS, 1)),
    lambda x, w, s: quant(norm(x, w), x[:, :1].float().abs().expand(ROWS, HIDDEN) + 1),
    lambda x, w, s: quant(norm(x, x[:, :1].expand(ROWS, HIDDEN)), s),
    lambda x, w, s: quant(norm(x, w[:1].expand(HIDDEN)), s),
    lambda x, w, s: quant(norm(x.view(ROWS, 4, 16), w[:4, None].expand(4, 16)), s),
    lambda x, w, s: quant(norm(x, w.repeat(ROWS, 1) * x), s),
    lambda x, w, s: quant(norm(x, w[:32].repeat(2)), s),
]


@pytest.mark.parametrize("model", TWINS)
def test_what_repeats_something_else_is_eagers(model):
    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    check_same(made.got, made.want)


def groups_repeated(x, w, s, is_mended):
    y = norm(x, w)
    groups = y.view(ROWS, 4, 16)
    scale = groups.abs().amax(-1).float() / 448
    if is_mended:
        return quant(groups, scale[..., None]).view(ROWS, HIDDEN), scale
    return quant(y, scale.repeat_interleave(16, -1)), scale


def groups_expanded(x, w, s, is_mended):
    y = norm(x, w)
    groups = y.view(ROWS, 4, 16)
    scale = groups.abs().amax(-1, keepdim=True).float() / 448
    if is_mended:
        return quant(groups, scale).view(ROWS, HIDDEN), scale
    return quant(y, scale.expand(ROWS, 4, 16).reshape(ROWS, HIDDEN)), scale


@pytest.mark.parametrize("model", [groups_repeated, groups_expanded], ids=lambda f: f.__name__)
def test_a_scale_repeated_for_its_group_is_mended_as_the_hint_says(model):
    check_hint(model, "rms_norm_quant", "Divide the groups as they are", refused_as="quant")


def part_squared(x, w, s, is_mended):
    h = x.float()
    part = h if is_mended else h[:, :32]
    return w * (h * torch.rsqrt(part.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_two_tensors_in_a_norm_are_named():
    check_hint(part_squared, "rms_norm", "Write it as x.float() * rsqrt(mean(x.float()**2")
    made = run(lambda x, w: part_squared(x, w, None, False), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert "x is not the same value in both places where the formula reads it: " in made.reasons[0]
    assert "(slice_1)" in made.reasons[0] and "a graph input (arg0_1)" in made.reasons[0]
