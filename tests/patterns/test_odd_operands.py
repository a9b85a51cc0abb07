"""Operands that no kernel takes cost a fusion and no graph, and what is no miss is a note."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

HIDDEN = 64
LIMIT = 448.0


def norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def plain(x):
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)


def quantize(y, scale):
    return (y.float() / scale).clamp(-LIMIT, LIMIT).to(E4M3FN)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, torch.complex64])
def test_a_weight_of_another_dtype_costs_its_norm_alone(dtype):
    def model(x, weight, gate, up):
        return plain(x) * weight, functional.silu(gate) * up

    weight = torch.ones(HIDDEN, dtype=dtype)
    done = run(model, fresh(4, HIDDEN), weight, fresh(4, HIDDEN), fresh(4, HIDDEN))
    assert "silu_mul" in done.kinds and "pass" not in [r.kind for r in done.rejected]
    assert any(f"is {dtype}, expected float32" in reason for reason in done.reasons) or (
        "rms_norm" in done.kinds
    )
    torch.testing.assert_close(done.got[0], done.want[0], rtol=1e-5, atol=1e-5)
    check_same(done.got[1], done.want[1])


def test_an_activation_of_one_value_costs_no_other_fusion():
    def model(a, b, x, weight):
        return functional.silu(a) * b * norm(x, weight)

    done = run(model, torch.tensor(0.5), torch.tensor(2.0), fresh(4, HIDDEN), fresh(HIDDEN))
    assert done.kinds == ["rms_norm"]
    assert {r.kind for r in done.rejected} <= {"unsupported"}
    check_same(done.got, done.want)


@pytest.mark.parametrize("gated", [False, True])
def test_groups_of_one_value_cost_their_quantisation_alone(gated):
    def model(x, other):
        y = functional.silu(x) * other if gated else norm(x, other)
        groups = y.float().view(8, HIDDEN, 1)
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / LIMIT
        return (groups / scale).clamp(-LIMIT, LIMIT).to(E4M3FN), scale

    done = run(model, fresh(8, HIDDEN), fresh(8, HIDDEN) if gated else fresh(HIDDEN))
    assert done.kinds == ["silu_mul" if gated else "rms_norm"]
    assert any("is viewed as" in reason for reason in done.reasons)
    check_same(done.got, done.want)


def test_no_rows_of_an_unknown_width():
    done = run(plain, torch.randn(0, 7), dynamic=True)
    assert "pass" not in [r.kind for r in done.rejected]
    assert done.got.shape == (0, 7)


@pytest.mark.parametrize("bounds", [(float("nan"), LIMIT), (-LIMIT, float("nan"))])
def test_a_bound_that_is_nan_is_kept(bounds):
    def model(x, weight, scale):
        return (norm(x, weight).float() / scale).clamp(*bounds).to(E4M3FN)

    done = run(model, fresh(4, HIDDEN), fresh(HIDDEN), torch.tensor(0.1))
    assert done.kinds == ["rms_norm"]
    assert done.want.float().isnan().all() and done.got.float().isnan().all()


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_a_norm_behind_an_activation_is_no_miss(dtype):
    def model(a, weight):
        return norm(functional.silu(a), weight)

    done = run(model, fresh(4, HIDDEN, dtype=dtype), fresh(HIDDEN, dtype=dtype))
    assert done.kinds == ["rms_norm"]
    assert all(rejection.is_note for rejection in done.rejected), done.reasons
    check_same(done.got, done.want)


def test_a_scale_of_several_values_is_named():
    def model(x, weight, other):
        y = norm(x, weight)
        amax = torch.maximum(
            y.abs().amax(-1, keepdim=True).float(), other.abs().amax(-1, keepdim=True).float()
        )
        return quantize(y, amax / LIMIT)

    done = run(model, fresh(4, HIDDEN), fresh(HIDDEN), fresh(4, HIDDEN))
    (reason,) = [r for r in done.reasons if "maximum of" in r]
    assert "-amin" not in reason and "expected the amax of the quantised value alone" in reason
    check_same(done.got, done.want)


def rstd(mean):
    return torch.rsqrt(mean + 1e-6)


MOVED = {
    "a slice of the mean": lambda x: x[2:] * rstd(x.square().mean(-1, keepdim=True)[2:]),
    "a repeated mean": lambda x: (
        x.repeat(2, 1) * rstd(x.square().mean(-1, keepdim=True).repeat(2, 1))
    ),
    "chosen rows": lambda x: x[[0, 2]] * rstd(x.square().mean(-1, keepdim=True)[[0, 2]]),
    "transposed squares": lambda x: x.t() * rstd(x.square().t().mean(-1, keepdim=True)),
}


@pytest.mark.parametrize("name", MOVED)
def test_squares_that_are_moved_are_named(name):
    done = run(lambda x: MOVED[name](x.float()), fresh(4, HIDDEN))
    assert done.kinds == []
    (refused,) = done.rejected
    assert refused.kind == "unsupported"
    assert refused.reason.startswith(
        "between the squares and the reciprocal root of their mean stan"
    )
    assert "Normalise x whole" in refused.hint
    check_same(done.got, done.want)


def test_a_product_that_is_quantised_and_read_is_said():
    def model(x, weight, scale):
        y = functional.linear(x, weight)
        return quantize(y, scale), y

    done = run(model, fresh(4, HIDDEN), fresh(HIDDEN, HIDDEN), torch.tensor(0.1))
    assert done.kinds == ["skinny_gemm"]
    (reason,) = [reason for reason in done.reasons if reason.startswith("quant: ")]
    assert "is read by" in reason and "output, expected its quantisation alone" in reason
    check_same(done.got[1], done.want[1])
