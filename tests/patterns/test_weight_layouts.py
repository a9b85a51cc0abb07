"""How a weight may lie in memory: the hint for each other layout, followed, gets the matmul."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, F32, fresh, run

ROWS, DEPTH, COLUMNS = 6, 64, 48


def linear(x, w):
    return functional.linear(x, w)


def matmul(x, w):
    return x @ w


def batch(x, w):
    return torch.bmm(x.view(2, -1, DEPTH), w.expand(2, -1, -1))


def repeated(x, w):
    return torch.bmm(x.view(2, -1, DEPTH), w.repeat(2, 1, 1))


def vector(x, w):
    return w @ x[0]


def dense(w):
    return w.contiguous()


def dense_by_columns(w):
    return w.t().contiguous().t()


def weight(*shape):
    return (fresh(*shape, dtype=F32) * 0.1).to(BF16)


DENSE = "as [n, k]: weight = weight.contiguous()."
TURNED = "as [n, k]: weight = weight.t().contiguous().t()."
STORED = "Store the weight as [n, k] and pass its transpose, as torch.nn.Linear does."
LAYOUTS = [
    (linear, (COLUMNS, 2 * DEPTH), lambda w: w[:, ::2], dense, DENSE, "is not dense: its second"
     " operand [64, 48] has stride 2 along k"),
    (linear, (COLUMNS, 1), lambda w: w.expand(-1, DEPTH), dense, DENSE, "is an expanded view of"
     " fewer values: its second operand [64, 48] has stride 0 along k"),
    (vector, (COLUMNS, 2 * DEPTH), lambda w: w[:, ::2], dense, DENSE, "is not dense: the matrix"
     " [48, 64] has stride 2 along k"),
    (vector, (COLUMNS, 1), lambda w: w.expand(-1, DEPTH), dense, DENSE, "is an expanded view of"
     " fewer values: the matrix [48, 64] has stride 0 along k"),
    (matmul, (DEPTH, 2 * COLUMNS), lambda w: w[:, ::2], dense_by_columns, TURNED, "is not dense:"
     " its second operand [64, 48] has stride 96 along k"),
    (matmul, (DEPTH, 2), lambda w: w[:, :1].expand(-1, COLUMNS), dense_by_columns, TURNED,
     "is an expanded view of fewer values: its second operand [64, 48] has stride 2 along k"),
    (matmul, (1, COLUMNS), lambda w: w.expand(DEPTH, -1), dense_by_columns, TURNED,
     "is an expanded view of fewer values: its second operand [64, 48] has stride 0 along k"),
    (matmul, (DEPTH, COLUMNS), lambda w: w, dense_by_columns, STORED, "is stored as [k, n]: its"
     " second operand [64, 48] has stride 48 along k"),
    (batch, (DEPTH, COLUMNS), lambda w: w, dense_by_columns, STORED, "is stored as [k, n]"),
    (repeated, (DEPTH, COLUMNS), lambda w: w, dense_by_columns, STORED, "is stored as [k, n]"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "view", "mend", "hint", "reason"), LAYOUTS)
def test_a_weight_that_is_copied_as_the_hint_says_is_multiplied(
    model, shape, view, mend, hint, reason
):
    x, w = fresh(ROWS, DEPTH), weight(*shape)
    broken = run(lambda x, w: model(x, view(w)), x, w)
    (refusal,) = broken.rejected
    assert not broken.fused and refusal.kind == "skinny_gemm"
    assert refusal.reason.startswith("the weight ") and reason in refusal.reason
    assert refusal.hint.endswith(hint)
    mended = run(model, x, mend(view(w)))
    assert mended.kinds == ["skinny_gemm"] and not mended.rejected, mended.reasons
    torch.testing.assert_close(mended.got, broken.want, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("model", [batch, repeated], ids=lambda f: f.__name__)
def test_a_weight_that_is_repeated_for_a_batch_is_one_matmul(model):
    x, w = fresh(ROWS, DEPTH), weight(COLUMNS, DEPTH)
    made = run(lambda x, w: model(x, w.t()), x, w)
    assert made.kinds == ["skinny_gemm"] and not made.rejected, made.reasons
    assert torch.ops.aten.repeat.default not in made.targets()
    exact = model(x.double(), w.t().double())
    assert (made.got.double() - exact).abs().max() <= 2 * (made.want.double() - exact).abs().max()


@pytest.mark.parametrize("times", [(2, 2, 1), (2, 1, 3), (1, 2, 1)])
def test_a_weight_that_is_tiled_is_another_matrix(times):
    """Only copies of the whole matrix are the matrix itself."""

    def model(x, w):
        return torch.matmul(x.repeat(1, times[1]), w.t().repeat(*times))

    x, w = fresh(ROWS, DEPTH), weight(COLUMNS, DEPTH)
    made = run(model, x, w)
    torch.testing.assert_close(made.got, made.want, rtol=0.02, atol=0.1)
