"""Halves times and divided by a wider tensor without dimensions have eager's bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import mi300_inductor as mi

FP8 = torch.float8_e4m3fn


def everything(y: Tensor, s: Tensor) -> list[Tensor]:
    quantised = (y / s).clamp(-448, 448).to(FP8)
    return [y * s, s * y, y / s, s / y, y + s, s + y, y - s, s - y, (y * s) * s, quantised]


@pytest.mark.parametrize("scalar", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_results_are_eagers(half, scalar, fresh_dynamo):
    y = torch.randn(4, 257).to(half)
    y[0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
    s = torch.tensor(0.0123456789, dtype=scalar)
    assert not torch.equal((y * s)[1:], (y * s.to(half))[1:]), "the roundings must differ"
    for got, want in zip(
        torch.compile(everything, backend="mi300")(y, s), everything(y, s), strict=True
    ):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0, equal_nan=True)


def test_a_norm_quantised_by_such_a_scale_has_eagers_codes(fresh_dynamo):
    """The norm is fused; the quantisation, whose quotient is rounded to bf16, is Inductor's."""
    x, weight = torch.randn(4, 256).bfloat16(), torch.randn(256).bfloat16()
    scale = torch.tensor(0.0123)

    def quantised(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        h = x.float()
        y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight
        return (y / scale).clamp(-448, 448).to(FP8)

    assert mi.explain(quantised, x, weight, scale).counts == {"rms_norm": 1}
    got = torch.compile(quantised, backend="mi300")(x, weight, scale)
    want = quantised(x, weight, scale)
    # An ulp of the norm's sum may flip one rounding in a thousand, not one in twenty.
    assert (got.float() != want.float()).sum() <= 4
