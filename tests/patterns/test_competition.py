"""Two legal fusions that want one operation: what saves more gets it, and the loser is reported."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mi300_inductor.contract import ContractError, check_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

from .engine import BF16, E4M3FN, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def group_quant(y):
    g = y.view(ROWS, -1, 32).float()
    s = g.abs().amax(-1, keepdim=True) / 448
    return (g / s).clamp(-448, 448).to(E4M3FN)


def hold_strictly(made):
    report = GraphReport("g", "inference", tuple(made.fused), tuple(made.rejected))
    check_graph(report, Options(strict=True))


def inputs():
    return fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN), fresh(HIDDEN)


def test_an_addition_goes_to_the_norm_behind_it_and_not_to_the_matmul_before():
    def model(x, r, w, weight):
        h = r + functional.linear(x, weight)
        return norm(h, w), h

    x, r, w, _ = inputs()
    made = run(model, x, r, w, torch.randn(HIDDEN, HIDDEN).to(BF16) * 0.1)
    assert made.kinds == ["add_rms_norm", "skinny_gemm"]
    assert made.reasons == [
        "competition: an addition that it needs belongs to a fusion of kind add_rms_norm already"
    ]
    loser = made.rejected[0]
    assert "to a norm before a matmul's epilogue" in loser.hint
    assert "test_competition.py:" in loser.source and "linear" in loser.source
    hold_strictly(made)


def test_with_no_norm_behind_it_an_addition_goes_to_the_matmul():
    def model(x, r, w, weight):
        return r + functional.linear(x, weight)

    x, r, w, _ = inputs()
    made = run(model, x, r, w, torch.randn(HIDDEN, HIDDEN).to(BF16) * 0.1)
    assert made.kinds == ["skinny_gemm"] and not made.rejected
    assert torch.ops.aten.add.Tensor not in made.targets()


@pytest.mark.parametrize("plain_first", [True, False])
def test_of_two_norms_of_one_sum_the_one_that_saves_more_takes_the_addition(plain_first):
    """Computing scales of groups costs Inductor launches, so that norm saves more."""

    def model(x, r, w, v):
        h = x + r
        if plain_first:
            plain = norm(h, w)
            return plain, group_quant(norm(h, v)), h
        quantised = group_quant(norm(h, v))
        return norm(h, w), quantised, h

    made = run(model, *inputs())
    assert made.kinds == ["add_rms_norm_quant", "rms_norm"]
    assert made.reasons == [
        "competition: an addition that it needs belongs to a fusion of kind add_rms_norm_quant "
        "already"
    ]
    check_same(made.got, made.want)
    hold_strictly(made)


def test_equal_gains_are_resolved_alike_every_time():
    def model(x, r, w, v):
        h = x + r
        return norm(h, w), norm(h, v), h

    args = inputs()
    first, second = run(model, *args), run(model, *args)
    assert first.kinds == ["add_rms_norm", "rms_norm"]
    assert [f.nodes for f in first.fused] == [f.nodes for f in second.fused]
    assert [reason.partition(":")[0] for reason in first.reasons] == ["competition"]
    check_same(first.got, first.want)


def rounded_again(x, r, w, v):
    return (norm(x, w).float() / 0.3).to(BF16).to(E4M3FN)


def other_bounds(x, r, w, v):
    y = norm(x, w)
    return (y * 2.0).clamp(-448, 448).to(E4M3FN), (y * 2.0).clamp(-5, 5).to(E4M3FN)


def after_an_add(x, r, w, v):
    h = x + r
    return (norm(h, w).float() / 0.3).to(BF16).to(E4M3FN), h


def of_an_activation(x, r, w, v):
    return (functional.silu(x) * r).to(torch.float8_e5m2fnuz)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (rounded_again, "rms_norm_quant"),
        (other_bounds, "rms_norm_quant"),
        (after_an_add, "add_rms_norm_quant"),
        (of_an_activation, "silu_mul_quant"),
    ],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_a_refused_quantisation_counts_for_the_kind_it_would_have_made(model, kind):
    made = run(model, *inputs())
    assert [rejection.kind for rejection in made.rejected] == [kind], made.reasons
    with pytest.raises(ContractError, match="strict: a candidate was not fused"):
        hold_strictly(made)
    check_same(made.got, made.want)
    assert not run(model, *inputs(), disable=[kind]).rejected


def test_a_quantisation_that_stands_alone_is_an_explanation_that_strict_allows():
    made = run(lambda x, r, w, v: ((x + r).float() / 3.0).clamp(-448, 448).to(E4M3FN), *inputs())
    assert [rejection.kind for rejection in made.rejected] == ["quant"]
    hold_strictly(made)
