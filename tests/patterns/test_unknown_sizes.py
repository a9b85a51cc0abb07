"""Sizes that are not known while compiling, and none at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from .engine import check_same, fresh, run
from .test_composition import HIDDEN, norm, quant, scale


def test_unknown_row_counts_fuse_and_add_no_guard():
    def model(x, r, w, s):
        h = x + r
        y = norm(h, w)
        a = y.abs().amax(-1, keepdim=True).float() / 448
        return quant(y, a), h, a

    args = [fresh(2, 9, HIDDEN), fresh(2, 9, HIDDEN), fresh(HIDDEN), scale()]
    made = run(model, *args, dynamic=True)
    assert made.kinds == ["add_rms_norm_quant"], made.reasons
    for batch, rows in ((3, 5), (7, 64), (4, 2)):
        more = [fresh(batch, rows, HIDDEN), fresh(batch, rows, HIDDEN), args[2], args[3]]
        with torch.no_grad():
            got, want = made.calls(*more), model(*more)
        assert torch.equal(got[1], want[1])
    assert len(made.results) == 1


def check_other_sizes(made, model):
    """Calls what was compiled for unknown sizes with others: no other graph, and eager's values."""
    for sizes in ((3, 32), (9, 80)):
        more = [fresh(*sizes), fresh(sizes[-1])]
        with torch.no_grad():
            check_same(made.calls(*more), model(*more))
    assert len(made.results) == 1


@pytest.mark.parametrize("divides", ["/", "* 1 /"])
def test_a_sum_is_divided_by_a_size_that_is_unknown(divides):
    def model(x, w):
        h = x.float()
        total = (h * h).sum(-1, keepdim=True)
        mean = total / x.shape[-1] if divides == "/" else total * (1 / x.shape[-1])
        return (h * torch.rsqrt(mean + 1e-6)).to(x.dtype) * w

    made = run(model, fresh(6, 64), fresh(64), dynamic=True)
    assert made.kinds == (["rms_norm"] if divides == "/" else []), made.reasons
    check_other_sizes(made, model)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "root_of_mean",
    [
        lambda h: h.norm(dim=-1, keepdim=True) / h.shape[-1] ** 0.5,
        lambda h: h.norm(dim=-1, keepdim=True) * h.shape[-1] ** -0.5,
        lambda h: torch.linalg.vector_norm(h, dim=-1, keepdim=True) / math.sqrt(h.shape[-1]),
        lambda h: h.square().sum(-1).sqrt()[:, None] / math.sqrt(h.shape[-1]),
    ],
)
def test_a_root_is_divided_by_that_of_the_size(root_of_mean, dynamic):
    def model(x, w):
        h = x.float()
        return (h / root_of_mean(h)).to(x.dtype) * w

    made = run(model, fresh(6, 64, special=True), fresh(64), dynamic=dynamic)
    assert made.kinds == ["rms_norm"] and not made.rejected, made.reasons
    check_same(made.got, made.want)
    if dynamic:
        check_other_sizes(made, model)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "factor",
    [
        lambda h: h.shape[-1] ** -0.5,
        lambda h: h.shape[0] ** 0.5,
        lambda h: h.shape[-1] ** 0.25,
        lambda h: h.shape[-1],
        lambda h: h[0, 0].abs() + 1,
    ],
)
def test_a_root_that_is_divided_by_something_else_is_refused(factor, dynamic):
    def model(x):
        return x / (x.norm(dim=-1, keepdim=True) / factor(x))

    made = run(model, fresh(6, 64).float(), dynamic=dynamic)
    assert not made.fused
    (refused,) = made.rejected
    assert refused.reason.startswith("x is divided by a multiple of the root of its squares")
    assert "with any other factor in the weight; eps may be 0.0" in refused.hint
    check_same(made.got, made.want)


def test_every_size_may_be_unknown():
    def model(x, w, u, v):
        y = functional.silu(functional.linear(x, u)) * functional.linear(x, v)
        return norm(x, w), y

    def args(rows, hidden, inner):
        return [fresh(rows, hidden), fresh(hidden), fresh(inner, hidden), fresh(inner, hidden)]

    made = run(model, *args(6, 64, 48), dynamic=True)
    assert made.counts == {"rms_norm": 1, "silu_mul": 1, "skinny_gemm": 2}, made.reasons
    for sizes in ((3, 32, 16), (9, 80, 24)):
        more = args(*sizes)
        with torch.no_grad():
            check_same(made.calls(*more)[0], norm(*more[:2]))
    assert len(made.results) == 1


def test_no_rows_fuse_as_well():
    result = run(lambda a: functional.silu(a) * a.flip(0), torch.randn(0, 64).bfloat16())
    assert result.kinds == ["silu_mul"]
    assert result.got.shape == (0, 64)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_a_batch_of_no_rows_beside_an_unknown_size_fuses(sizes):
    def model(x, w, up, s):
        y = quant(norm(x, w), s)
        rows = norm(x.flatten(0, 1), w) @ up.t()
        return y, rows.view(*x.shape[:-1], up.shape[0])

    args = [fresh(*sizes, HIDDEN), fresh(HIDDEN), fresh(3, HIDDEN), scale()]
    made = run(model, *args, dynamic=True)
    assert made.kinds == ["rms_norm", "rms_norm_quant", "skinny_gemm"], made.reasons
    check_same(made.got, made.want)


HALVES = {
    "chunk": lambda x: x.chunk(2, -1),
    "slices": lambda x: (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]),
    "interleaved": lambda x: (x[..., ::2], x[..., 1::2]),
    "view": lambda x: x.view(*x.shape[:-1], 2, -1).unbind(-2),
    "up first": lambda x: x.chunk(2, -1)[::-1],
}


@pytest.mark.parametrize("name", HALVES)
def test_the_halves_of_an_unknown_width_fuse(name):
    """Their product has guarded that the width is even."""

    def model(x, s):
        gate, up = HALVES[name](x)
        y = functional.silu(gate) * up
        return y, quant(y, s)

    made = run(model, fresh(6, 64, special=True), scale(), dynamic=True)
    assert made.kinds == ["silu_mul_quant"] and not made.rejected, made.reasons
    check_same(made.got, made.want)
    for sizes in ((3, 32), (9, 82)):
        more = [fresh(*sizes), scale()]
        with torch.no_grad():
            check_same(made.calls(*more), model(*more))
    assert len(made.results) == 1


@pytest.mark.parametrize("name", ["chunk", "slices", "interleaved"])
def test_halves_that_are_broadcast_are_eagers(name):
    def model(x):
        gate, up = HALVES[name](x)
        return functional.silu(gate) * up

    made = run(model, fresh(6, 64), dynamic=True)
    x = fresh(6, 3)
    with torch.no_grad():
        check_same(made.calls(x), model(x))
    assert len(made.results) == 2 and not made.results[1].fused
    with torch.no_grad(), pytest.raises(RuntimeError, match="size of tensor|[Ss]hape|broadcast"):
        made.calls(fresh(6, 5))


def test_unknown_widths_of_two_tensors_fuse_once_they_are_multiplied():
    def model(gate, up):
        return functional.silu(gate) * up

    made = run(model, fresh(6, 64), fresh(6, 64), dynamic=True)
    assert made.kinds == ["silu_mul"]
    gate, up = fresh(6, 48), fresh(6, 1)
    with torch.no_grad():
        check_same(made.calls(gate, up), model(gate, up))
