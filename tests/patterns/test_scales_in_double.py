"""Scales that are computed in float64 and rounded to fp32, as torchao's float8 training does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F16, F32, check_quantised, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def scale_and_codes(y, scale, is_inverse):
    scaled = y.float() * scale if is_inverse else y.float() / scale
    return scaled.clamp(-448, 448).to(E4M3FN), scale


def torchao(y, amax):
    """`amax_to_scale` of torchao.float8."""
    scale = torch.finfo(E4M3FN).max / torch.clamp(amax.to(torch.float64), min=1e-12)
    return scale_and_codes(y, scale.to(torch.float32), True)


def without_bound(y, amax):
    return scale_and_codes(y, (448.0 / amax.double()).float(), True)


def quotient(y, amax):
    return scale_and_codes(y, (amax.double().clamp(min=1e-12) / 448).float(), False)


def norm(x, w):
    return functional.rms_norm(x, (HIDDEN,), w, 1e-6)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("is_per_token", [True, False])
@pytest.mark.parametrize("form", [torchao, without_bound, quotient], ids=lambda f: f.__name__)
def test_the_scale_fuses_and_is_that_of_eager(form, is_per_token, dtype):
    def model(x, w):
        y = norm(x, w)
        return form(y, y.abs().amax(-1, keepdim=True) if is_per_token else y.abs().max())

    x = fresh(ROWS, HIDDEN, dtype=dtype)
    x[3] = 0.0
    made = run(model, x, fresh(HIDDEN, dtype=dtype))
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    assert torch.float64 not in [
        node.meta["val"].dtype
        for module in made.modules
        for node in module.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    ]
    check_quantised(made.got, made.want)


def test_given_the_same_largest_value_the_scale_is_the_same_bit_for_bit():
    amax = torch.cat([torch.rand(10000) * 300, torch.tensor([0.0, 1e-12, 1e-30])])
    wide = (448.0 / amax.double().clamp(min=1e-12)).float()
    assert torch.equal(wide, torch.full((), 448.0) / amax.clamp(min=1e-12))


def bound_that_rounds_otherwise():
    """A lower bound with which a row of zeros has another scale in fp32."""
    bounds = torch.arange(1, 200, dtype=torch.float64) * 1e-12
    wide, narrow = (448.0 / bounds).float(), torch.tensor(448.0) / bounds.float()
    return float(bounds[(wide != narrow).nonzero()[0, 0]])


BOUND = bound_that_rounds_otherwise()


@pytest.mark.parametrize(
    "scale_of",
    [
        lambda amax: 448.0 / amax.clamp(min=BOUND),
        lambda amax: amax * (1 / 448),  # rounded once, and twice in fp32
        lambda amax: 448.1 / amax,
        lambda amax: (amax + 1e-6) / 448,
        lambda amax: amax.sqrt() / 448,
    ],
)
def test_what_rounds_otherwise_does_not_fuse(scale_of):
    def model(x, w):
        y = norm(x, w)
        return scale_and_codes(y, scale_of(y.abs().amax(-1, keepdim=True).double()).float(), True)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"]
    assert made.rejected[0].kind == "rms_norm_quant", made.reasons
    check_same(made.got[0], made.want[0])
