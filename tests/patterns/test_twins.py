"""Twins: one thing is changed in what fuses, and the result is eager's, whatever is made of it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, E4M3FNUZ, F32, check_same, fresh, run

ROWS, HIDDEN = 24, 64


def rstd_of(h, dim=-1, eps=1e-6):
    return torch.rsqrt(h.pow(2).mean(dim, keepdim=True) + eps)


def norm(x, w):
    h = x.float()
    return w * (h * rstd_of(h)).to(x.dtype)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def mean_over_another_dim(x, r, w, s):
    h = (x + r).float()
    return quant(w * (h * rstd_of(h, 0)).to(x.dtype), s)


def mean_over_both_dims(x, r, w, s):
    h = (x + r).float()
    return quant(w * (h * rstd_of(h, (0, 1))).to(x.dtype), s)


def eps_outside(x, r, w, s):
    h = (x + r).float()
    return quant(w * (h / (h.pow(2).mean(-1, keepdim=True).sqrt() + 0.1)).to(x.dtype), s)


def weight_per_row(x, r, w, s):
    h = x.float()
    return quant(r[:, :1] * (h * rstd_of(h)).to(x.dtype), s)


def weight_of_full_size(x, r, w, s):
    h = x.float()
    return quant(r * (h * rstd_of(h)).to(x.dtype), s)


def weight_of_one_value(x, r, w, s):
    h = x.float()
    return quant(w[:1] * (h * rstd_of(h)).to(x.dtype), s)


def second_user_of_rstd(x, r, w, s):
    h = (x + r).float()
    rstd = rstd_of(h)
    return quant(w * (h * rstd).to(x.dtype), s), r * rstd


def second_user_of_the_squares(x, r, w, s):
    h = x.float()
    squares = h.pow(2)
    y = w * (h * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    return quant(y, s), squares.amax()


def second_user_of_the_scaled_value(x, r, w, s):
    scaled = norm(x, w).float() / s
    return scaled.clamp(-448, 448).to(E4M3FN), scaled * 2


def bounds_of_another_format(x, r, w, s):
    y = norm(x, w).float() / s
    return y.clamp(-448, 448).to(E4M3FNUZ), y.clamp(-240, 240).to(E4M3FN)


def bounds_not_symmetric(x, r, w, s):
    return (norm(x, w).float() / s).clamp(-3.0, 448.0).to(E4M3FN)


def bounds_the_wrong_way_round(x, r, w, s):
    return (norm(x, w).float() / s).clamp(448.0, -448.0).to(E4M3FN)


def upper_below_lower(x, r, w, s):
    return (norm(x, w).float() / s).clamp_max(-1.0).clamp_min(1.0).to(E4M3FN)


def int8(x, r, w, s):
    return (norm(x, w).float() / s).round().clamp(-128, 127).to(torch.int8)


def swapped_halves(x, r, w, s):
    up, gate = torch.cat([x, r], -1).chunk(2, -1)
    return functional.silu(gate) * up, functional.silu(up) * gate


def gate_is_up(x, r, w, s):
    return functional.silu(x) * x


def sigmoid_of_another_value(x, r, w, s):
    return x * torch.sigmoid(r) * w


def sum_without_mean(x, r, w, s):
    h = (x + r).float()
    return quant(w * (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) + 1e-6)).to(x.dtype), s)


def mean_of_magnitudes(x, r, w, s):
    h = x.float()
    return quant(w * (h * torch.rsqrt(h.abs().mean(-1, keepdim=True) + 1e-6)).to(x.dtype), s)


def mean_of_half_a_row(x, r, w, s):
    h = x.float()
    return w * (h * rstd_of(h[:, : HIDDEN // 2])).to(x.dtype)


def rstd_of_another_row(x, r, w, s):
    h = x.float()
    return w * (h * rstd_of(h.flip(0))).to(x.dtype)


def difference_instead_of_sum(x, r, w, s):
    h = x - r
    return quant(norm(h, w), s), h


def scaled_sum(x, r, w, s):
    h = torch.add(x, r, alpha=2)
    return quant(norm(h, w), s), h


def scale_of_the_wrong_rows(x, r, w, s):
    y = norm(x, w)
    return quant(y, y.abs().amax(0, keepdim=True).float() / 448 + 1e-3)


def scale_without_abs(x, r, w, s):
    y = norm(x, w)
    return quant(y, y.amax(-1, keepdim=True).float() / 448 + 1e-3)


def smallest_instead_of_largest(x, r, w, s):
    y = norm(x, w)
    return quant(y, y.abs().amin(-1, keepdim=True).float() / 448 + 1e-3)


def written_between_the_parts(x, r, w, s):
    h = x + r
    h.mul_(2.0)
    return quant(norm(h, w), s), h


def input_written_between_the_parts(x, r, w, s):
    y = norm(x, w)
    x.add_(1.0)
    return quant(y, s), x + 0


def result_written(x, r, w, s):
    y = norm(x, w)
    y[:, 0] = 0
    return quant(y, s), y


TWINS = (
    mean_over_another_dim,
    mean_over_both_dims,
    eps_outside,
    weight_per_row,
    weight_of_full_size,
    weight_of_one_value,
    second_user_of_rstd,
    second_user_of_the_squares,
    second_user_of_the_scaled_value,
    bounds_of_another_format,
    bounds_not_symmetric,
    bounds_the_wrong_way_round,
    upper_below_lower,
    int8,
    swapped_halves,
    gate_is_up,
    sigmoid_of_another_value,
    sum_without_mean,
    mean_of_magnitudes,
    mean_of_half_a_row,
    rstd_of_another_row,
    difference_instead_of_sum,
    scaled_sum,
    scale_of_the_wrong_rows,
    scale_without_abs,
    smallest_instead_of_largest,
    written_between_the_parts,
    input_written_between_the_parts,
    result_written,
)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("twin", TWINS, ids=lambda f: f.__name__)
def test_a_twin_equals_eager(twin, dtype):
    args = fresh(ROWS, HIDDEN, dtype=dtype), fresh(ROWS, HIDDEN, dtype=dtype)
    made = run(twin, *args, fresh(HIDDEN, dtype=dtype), torch.rand(1) * 0.1 + 0.05)
    check_same(made.got, made.want, lost=dtype)
    assert not any(reason.startswith("pass") for reason in made.reasons)


def view_of_the_result(x, r, w):
    y = norm(x, w)
    return y, y.view(-1), y.t()


def same_result_twice(x, r, w):
    y = norm(x, w)
    return y, y


def input_and_result(x, r, w):
    return x, x.view(-1), norm(x, w)


def stored_sum_and_its_view(x, r, w):
    h = x + r
    return h[:2], norm(h, w), h


@pytest.mark.parametrize(
    "model",
    [view_of_the_result, same_result_twice, input_and_result, stored_sum_and_its_view],
    ids=lambda f: f.__name__,
)
def test_outputs_alias_where_they_do_in_eager_and_nowhere_else(model):
    args = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN)
    made = run(model, *args)
    assert made.fused
    check_same(made.got, made.want)

    def sharing(values):
        places = [value.untyped_storage().data_ptr() for value in values]
        return [[one == other for one in places] for other in places]

    assert sharing(made.got) == sharing(made.want)
