"""Meanings that torch decomposes into something else, and twins of them that are none.

An einsum is products, sums and permutations; a buffer is filled by a copy; a number may be a tensor
and broadcast.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F16, F32, check_same, fresh, run

ROWS, HIDDEN = 64, 64  # alike, so that a transposition is no error of shapes


def norm(x, w, mean):
    return w * (x.float() * torch.rsqrt(mean + 1e-6)).to(x.dtype)


MEANS = {
    "einsum": lambda h: torch.einsum("td,td->t", h, h)[:, None] / HIDDEN,
    "einsum of any": lambda h: torch.einsum("...d,...d->...", h, h).unsqueeze(-1) / HIDDEN,
    "einsum of a batch": lambda h: torch.einsum("btd,btd->bt", *[h.view(4, 16, -1)] * 2).view(-1, 1)
    / HIDDEN,
    "bmm": lambda h: torch.bmm(h[:, None], h[:, :, None]).view(-1, 1) / HIDDEN,
    "matmul": lambda h: (h[:, None] @ h[:, :, None])[:, 0] / HIDDEN,
    "vecdot": lambda h: torch.linalg.vecdot(h, h)[:, None] * (1 / HIDDEN),
    "divided by a tensor": lambda h: (h * h).sum(-1, keepdim=True) / torch.tensor(float(HIDDEN)),
    "of absolute values": lambda h: h.abs().square().mean(-1, keepdim=True),
    "powers of absolute values": lambda h: (h.abs() ** 2).mean(-1, keepdim=True),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_squares_by_any_name(name, dtype):
    x, w = fresh(ROWS, HIDDEN, dtype=dtype, special=True), fresh(HIDDEN, dtype=dtype)
    made = run(lambda x, w: norm(x, w, MEANS[name](x.float())), x, w)
    assert made.kinds == ["rms_norm"] and not made.rejected, made.reasons
    check_same(made.got, made.want)


def test_an_eps_with_an_alpha():
    def model(x, w):
        h = x.float()
        rstd = torch.rsqrt(torch.add(h.square().mean(-1, keepdim=True), 2e-3, alpha=0.5))
        return w * (h * rstd).to(x.dtype)

    made = run(model, fresh(ROWS, HIDDEN) * 0.01, fresh(HIDDEN))
    assert made.kinds == ["rms_norm"] and "eps=0.001" in made.fused[0].op, made.fused
    check_same(made.got, made.want)


TWINS = {
    "means of columns": lambda h: torch.einsum("td,td->d", h, h)[:, None] / HIDDEN,
    "means across": lambda h: torch.einsum("td,dt->t", h, h)[:, None] / HIDDEN,
    "means of a transpose": lambda h: torch.permute(h, (-1, 0)).square().mean(-1, keepdim=True),
    "another divisor": lambda h: torch.einsum("td,td->t", h, h)[:, None] / (HIDDEN - 1),
    "a row of means": lambda h: torch.linalg.vecdot(h, h)[None] / HIDDEN,
    "a mean added twice": lambda h: torch.add(*[h.square().mean(-1, keepdim=True)] * 2, alpha=0.5),
    "a mean subtracted": lambda h: torch.sub(1e3, h.square().mean(-1, keepdim=True), alpha=0.5),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_of_a_mean_is_no_norm(name):
    x, w = fresh(ROWS, HIDDEN), fresh(HIDDEN)
    made = run(lambda x, w: norm(x, w, TWINS[name](x.float())), x, w)
    assert not made.fused
    check_same(made.got, made.want)


def test_numbers_that_broadcast_are_no_numbers():
    """A tensor of ones makes rows of one scale, and a divisor of several rows makes rows."""

    def model(x, w, s):
        y = norm(x, w, x.float().square().mean(-1, keepdim=True))
        rows = (y.float() / (s * torch.ones(ROWS, 1))).clamp(-448, 448).to(E4M3FN)
        total = x[:1].float().square().sum(-1, keepdim=True) / torch.full((ROWS, 1), 64.0)
        return rows, x[:1].float() * torch.rsqrt(total + 1e-6)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    assert made.kinds == ["rms_norm"]
    assert any("each row" in r or "one value per row" in r for r in made.reasons), made.reasons
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    "product",
    [
        torch.inner,
        lambda x, w: torch.einsum("td,nd->tn", x, w),
        lambda x, w: torch.einsum("td,nd->nt", x, w).t(),
        lambda x, w: torch.tensordot(x, w, ([1], [1])),
        lambda x, w: x.permute(0, -1) @ w.permute(-1, 0),
    ],
)
def test_permutations_are_read_as_torch_means_them(product):
    x, w = fresh(ROWS, HIDDEN), (fresh(HIDDEN, HIDDEN) * 0.1).bfloat16()
    made = run(product, x, w)
    assert made.kinds == ["skinny_gemm"] and not made.rejected, made.reasons
    exact = x.double() @ w.double().t()
    off = (made.got.double() - exact).abs().max()
    assert off <= 2 * (made.want.double() - exact).abs().max() + 0.01 * exact.abs().max()


def quantised(y, s):
    return (y.float() / s).clamp(-448, 448)


BUFFERS = {
    "new": lambda y, s, out: torch.empty(y.shape, dtype=E4M3FN).copy_(quantised(y, s)),
    "alike": lambda y, s, out: torch.empty_like(y, dtype=E4M3FN).copy_(quantised(y, s)),
    "given": lambda y, s, out: out.copy_(quantised(y, s)),
    "a part": lambda y, s, out: torch.zeros(2, ROWS, HIDDEN).to(E4M3FN)[0].copy_(quantised(y, s)),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_filled_with_the_quantised_values(name):
    def model(x, s, out):
        return BUFFERS[name](functional.silu(x) * x.flip(0), s, out)

    out = torch.zeros(ROWS, HIDDEN).to(E4M3FN)
    made = run(model, fresh(ROWS, HIDDEN), torch.rand(1) + 0.5, out)
    assert made.kinds == ["silu_mul_quant"] and not made.rejected, made.reasons
    check_same(made.got, made.want)


def test_a_residual_that_is_updated_in_place_by_a_copy():
    def model(x, residual, w):
        residual.copy_(x + residual)
        return norm(residual, w, residual.float().square().mean(-1, keepdim=True)), residual.clone()

    x, residual, w = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN)
    made = run(model, x, residual, w)
    assert made.kinds == ["add_rms_norm"], made.reasons
    check_same(made.got, made.want)
    mine, theirs = residual.clone(), residual.clone()
    with torch.no_grad():
        check_same(made.calls(x, mine, w), model(x, theirs, w))
    assert torch.equal(mine, theirs)


def test_a_buffer_that_broadcasts_is_left_alone():
    def model(x, s):
        q = torch.empty(3, ROWS, HIDDEN, dtype=E4M3FN)
        return q.copy_(quantised(functional.silu(x) * x.flip(0), s))

    made = run(model, fresh(ROWS, HIDDEN), torch.rand(1) + 0.5)
    assert made.kinds == ["silu_mul"]
    check_same(made.got, made.want)
