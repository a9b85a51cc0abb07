"""What is no plain matmul with one matrix on the right, and what only looks like one."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, fresh, run

ROWS, COLUMNS, DEPTH = 5, 48, 64


def test_a_batch_of_experts_is_refused():
    x, w = fresh(4, ROWS, DEPTH), fresh(4, COLUMNS, DEPTH)
    for model in (
        lambda x, w: torch.bmm(x, w.mT),
        lambda x, w: torch.einsum("emk,enk->emn", x, w),
        lambda x, w: torch.baddbmm(x.new_zeros(1), x, w.mT),
    ):
        made = run(model, x, w)
        reason = "skinny_gemm: a batch of 4 matrices [4, 64, 48], expected one matrix"
        assert made.reasons == [reason]
        assert torch.equal(made.got, made.want)


def test_rows_that_stand_on_the_right_are_refused():
    w, x = fresh(80, DEPTH), fresh(3, DEPTH)
    reason = "skinny_gemm: the few rows are the columns of the second operand {}, and the first {}"
    cases = [
        (lambda w, x: w @ (x + x).t(), "[64, 3]", "[80, 64] is the weight"),
        (lambda w, x: w @ x[0][:, None], "[64, 1]", "[80, 64] is the weight"),
        (lambda w, x: w @ (x + x)[:, :, None], "[3, 64, 1]", "[3, 80, 64] is the weight"),
    ]
    for model, columns, weight in cases:
        made = run(model, w, x)
        assert made.reasons == [reason.format(columns, weight)]
        assert "torch.nn.functional.linear(x, weight)" in made.rejected[0].hint


@pytest.mark.parametrize(
    "repeat", [lambda x: x.expand(3, *x.shape), lambda x: x[None].repeat(3, 1, 1)]
)
def test_rows_that_are_repeated_for_each_expert_are_no_weight(repeat):
    x, experts = fresh(ROWS, DEPTH), fresh(3, COLUMNS, DEPTH)
    made = run(lambda x, w: torch.bmm(repeat(x), w.mT), x, experts)
    reason = f"skinny_gemm: a batch of 3 matrices [3, {DEPTH}, {COLUMNS}], expected one matrix"
    assert made.reasons == [reason]
    assert torch.equal(made.got, made.want)


def test_attention_is_no_candidate():
    """Batches of products whose operands are both computed are not matmuls with few rows."""
    q, k, v = (fresh(1, 2, 4, 16) for _ in range(3))
    made = run(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, q, k, v)
    assert not made.fused and not made.rejected
    assert torch.equal(made.got, made.want)


def test_a_row_on_a_gpu_that_tunes_is_a_matmul():
    """Coordinate descent has torch decompose a matmul of one row into a product and a sum."""

    def decomposed(x, w):
        product = x.float().unsqueeze(2) * w.t().float().unsqueeze(0)
        return product.sum(1).to(x.dtype)

    x, w = fresh(1, DEPTH), fresh(COLUMNS, DEPTH)
    made = run(decomposed, x, w)
    assert made.kinds == ["skinny_gemm"], made.reasons
    assert torch.allclose(made.got.float(), functional.linear(x, w).float(), rtol=0.02, atol=0.1)


def test_sums_of_products_that_are_no_matmul_are_left_alone():
    a, b = fresh(ROWS, DEPTH), fresh(ROWS, DEPTH)
    twins = [
        lambda a, b: (a * b[0]).float().sum(-1).to(BF16),  # rounds each product
        lambda a, b: (a.float() * b.float()).sum(-1).to(BF16),  # two matrices
        lambda a, b: (a.float() * b[0].float()).sum(0).to(BF16),  # over the rows
        lambda a, b: (a.float() * a[0].float()).mean(-1).to(BF16),
        lambda a, b: (a.float() * b[:, :1].float()).sum(-1).to(BF16),
    ]
    for twin in twins:
        made = run(twin, a, b)
        assert not made.fused and torch.equal(made.got, made.want)


def test_sums_of_unknown_size_are_compared():
    def model(x, w):
        total = (x.float() * w.float()).sum((0, 1)).to(BF16)
        return total, (x.float() * w[0].float()).sum(-1).to(BF16), (x.float() * x.float()).sum(0)

    x, w = fresh(7, DEPTH), fresh(7, DEPTH)
    made = run(model, x, w, dynamic=True)
    assert made.kinds == ["skinny_gemm"] and not made.rejected
    assert torch.equal(made.got[2], made.want[2]) and torch.equal(made.got[0], made.want[0])
    assert torch.allclose(made.got[1].float(), made.want[1].float(), rtol=0.01, atol=0.05)
