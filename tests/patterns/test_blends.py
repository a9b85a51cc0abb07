"""More than the mean of squares and eps under a root: named, and what can be changed is said."""

from __future__ import annotations

import pytest
import torch

from .engine import check_same, fresh, run
from .test_hints import HIDDEN, ROWS, check_hint


def mean_square(x):
    return x.float().pow(2).mean(-1, keepdim=True)


def normed(x, w, under_root):
    return w * (x.float() * torch.rsqrt(under_root)).to(x.dtype)


BLENDS = [
    (lambda x, s: 0.9 * s + 0.1 * mean_square(x) + 1e-6, "a multiplication (mul) of shape [1], by"),
    (lambda x, s: s + 0.1 * mean_square(x), "a graph input (arg1_1) of shape [1], by an addition"),
    (lambda x, s: mean_square(x) + s + 1e-6, "a graph input (arg1_1) of shape [1], by an addition"),
    (lambda x, s: mean_square(x).lerp(s, 0.9) + 1e-6, "of shape [1], by an addition with an alpha"),
    (lambda x, s: mean_square(x) - s, "a graph input (arg1_1) of shape [1], by a subtraction"),
    (lambda x, s: torch.maximum(mean_square(x), s) + 1e-6, "of shape [1], by a lower bound (max"),
    (lambda x, s: torch.minimum(s, mean_square(x)) + 1e-6, "of shape [1], by an upper bound (min"),
    (lambda x, s: mean_square(x) + mean_square(x.flip(0)) + 1e-6, "of shape [12, 1], by an add"),
    (lambda x, s: mean_square(x) + x[:, :1].float().abs(), "of shape [12, 1], by an addition"),
    (lambda x, s: mean_square(x) / mean_square(x.flip(0)), "of shape [12, 1], by a division"),
    (lambda x, s: mean_square(x) * s + 1e-6, "a graph input (arg1_1) of shape [1], by a mult"),
]


@pytest.mark.parametrize(("under_root", "reason"), BLENDS)
def test_what_is_mixed_with_the_mean_is_named_in_a_note(under_root, reason):
    given = fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5
    made = run(lambda x, w, s: normed(x, w, under_root(x, s)), *given)
    (note,) = made.rejected
    assert not made.fused and note.kind == "unsupported" and note.is_note
    assert note.reason.startswith("under the root stands the mean of squares together with ")
    assert reason in note.reason and "test_blends.py:" in note.source
    assert "If an RMSNorm of x alone is meant, write x.float() * rsqrt(mean(" in note.hint
    check_same(made.got, made.want)


def test_a_variance_from_two_means_is_a_layer_norm():
    def model(x, w, s):
        mean = x.float().mean(-1, keepdim=True)
        return normed(x, w, mean_square(x) - mean.square() + 1e-6)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1))
    assert not made.fused and "this is a LayerNorm" in made.reasons[0]


def lower_bound_and_eps(x, w, s, is_mended):
    mean = mean_square(x)
    return normed(x, w, (mean if is_mended else mean.clamp(min=1e-5)) + 1e-6)


def upper_bound_and_eps(x, w, s, is_mended):
    mean = mean_square(x)
    return normed(x, w, (mean if is_mended else mean.clamp(max=1e6)) + 1e-6)


def channels_first(x, w, s, is_mended):
    h = x.float().view(2, 6, 64)
    if is_mended:
        h = h.movedim(1, -1)
    mean = h.pow(2).mean(-1 if is_mended else 1, keepdim=True)
    y = h * torch.rsqrt(mean + 1e-6)
    return y.movedim(-1, 1) if is_mended else y


def two_dimensions(x, w, s, is_mended):
    h = x.float().view(ROWS, 4, 16)
    h = h.flatten(1) if is_mended else h
    return h * torch.rsqrt(h.pow(2).mean(-1 if is_mended else (1, 2), keepdim=True) + 1e-6)


def eps_as_a_buffer(x, w, s, is_mended):
    return normed(x, w, mean_square(x) + (1e-6 if is_mended else s))


MISSES = [
    (lower_bound_and_eps, "rms_norm", "Leave the bound out, eps keeps the root from zero"),
    (upper_bound_and_eps, "rms_norm", "Leave the bound out, eps keeps the root from zero"),
    (channels_first, "rms_norm", "Move the dimension with x.movedim(dim, -1)"),
    (two_dimensions, "rms_norm", "or flatten several, so that the normalised values are the last"),
    (eps_as_a_buffer, "rms_norm", "Keep eps as a Python number"),
]


@pytest.mark.parametrize(
    ("model", "kind", "hint"), MISSES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_model_changed_as_the_hint_says_gets_the_fusion(model, kind, hint):
    check_hint(model, kind, hint)
