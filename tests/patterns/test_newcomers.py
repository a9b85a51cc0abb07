"""Models as somebody writes them who has read none of the patterns: each fuses or is told why not.

The forms are those that torch or a reordering hides: products of a vector, batches that repeat a
matrix, weighted sums, a SiLU multiplied in another order, norms by way of a root.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

ROWS, DEPTH, COLUMNS = 5, 64, 48


def silu_by_parts(x, w, b):
    gate, up = x.float(), x.flip(0).float()
    return (up * torch.sigmoid(gate) * gate).to(x.dtype)


def silu_of_the_product(x, w, b):
    gate, up = x.float(), x.flip(0).float()
    return (gate * up * torch.sigmoid(gate)).to(x.dtype)


def silu_as_a_quotient(x, w, b):
    gate, up = x.float(), x.flip(0).float()
    return (gate * up / (1 + torch.exp(-gate))).to(x.dtype)


def silu_of_a_quotient(x, w, b):
    gate, up = x.float(), x.flip(0).float()
    return (gate * (up / (torch.exp(-gate) + 1))).to(x.dtype)


def matrix_times_vector(x, w, b):
    return w @ x[0]


def vector_with_bias(x, w, b):
    return torch.addmv(b, w, x[0])


def vector_plus_vector(x, w, b):
    return w @ x[0] + b


def vector_in_a_linear(x, w, b):
    return functional.linear(x[0], w, b)


def matrix_times_column(x, w, b):
    return w @ x[0][:, None]


def many_matrices_times_vector(x, w, b):
    return w.view(4, -1, DEPTH) @ x[0]


def bias_of_no_weight(x, w, b):
    return torch.addmm(b, x, w.t(), beta=0)


def bias_of_one_row(x, w, b):
    return torch.addmm(b[None], x, w.t())


def transposed_rows(x, w, b):
    return functional.linear(x.t().contiguous().t(), w)


def transposed_batch(x, w, b):
    return functional.linear(x.view(1, ROWS, DEPTH).expand(2, ROWS, DEPTH).mT.contiguous().mT, w, b)


def last_tokens(x, w, b):
    return functional.linear(x.repeat(3, 1, 1)[:, -1:], w)


def swapped_batch(x, w, b):
    return functional.linear(x.repeat(3, 1, 1).transpose(0, 1), w)


def repeated_weight(x, w, b):
    return torch.baddbmm(b, x.repeat(2, 1, 1), w.t().expand(2, DEPTH, COLUMNS))


def repeated_rows(x, w, b):
    return torch.bmm(x.expand(3, ROWS, DEPTH), w.t().expand(3, DEPTH, COLUMNS)) + b


def one_small_row(x, w, b):
    return functional.linear(x[:1, :16], w[:16, :16].contiguous(), b[:16])


FUSED = {
    "silu_mul": [silu_by_parts, silu_of_the_product, silu_as_a_quotient, silu_of_a_quotient],
    "skinny_gemm": [
        *(matrix_times_vector, vector_with_bias, vector_plus_vector, vector_in_a_linear),
        *(matrix_times_column, many_matrices_times_vector, bias_of_no_weight, bias_of_one_row),
        *(transposed_rows, transposed_batch, last_tokens, swapped_batch, repeated_weight),
        *(repeated_rows, one_small_row),
    ],
}


def arguments(dtype=BF16):
    """Rows, a weight [n, k] and a bias."""
    w = (fresh(COLUMNS, DEPTH, dtype=F32) * 0.1).to(dtype)
    return fresh(ROWS, DEPTH, dtype=dtype), w, fresh(COLUMNS, dtype=dtype)


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("model", "kind"),
    [(model, kind) for kind, models in FUSED.items() for model in models],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_the_form_fuses_once(model, kind, dtype):
    given = arguments(dtype)
    made = run(model, *given)
    assert made.kinds == [kind], made.reasons
    assert not made.rejected
    if kind == "silu_mul":
        check_same(made.got, made.want, ulps=1)
        return
    # No further from float64 than eager, and a rounding.
    exact = model(*(argument.double() for argument in given))
    off, eager_off = ((y.double() - exact).abs().max() for y in (made.got, made.want))
    assert made.got.shape == made.want.shape and made.got.dtype == dtype
    assert off <= 2 * eager_off + torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize("rows", [2, 7])
def test_unknown_batches_of_rows_are_one_matmul(rows):
    def model(x, w):
        return functional.linear(x[:, -1:], w)

    x, w = fresh(3, 4, DEPTH), fresh(COLUMNS, DEPTH)
    made = run(model, x, w, dynamic=True)
    assert made.kinds == ["skinny_gemm"], made.reasons
    other = fresh(rows, rows, DEPTH)
    with torch.no_grad():
        got = made.calls(other, w)
    assert len(made.results) == 1
    assert torch.allclose(got.float(), model(other, w).float(), rtol=0.02, atol=0.1)


def up_first_in_half(x, w, b):
    return x.flip(0) * torch.sigmoid(x) * x


def gate_last_in_half(x, w, b):
    return torch.sigmoid(x) * (x * x.flip(0))


def quotient_in_half(x, w, b):
    return x * x.flip(0) * (1 / (1 + torch.exp(-x)))


def weighted_sum(x, w, b):
    return torch.addmm(b, x, w.t(), beta=0.5, alpha=2)


def weighted_vector(x, w, b):
    return torch.addmv(b, w, x[0], alpha=3)


def one_bias(x, w, b):
    return torch.addmm(b[:1], x, w.t())


def matrix_by_columns(x, w, b):
    return w.t() @ b


def scaled_result(x, w, b):
    one = torch.ones(())
    q, r = x.to(E4M3FN), w.to(E4M3FN)
    return torch._scaled_mm(q, r.t(), one, one, scale_result=one, out_dtype=BF16)


def widened(x, w, b):
    return functional.linear(x.float(), w.float())


def norm_by_root(x, w, b):
    rms = x.norm(2, dim=-1, keepdim=True) * DEPTH**-0.5
    return x / (rms + 1e-8)


def norm_by_half_root(x, w, b):
    return x / (x.float().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt().to(x.dtype)


REFUSED = [
    (up_first_in_half, "silu_mul: gate is not multiplied by its sigmoid first, and a multiplication"
     " (mul) is rounded to torch.bfloat16 before all three are multiplied", "silu(gate) * up"),
    (gate_last_in_half, "silu_mul: gate is not multiplied by its sigmoid first, and a"
     " multiplication (mul) is rounded to torch.bfloat16 before all three are multiplied",
     "silu(gate) * up"),
    (quotient_in_half, "silu_mul: exp (exp) is rounded to torch.bfloat16 inside the SiLU",
     "torch.nn.functional.silu"),
    (weighted_sum, "skinny_gemm: alpha is 2 and beta 0.5, expected 1 and 1",
     "alpha * torch.nn.functional.linear(x, weight) + beta * bias"),
    (weighted_vector, "skinny_gemm: alpha is 3 and beta 1, expected 1 and 1",
     "alpha * torch.nn.functional.linear(x, weight) + beta * bias"),
    (one_bias, "skinny_gemm: the bias has shape [1], expected one value per column",
     "after the matmul"),
    (matrix_by_columns, "skinny_gemm: the weight is stored as [k, n]: the matrix [64, 48] has"
     " stride 64 along k, expected 1", "Store the weight as [n, k]"),
    (scaled_result, "skinny_gemm: the matmul has a scale_result, expected None",
     "Multiply the result"),
    (widened, "skinny_gemm: both operands are halves that are converted to torch.float32 first,"
     " expected the halves", "Multiply the halves as they are"),
    (norm_by_root, "rms_norm: eps is added outside the square root", "inside the root"),
    (norm_by_half_root, "rms_norm: the norm is not in float32 throughout: sqrt (sqrt) is rounded to"
     " torch.bfloat16", ".float()"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "reason", "hint"), REFUSED, ids=lambda v: getattr(v, "__name__", "")
)
def test_the_reason_and_the_hint_are_given(model, reason, hint):
    made = run(model, *arguments())
    assert not made.fused
    found = [rejection for rejection in made.rejected if not rejection.is_note]
    assert [f"{rejection.kind}: {rejection.reason}" for rejection in found] == [reason]
    assert hint in found[0].hint
    assert "test_newcomers.py:" in found[0].source
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    ("equation", "shape"),
    [("bnk,bk->bn", (48, 64)), ("bkn,bk->bn", (64, 48)), ("bnk,bmk->bmn", (48, 64))],
)
def test_a_batch_of_stored_matrices_is_named(equation, shape):
    x = fresh(4, 3, DEPTH) if "m" in equation else fresh(4, DEPTH)
    made = run(lambda x, w: torch.einsum(equation, w, x), x, fresh(4, *shape))
    (refusal,) = made.rejected
    assert not made.fused and refusal.kind == "skinny_gemm"
    assert refusal.reason.startswith("a batch of 4 matrices [4, ")
    assert refusal.reason.endswith("], expected one matrix")
    assert "linear for each matrix of the batch" in refusal.hint
