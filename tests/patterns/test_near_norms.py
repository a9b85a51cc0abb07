"""What divides by the root of something like a mean of squares, and is no RMSNorm: notes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from mi300_inductor.contract import ContractError, check_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

from .engine import check_same, fresh, run

ROWS, HIDDEN = 12, 64
BETWEEN = "between the squares and the reciprocal root of their mean stands "
LAYER_NORM = "so this is a LayerNorm, not an RMSNorm"


def divided(x, mean_of):
    h = x.float()
    return h * torch.rsqrt(mean_of(h.pow(2)) + 1e-6)


def mean(squares):
    return squares.mean(-1, keepdim=True)


PARTS = {
    "nansum (where)": lambda x, m: divided(x, lambda sq: sq.nanmean(-1, keepdim=True)),
    "mul (mul)": lambda x, m: divided(x, lambda sq: mean(sq * m)),
    "mul (mul_1)": lambda x, m: (
        x * torch.rsqrt((x * x * m).sum(-1, keepdim=True) / m.sum(-1, keepdim=True) + 1e-6)
    ),
    "where (where)": lambda x, m: divided(x, lambda sq: mean(torch.where(m > 0, sq, 0.0))),
    "masked_fill (where)": lambda x, m: divided(x, lambda sq: mean(sq.masked_fill(m > 0, 0))),
    "tanh (tanh)": lambda x, m: divided(x, lambda sq: mean(sq.tanh())),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_mean_over_a_part_of_the_squares_is_named(name):
    x, m = fresh(ROWS, HIDDEN).float(), (torch.rand(ROWS, HIDDEN) > 0.3).float()
    m[:, 0] = 1.0
    made = run(PARTS[name], x, m)
    assert not made.fused
    (note,) = made.rejected
    assert note.kind == "unsupported" and note.reason.startswith(BETWEEN + name), note
    assert "An RMSNorm averages all squares of a row alike" in note.hint
    held_to_strict(made)
    torch.testing.assert_close(made.got, made.want)


def held_to_strict(made):
    """Raises where `strict` would."""
    check_graph(GraphReport("0", "inference", rejected=tuple(made.rejected)), Options(strict=True))


def test_a_quotient_by_such_a_root_is_named_too():
    def model(x, m, is_mended):
        squares = x.pow(2) if is_mended else x.pow(2) * m
        return x / torch.sqrt(mean(squares) + 1e-6)

    x, m = fresh(ROWS, HIDDEN).float(), torch.rand(ROWS, HIDDEN)
    plain = run(lambda x, m: model(x, m, False), x, m)
    assert plain.reasons == [f"unsupported: {BETWEEN}mul (mul)"]
    mended = run(lambda x, m: model(x, m, True), x, m)
    assert mended.kinds == ["rms_norm"] and not mended.rejected
    check_same(mended.got, mended.want)


def by_hand(x):
    return x - x.mean(-1, keepdim=True)


LAYER_NORMS = {
    "functional": lambda x: functional.layer_norm(x, (HIDDEN,)),
    "two dimensions": lambda x: functional.layer_norm(x, (ROWS, HIDDEN)),
    "rsqrt of var": lambda x: by_hand(x) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6),
    "sqrt of var": lambda x: by_hand(x) / torch.sqrt(x.var(-1, False, True) + 1e-6),
    "std": lambda x: by_hand(x) / x.std(-1, keepdim=True),
    "std and eps": lambda x: by_hand(x) / (x.std(-1, keepdim=True) + 1e-6),
    "mean of centred squares": lambda x: by_hand(x) * torch.rsqrt(mean(by_hand(x).pow(2)) + 1e-6),
    "difference of means": lambda x: (
        by_hand(x) * torch.rsqrt(mean(x.pow(2)) - x.mean(-1, keepdim=True).pow(2) + 1e-6)
    ),
}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_a_layer_norm_is_a_note(name):
    made = run(LAYER_NORMS[name], fresh(ROWS, HIDDEN).float())
    assert not made.fused
    (note,) = made.rejected
    assert note.kind == "unsupported" and LAYER_NORM in note.reason, note
    assert "use torch.nn.RMSNorm" in note.hint
    held_to_strict(made)
    torch.testing.assert_close(made.got, made.want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: functional.group_norm(x, 4),
        lambda x: functional.instance_norm(x),
        lambda x: functional.batch_norm(x, torch.zeros(8), torch.ones(8)),
        lambda x: x / x.var(0, keepdim=True).sqrt(),
        lambda x: x * torch.rsqrt(x.mean(-1, keepdim=True).abs() + 1.0),
    ],
)
def test_norms_of_other_dimensions_are_not_mentioned(model):
    made = run(model, fresh(3, 8, 5, 6).float())
    assert not made.fused and not made.rejected, made.reasons


def test_the_contract_of_a_model_with_layer_norms_points_at_the_notes():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)

        def forward(self, x):
            return self.last(x + self.first(x).relu())

    made = run(Model(), fresh(ROWS, HIDDEN).float())
    first, last = made.rejected
    assert first.kind == last.kind == "unsupported"
    assert first.reason == last.reason  # so that a report of many layers has one line for them
    report = GraphReport("0", "inference", rejected=tuple(made.rejected))
    with pytest.raises(ContractError) as error:
        check_graph(report, Options.parse(options={"expect": {"rms_norm": 2}}))
    text = str(error.value)
    assert "got 0 of rms_norm" in text and "Read the notes below, or change the number" in text
    assert "LayerNorm, not" in " ".join(text.split())


def summed_norm(x, w):
    h = x.float()
    y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
    return y.float().pow(2).sum()


def summed_quotient(x, w):
    h = x.float()
    return (h / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w).pow(3).sum()


def summed_functional(x, w):
    return functional.rms_norm(x, (HIDDEN,), w, 1e-6).float().exp().sum()


def summed_linearly(x, w):
    return functional.rms_norm(x, (HIDDEN,), w, 1e-6).float().sum()


@pytest.mark.parametrize("take", [torch.func.grad, torch.func.grad_and_value])
@pytest.mark.parametrize(
    "function", [summed_norm, summed_quotient, summed_functional, summed_linearly]
)
def test_the_gradient_of_a_norm_in_one_graph_with_it_is_a_note(function, take):
    made = run(lambda x, w: take(function)(x, w), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert not any("norm" in kind for kind in made.kinds)
    assert made.rejected and {note.kind for note in made.rejected} == {"unsupported"}, made.rejected
    assert all("derivative" in note.reason for note in made.rejected), made.reasons
    assert all("Nothing to change" in note.hint for note in made.rejected)
    held_to_strict(made)


def test_a_forward_that_is_compiled_alone_fuses():
    made = run(lambda x, w: summed_functional(x, w), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"] and not made.rejected
