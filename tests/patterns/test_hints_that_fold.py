"""Hints that change a formula: the mended model fuses, and computes the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .test_hints import HIDDEN, ROWS, check_hint


def sum_over_another_number(x, w, s, is_mended):
    h = x.float()
    squares = h.pow(2)
    if is_mended:
        mean, eps, folded = squares.mean(-1, keepdim=True), 1e-3 * 50 / HIDDEN, (50 / HIDDEN) ** 0.5
    else:
        mean, eps, folded = squares.sum(-1, keepdim=True) / 50, 1e-3, 1
    return h * torch.rsqrt(mean + eps) * (w.float() * folded)


def multiple_of_the_mean(x, w, s, is_mended):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    if is_mended:
        return h * torch.rsqrt(mean + 1e-3 / 3) * (w.float() / 3**0.5)
    return h * torch.rsqrt(3 * mean + 1e-3) * w.float()


def eps_in_the_sum(x, w, s, is_mended):
    h = x.float()
    if is_mended:
        mean = h.pow(2).mean(-1, keepdim=True) + 1e-3 / HIDDEN
    else:
        mean = (h.pow(2).sum(-1, keepdim=True) + 1e-3) / HIDDEN
    return h * torch.rsqrt(mean) * w.float()


def multiple_of_the_root(x, w, s, is_mended):
    h = x.float()
    if is_mended:
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True)) * (w.float() / HIDDEN**0.25)
    return h / (h.norm(dim=-1, keepdim=True) / HIDDEN**0.25) * w.float()


def mean_used_twice(x, w, s, is_mended):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    y = h * torch.rsqrt(mean + 1e-6) * w.float()
    again = x.float().pow(2).mean(-1, keepdim=True) if is_mended else mean
    return y, again + 1


def silu_used_twice(x, w, s, is_mended):
    act = functional.silu(x)
    return act * x.flip(0), (functional.silu(x) if is_mended else act) + 1


MISSES = [
    (sum_over_another_number, "rms_norm", "divide by x.shape[-1]. If sum / c with another c is"),
    (multiple_of_the_mean, "rms_norm", "use eps / c, and divide the weight by sqrt(c)"),
    (eps_in_the_sum, "rms_norm", "Add eps to the mean itself, last"),
    (multiple_of_the_root, "rms_norm", "eps may be 0.0"),
    (mean_used_twice, "rms_norm", "compute the value there a second time"),
    (silu_used_twice, "silu_mul", "compute the value there a second time"),
]


@pytest.mark.parametrize(
    ("model", "kind", "hint"), MISSES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_model_changed_as_the_hint_says_gets_the_fusion(model, kind, hint):
    check_hint(model, kind, hint)


@pytest.mark.parametrize(
    "model",
    [sum_over_another_number, multiple_of_the_mean, eps_in_the_sum, multiple_of_the_root],
    ids=lambda v: v.__name__,
)
def test_what_the_hint_folds_computes_the_same(model):
    x, w = torch.randn(ROWS, HIDDEN), torch.randn(HIDDEN)
    x[2] *= 1e-2
    torch.testing.assert_close(model(x, w, None, True), model(x, w, None, False))
