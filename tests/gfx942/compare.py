"""Comparison with the reference: ulps for floats, tie-aware codes for FP8."""

from __future__ import annotations

import torch
from torch import Tensor

_MANTISSA = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}
_HALF = (torch.bfloat16, torch.float16)


def _order(codes: Tensor) -> Tensor:
    """FP8 codes as integers whose differences count representable values."""
    wide = codes.view(torch.uint8).int()
    return torch.where(wide >= 128, 128 - wide, wide)


def assert_close_floats(got: Tensor, expected: Tensor, ulps: int, what: str) -> None:
    """At most `ulps` apart, NaN and infinities alike; half dtypes equal in 99.5 % of elements."""
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan), f"{what}: NaN differ"
    a, b = got.double()[~nan], expected.double()[~nan]
    infinite = b.isinf() | a.isinf()
    assert torch.equal(a[infinite], b[infinite]), f"{what}: infinities differ"
    a, b = a[~infinite], b[~infinite]
    smallest = torch.finfo(expected.dtype).smallest_normal
    exponent = torch.frexp(b.abs().clamp_min(smallest)).exponent - 1
    ulp = torch.exp2(exponent.double() - _MANTISSA[expected.dtype])
    worst = ((a - b).abs() / ulp).max().item() if len(a) else 0.0
    assert worst <= ulps, f"{what}: {worst} ulp off"
    if expected.dtype in _HALF and len(a) >= 1000:
        equal = (a == b).double().mean().item()
        assert equal >= 0.995, f"{what}: only {equal:.4f} equal"


def assert_close_codes(got: Tensor, expected: Tensor, values: Tensor, what: str) -> None:
    """At most one code apart, in at most n / 1000 elements; exact ties are not counted.

    Args:
        got: FP8 from the kernel.
        expected: FP8 of the reference.
        values: What the reference converted, fp32, same shape.
        what: For messages.
    """
    nan = expected.float().isnan()
    assert torch.equal(got.float().isnan(), nan), f"{what}: NaN codes differ"
    apart = (_order(got) - _order(expected)).abs()[~nan]
    if apart.numel() == 0:
        return
    assert apart.max() <= 1, f"{what}: {apart.max().item()} codes off"
    around = [(values[~nan] * (1 + sign * 2.0**-20)).to(expected.dtype) for sign in (-1, 1)]
    is_tie = _order(around[0]) != _order(around[1])
    differ = int((apart.bool() & ~is_tie).sum())
    assert differ <= max(1, apart.numel() // 1000), f"{what}: {differ} of {apart.numel()} differ"
