"""A root of a mean of squares that normalises nothing, and one whose mean is made of a variance."""

from __future__ import annotations

import pytest
import torch

from mi300_inductor.contract import check_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

from .engine import check_same, fresh, run

ROWS, HIDDEN = 12, 64


def mean_square(x):
    return x.float().pow(2).mean(-1, keepdim=True)


STATISTICS = {
    "rstd": lambda x: torch.rsqrt(mean_square(x) + 1e-6),
    "rstd of rows": lambda x: torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6).to(x.dtype),
    "rstd in halves": lambda x: torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * 2,
    "largest rstd": lambda x: torch.rsqrt(mean_square(x) + 1e-6).exp(),
    "mean of rstd": lambda x: torch.rsqrt(mean_square(x) + 1e-6).mean(),
    "root and eps": lambda x: torch.sqrt(mean_square(x)) + 1e-6,
    "bounded root": lambda x: torch.sqrt(mean_square(x)).clamp(min=1e-6),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_a_root_that_is_a_result_by_itself_is_a_note(name):
    made = run(STATISTICS[name], fresh(ROWS, HIDDEN))
    (note,) = made.rejected
    assert not made.fused and note.kind == "unsupported"
    assert note.reason.endswith(
        "root of a mean of squares is a result by itself: x is not multiplied by it, so there is "
        "no norm to fuse"
    )
    assert note.hint.startswith("Nothing to change")
    report = GraphReport("0", "inference", rejected=tuple(made.rejected))
    check_graph(report, Options(strict=True))
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: (x + 1) * torch.rsqrt(mean_square(x) + 1e-6),
        lambda x: (x[0] + 1) * torch.rsqrt(mean_square(x) + 1e-6)[0],
    ],
)
def test_a_root_that_something_wider_is_multiplied_by_is_refused(model):
    made = run(model, fresh(4 * HIDDEN, HIDDEN))
    assert not made.fused
    assert [refused.kind for refused in made.rejected] == ["rms_norm"], made.reasons


def normed(h, mean, w):
    return (h * torch.rsqrt(mean + 1e-6)).to(w.dtype) * w


def by_variance_and_mean(x, w):
    h = x.float()
    mean = h.var(-1, keepdim=True, correction=0) + h.mean(-1, keepdim=True) ** 2
    return normed(h, mean, w)


def by_var_mean(x, w):
    h = x.float()
    variance, mean = torch.var_mean(h, -1, keepdim=True, correction=0)
    return normed(h, mean * mean + variance, w)


def by_deviation(x, w):
    h = x.float()
    mean = h.std(-1, keepdim=True, correction=0).square() + h.mean(-1, keepdim=True).square()
    return normed(h, mean, w)


@pytest.mark.parametrize(
    "model", [by_variance_and_mean, by_var_mean, by_deviation], ids=lambda f: f.__name__
)
def test_a_variance_and_the_square_of_the_mean_are_an_rms_and_the_hint_leads_to_it(model):
    def mended(x, w):
        eps, weight = 1e-6, w
        y = x.float() * torch.rsqrt(torch.mean(x.float() ** 2, -1, keepdim=True) + eps) * weight
        return y.to(x.dtype)

    x, w = fresh(ROWS, HIDDEN), fresh(HIDDEN)
    plain = run(model, x, w)
    assert plain.reasons == [
        "rms_norm: the root is of a variance plus the square of a mean, which is the mean of "
        "squares"
    ]
    assert "x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps)" in plain.rejected[0].hint
    made = run(mended, x, w)
    assert made.kinds == ["rms_norm"] and not made.rejected
    torch.testing.assert_close(made.got.float(), plain.want.float(), rtol=2e-2, atol=1e-2)


def test_with_another_correction_it_is_a_note():
    def model(x, w):
        h = x.float()
        return normed(h, h.var(-1, keepdim=True) + h.mean(-1, keepdim=True) ** 2, w)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.reasons == [
        "unsupported: the root is of a variance plus the square of a mean, but not with the "
        "correction 0"
    ]
