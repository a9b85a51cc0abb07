"""Reasons that are true of the operator, each with a hint that is followed to the letter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_same, fresh, run
from .test_composition import HIDDEN, norm

ROWS = 12


def test_a_sum_that_is_wanted_unrounded_is_computed_a_second_time():
    def model(x, residual, w):
        total = x + residual
        return norm(total.to(BF16), w), total

    def mended(x, residual, w):
        return norm((x + residual).to(BF16), w), x + residual

    args = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN, dtype=F32), fresh(HIDDEN)
    plain = run(model, *args)
    assert plain.kinds == ["rms_norm"]
    assert plain.reasons == [
        "add_rms_norm: add, the sum before the norm in torch.float32, is a result of the graph, "
        "and the norm reads it rounded to torch.bfloat16: the operator stores what its norm reads"
    ]
    assert "Compute the sum a second time for that, x + residual" in plain.rejected[0].hint
    made = run(mended, *args)
    assert made.kinds == ["add_rms_norm"] and not made.rejected
    check_same(made.got, plain.want)


def test_a_sum_that_is_read_unrounded_is_normalised_unrounded():
    def model(x, residual, w):
        total = x + residual
        return norm(total.to(BF16), w), total.tanh()

    def mended(x, residual, w):
        total = x + residual
        return norm(total, w), total.tanh()

    args = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN, dtype=F32), fresh(HIDDEN)
    plain = run(model, *args)
    (refused,) = plain.rejected
    assert refused.reason.startswith("add, the sum before the norm in torch.float32, is also used")
    assert refused.reason.endswith(
        "rounded to torch.bfloat16: the operator stores what its norm reads"
    )
    assert refused.hint.endswith("or normalise it unrounded.")
    made = run(mended, *args)
    assert made.kinds == ["add_rms_norm"] and not made.rejected
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    "scale",
    [
        torch.tensor(0.02, dtype=torch.float64),
        torch.tensor([0.02], dtype=torch.float64),
        torch.tensor(3),
    ],
    ids=["double", "one double", "integer"],
)
def test_a_scale_of_another_dtype_is_converted(scale):
    def model(x, w, scale):
        return (norm(x, w).float() / scale).clamp(-448, 448).to(E4M3FN)

    def mended(x, w, scale):
        y = norm(x, w)
        return (y.float() / scale.float()).clamp(-448, 448).to(E4M3FN)

    args = fresh(ROWS, HIDDEN), fresh(HIDDEN), scale
    plain = run(model, *args)
    assert plain.reasons == [
        f"rms_norm_quant: the scale is {scale.dtype}, expected float32, bfloat16 or float16"
    ]
    assert "(y.float() / scale.float()).clamp(-max, max).to(dtype)" in plain.rejected[0].hint
    made = run(mended, *args)
    assert made.kinds == ["rms_norm_quant"] and not made.rejected
    check_same(made.got, plain.want)


def test_the_sigmoid_of_a_negation_is_called_so():
    def model(gate, up):
        return gate * torch.sigmoid(-gate) * up

    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN))
    assert made.reasons == [
        "unsupported: the sigmoid is of a negation (neg), expected of gate itself"
    ]


def test_an_expansion_behind_the_silu_is_one_of_gate():
    def model(gate, up):
        return functional.silu(gate).expand_as(up) * up

    def mended(gate, up):
        silu = functional.silu
        return silu(gate.expand_as(up)) * up

    args = fresh(1, HIDDEN), fresh(ROWS, HIDDEN)
    plain = run(model, *args)
    (refused,) = plain.rejected
    assert "stands an expansion (expand)" in refused.reason
    assert refused.hint == "Expand gate instead: silu(gate.expand_as(up)) * up."
    made = run(mended, *args)
    assert made.kinds == ["silu_mul"] and not made.rejected
    check_same(made.got, plain.want)


def test_a_filled_fp8_tensor_is_no_quantisation():
    def model(x, w):
        cache = torch.zeros(ROWS, HIDDEN).to(E4M3FN)
        return norm(x, w).to(E4M3FN), cache, torch.full((3,), 2.5).clamp(-448, 448).to(E4M3FN)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    check_same(made.got, made.want)
