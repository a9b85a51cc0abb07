"""One x * rstd for several weights, or also without one: each result is a norm of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import mi300_inductor as mi

from .engine import BF16, E4M3FN, FLOATS, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def normed(x):
    h = x.float()
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def two_weights(x, r, w, v, s):
    n = normed(x).to(x.dtype)
    return n * w, n * v


def two_weights_in_fp32(x, r, w, v, s):
    n = normed(x)
    return (n * w).to(x.dtype), (n * (1 + v.float())).to(x.dtype)


def without_a_weight_too(x, r, w, v, s):
    n = normed(x).to(x.dtype)
    return n * w, n


def rounded_for_the_other(x, r, w, v, s):
    n = normed(x)
    return (n * w).to(x.dtype), n.to(x.dtype)


def behind_an_add(x, r, w, v, s):
    h = x + r
    n = normed(h).to(x.dtype)
    return n * w, n * v, h


def two_weights_quantised(x, r, w, v, s):
    n = normed(x).to(x.dtype)
    return quant(n * w, s), quant(n * v, s)


def one_quantised(x, r, w, v, s):
    n = normed(x).to(x.dtype)
    return quant(n * w, s), n, n.float().cumsum(-1)


def both_quantised(x, r, w, v, s):
    n = normed(x).to(x.dtype)
    return quant(n * w, s), quant(n, s)


def three_weights_of_heads(x, r, w, v, s):
    n = normed(x.view(-1, 4, 16)).to(x.dtype)
    return n * w[:16], n * v[:16], (n * w[16:32]).view(-1, HIDDEN)


MODELS = {
    two_weights: ["rms_norm"] * 2,
    two_weights_in_fp32: ["rms_norm"] * 2,
    without_a_weight_too: ["rms_norm"] * 2,
    rounded_for_the_other: ["rms_norm"] * 2,
    behind_an_add: ["add_rms_norm", "rms_norm"],
    two_weights_quantised: ["rms_norm_quant"] * 2,
    one_quantised: ["rms_norm", "rms_norm_quant"],
    both_quantised: ["rms_norm_quant"] * 2,
    three_weights_of_heads: ["rms_norm"] * 3,
}


def given(dtype):
    weights = fresh(HIDDEN, dtype=dtype), fresh(HIDDEN, dtype=dtype)
    x, r = fresh(ROWS, HIDDEN, dtype=dtype, special=True), fresh(ROWS, HIDDEN, dtype=dtype)
    return x, r, *weights, torch.rand(1) + 0.5


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("model", MODELS)
def test_each_result_is_a_norm(model, dtype):
    made = run(model, *given(dtype))
    assert made.kinds == MODELS[model], made.reasons
    assert all(item.is_note for item in made.rejected), made.reasons
    assert torch.ops.aten.rsqrt.default not in made.targets()
    check_same(made.got, made.want)


@pytest.mark.parametrize("model", [two_weights, without_a_weight_too, behind_an_add])
def test_the_number_of_rows_may_be_unknown(model):
    made = run(model, *given(BF16), dynamic=True)
    assert made.kinds == MODELS[model] and torch.ops.aten.rsqrt.default not in made.targets()
    check_same(made.got, made.want)


def test_a_matmul_may_read_what_has_no_weight():
    def model(x, w, matrix):
        n = normed(x).to(x.dtype)
        return n * w, functional.linear(n, matrix)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), fresh(96, HIDDEN))
    assert made.kinds == ["rms_norm", "rms_norm", "skinny_gemm"] and not made.rejected
    check_same(made.got[0], made.want[0])


def rstd_of(h):
    return torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_a_root_that_is_returned_too_is_refused_as_before():
    def model(x, w, v):
        h = x.float()
        rstd = rstd_of(h)
        n = (h * rstd).to(x.dtype)
        return n * w, n * v, rstd

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), fresh(HIDDEN))
    assert not made.fused
    reason = "rms_norm: rsqrt, a value inside the fusion, is a result of the graph"
    assert made.reasons == [reason] * 2
    check_same(made.got, made.want)


def test_a_graph_for_training_is_left_alone():
    def model(x, w, v):
        n = normed(x).to(x.dtype)
        return n * w, n * v

    x = fresh(ROWS, HIDDEN).requires_grad_()
    made = run(model, x, fresh(HIDDEN), fresh(HIDDEN), grad=True)
    assert not made.fused and all("is saved for backward" in reason for reason in made.reasons)
    check_same(made.got, made.want)


class TwoNorms(nn.Module):
    """A parallel block: attention and MLP read the same normalised rows with their own weights."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.rand(HIDDEN) + 0.5)
        self.last = nn.Parameter(torch.rand(HIDDEN) + 0.5)

    def forward(self, x, r):
        h = x + r
        n = normed(h).to(x.dtype)
        return n * self.first, (n * self.last).relu(), h, n


def test_the_backend_compiles_and_checks_them():
    model = TwoNorms().bfloat16().eval()
    x, r = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN)
    options = {
        "expect": {"add_rms_norm": 1, "rms_norm": 2},
        "strict": True,
        "check_numerics": True,
    }
    compiled = torch.compile(model, backend="mi300", options=options)
    report = mi.explain(compiled, x, r)
    assert report.counts == {"add_rms_norm": 1, "rms_norm": 2}
    with torch.no_grad():
        check_same(compiled(x, r), model(x, r))
