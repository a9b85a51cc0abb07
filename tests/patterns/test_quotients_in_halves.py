"""A scaled value that is rounded to a half before FP8 fuses where the operators round the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, E5M2, F16, F32, LARGEST, fresh, run

ROWS, HIDDEN = 24, 512
HALVES = (BF16, F16)


def norm(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def rounded_quotient(y, s, half, q, top):
    return (y.float() / s).to(half).clamp(-top, top).to(q)


def rounded_product(y, s, half, q, top):
    return (y.float() * s.float()).to(half).clamp(-top, top).to(q)


def rounded_behind_the_clamp(y, s, half, q, top):
    return (y.float() / s).clamp(-top, top).to(half).to(q)


def product_rounded_behind_the_clamp(y, s, half, q, top):
    return (y.float() * s).clamp(min=-17.01, max=top).to(half).to(q)


def rounded_between_the_clamps(y, s, half, q, top):
    return (y.float() / s).clamp(min=-17.01).to(half).clamp(max=15.03).to(q)


def rounded_and_clamped_in_fp32(y, s, half, q, top):
    return (y.float() / s).to(half).float().clamp(-17.01, 15.03).to(q)


def rounded_not_clamped(y, s, half, q, top):
    return (y.float() / s).to(half).to(q)


def divided_by_a_number_of_the_half(y, s, half, q, top):
    return (y.float() / 0.375).to(half).clamp(-top, top).to(q)


SPELLINGS = (
    rounded_quotient,
    rounded_product,
    rounded_behind_the_clamp,
    product_rounded_behind_the_clamp,
    rounded_between_the_clamps,
    rounded_and_clamped_in_fp32,
    rounded_not_clamped,
    divided_by_a_number_of_the_half,
)


def special_weight(dtype):
    """Factors that make infinities, NaN, subnormals, and values around the formats' largest."""
    w = fresh(HIDDEN, dtype=F32)
    w[:10] = torch.tensor(
        [float("inf"), -float("inf"), float("nan"), 0, -0.0, 1e-6, -1e-7, 9, 3e4, 6]
    )
    return w.to(dtype)


def held_to_the_bits(made, quantised):
    """Codes that are eager's of the very value that the fusion gave out beside them.

    The sign of a NaN is left open, which torch's own casts change.
    """
    got, y = made.got
    want = quantised(y)
    nan = want.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    assert torch.equal(got.view(torch.uint8)[~nan], want.view(torch.uint8)[~nan])


@pytest.mark.parametrize("q", [E4M3FN, E5M2], ids=str)
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_the_codes_are_eagers_to_the_bit(spelling, half, q):
    s = torch.tensor([0.0123], dtype=half)

    def quantised(y, s):
        return spelling(y, s, half, q, LARGEST[q])

    def model(x, w, s):
        y = norm(x, w)
        return quantised(y, s), y

    x, w = fresh(ROWS, HIDDEN, dtype=half, special=True), special_weight(half)
    made = run(model, x, w, s)
    assert made.kinds == ["rms_norm_quant"], made.reasons
    assert not made.rejected
    held_to_the_bits(made, lambda y: quantised(y, s))


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("y_dtype", [BF16, F16, F32], ids=str)
def test_an_activation_of_another_dtype_is_rounded_once_more(y_dtype, half):
    def quantised(y, s):
        return (y.float() * s).clamp(-448, 448).to(half).to(E4M3FN)

    def model(gate, up, s):
        y = functional.silu(gate) * up
        return quantised(y, s), y

    s = torch.tensor(3.7, dtype=half)
    gate, up = (fresh(ROWS, HIDDEN, dtype=y_dtype, special=True) for _ in range(2))
    made = run(model, gate, up, s)
    assert made.kinds == ["silu_mul_quant"], made.reasons
    held_to_the_bits(made, lambda y: quantised(y, s))


def fp32_scale(y, s):
    return (y.float() / s.float().mul(1.001)).to(BF16).clamp(-448, 448).to(E4M3FN)


def fp32_number(y, s):
    return (y.float() * 0.3).clamp(-448, 448).to(BF16).to(E4M3FN)


def scale_of_the_other_half(y, s):
    return (y.float() / s.to(F16)).to(BF16).clamp(-448, 448).to(E4M3FN)


def reciprocal_in_fp32(y, s):
    return (y.float() * s.float().reciprocal()).to(BF16).clamp(-448, 448).to(E4M3FN)


def bound_that_is_rounded_to_zero(y, s):
    return (y.float() / s).clamp(0.0, 448).to(BF16).to(E4M3FN)


@pytest.mark.parametrize(
    "quantised",
    [
        fp32_scale,
        fp32_number,
        scale_of_the_other_half,
        reciprocal_in_fp32,
        bound_that_is_rounded_to_zero,
    ],
    ids=lambda f: f.__name__,
)
def test_what_the_operators_would_round_otherwise_is_refused(quantised):
    made = run(
        lambda x, w, s: quantised(norm(x, w), s),
        fresh(ROWS, HIDDEN),
        fresh(HIDDEN),
        torch.tensor([0.0123], dtype=BF16),
    )
    assert made.kinds == ["rms_norm"]
    assert made.reasons == [
        "rms_norm_quant: the scaled value is rounded again, to torch.bfloat16, before it is "
        "converted to FP8"
    ]


def test_without_the_cast_the_refused_one_fuses():
    def mended(x, w, s):
        return (norm(x, w).float() / s).clamp(-448, 448).to(E4M3FN)

    made = run(mended, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.tensor([0.0123]))
    assert made.kinds == ["rms_norm_quant"] and not made.rejected
