"""Every spelling of a matmul with few rows fuses once and is no less exact than eager."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mi300_inductor.graph.rounding import drops_roundings

from .engine import BF16, E4M3FN, F16, fresh, run

ROWS, COLUMNS, DEPTH = 5, 48, 64


def linear(x, w, b):
    return functional.linear(x, w)


def linear_with_bias(x, w, b):
    return functional.linear(x, w, b)


def mm_of_transpose(x, w, b):
    return torch.mm(x, w.t())


def matmul_operator(x, w, b):
    return x @ w.T


def addmm(x, w, b):
    return torch.addmm(b, x, w.t())


def transposed_view(x, w, b):
    return torch.matmul(x, w.transpose(0, 1))


def three_dimensions(x, w, b):
    return functional.linear(x.unsqueeze(0), w, b)


def three_by_two(x, w, b):
    return torch.matmul(x.view(1, *x.shape), w.t())


def batch_of_one(x, w, b):
    return torch.bmm(x.unsqueeze(0), w.t().unsqueeze(0)).squeeze(0)


def bias_added_later(x, w, b):
    return functional.linear(x, w) + b


SPELLINGS = (
    linear,
    linear_with_bias,
    mm_of_transpose,
    matmul_operator,
    addmm,
    transposed_view,
    three_dimensions,
    three_by_two,
    batch_of_one,
    bias_added_later,
)


def scaled(a, w, sa, sw):
    return torch._scaled_mm(a, w.t(), sa, sw, out_dtype=BF16)


def check_product(got, a, w, scale=1.0, bias=None):
    """No worse than a rounding of the result and of fp32's sum against float64."""
    exact = a.double() @ w.double().t() * scale
    size = a.double().abs() @ w.double().abs().t() * abs(scale)
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    eps = torch.finfo(got.dtype).eps
    bound = eps * (exact.abs() + 2 * size * DEPTH**0.5 * 2.0**-24 / eps) + 1e-7
    error = (got.double().reshape(exact.shape) - exact).abs()
    assert got.isfinite().all() and (error <= bound).all(), float((error / bound).max())


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_every_spelling_fuses_once(spelling, dtype):
    x, w, b = (torch.randn(shape).to(dtype) for shape in ((ROWS, DEPTH), (COLUMNS, DEPTH), COLUMNS))
    made = run(spelling, x, w, b)
    assert made.kinds == ["skinny_gemm"], made.reasons
    assert not made.rejected
    assert made.got.shape == made.want.shape and made.got.dtype == dtype
    if spelling is bias_added_later:
        product = functional.linear(x.double(), w.double()).to(dtype)
        off = made.got.double() - (product + b).double()
        assert (off.abs() <= 2 * torch.finfo(dtype).eps * (product.abs() + b.abs()).double()).all()
        return
    has_bias = spelling in (linear_with_bias, addmm, three_dimensions)
    check_product(made.got, x, w, bias=b if has_bias else None)


def test_a_later_addition_is_done_in_the_epilogue():
    x, w, r = (torch.randn(s).to(BF16) for s in ((2, 3, DEPTH), (COLUMNS, DEPTH), (2, 3, COLUMNS)))
    made = run(lambda x, w, r: r + functional.linear(x, w), x, w, r)
    assert made.kinds == ["skinny_gemm"]
    assert torch.ops.aten.add.Tensor not in made.targets()
    rounded = functional.linear(x.double(), w.double()).to(BF16)
    assert ((made.got - (rounded + r)).abs() <= 0.02 * (rounded.abs() + r.abs())).all()


@pytest.mark.parametrize("change", ["second user", "broadcast", "other dtype"])
def test_an_addition_that_does_not_fit_stays_outside(change):
    def model(x, w, r):
        y = functional.linear(x, w)
        return (y + r, y) if change == "second user" else y + r

    x, w = torch.randn(ROWS, DEPTH).to(BF16), torch.randn(COLUMNS, DEPTH).to(BF16)
    shape = (2, ROWS, COLUMNS) if change == "broadcast" else (ROWS, COLUMNS)
    r = torch.randn(shape).to(torch.float32 if change == "other dtype" else BF16)
    made = run(model, x, w, r)
    assert made.kinds == ["skinny_gemm"] and not made.rejected
    assert torch.ops.aten.add.Tensor in made.targets()
    want = made.want[0] if change == "second user" else made.want
    got = made.got[0] if change == "second user" else made.got
    assert got.shape == want.shape and got.dtype == want.dtype
    assert torch.allclose(got.float(), want.float(), rtol=0.02, atol=0.1)


SCALES = ["0-D", "[1]", "[1, 1]"]
if not drops_roundings():  # torch 2.11's own _scaled_mm takes no others on a CPU
    SCALES += ["[M, 1] and [1, N]"]


@pytest.mark.parametrize("scales", SCALES)
def test_scales_of_every_form_fuse(scales):
    a, w = (torch.randn(s).to(E4M3FN) for s in ((ROWS, DEPTH), (COLUMNS, DEPTH)))
    forms = {
        "0-D": (torch.tensor(0.5), torch.tensor(0.25)),
        "[1]": (torch.tensor([0.5]), torch.tensor([0.25])),
        "[1, 1]": (torch.tensor([[0.5]]), torch.tensor([[0.25]])),
        "[M, 1] and [1, N]": (torch.rand(ROWS, 1) + 0.1, torch.rand(1, COLUMNS) + 0.1),
    }
    sa, sw = forms[scales]
    made = run(scaled, a, w, sa, sw)
    assert made.kinds == ["skinny_gemm"], made.reasons
    exact = (a.double() @ w.double().t()) * sa.double().reshape(-1, 1) * sw.double().reshape(1, -1)
    assert torch.allclose(made.got.double(), exact, rtol=2**-8, atol=1e-4)


def test_a_bias_of_scaled_mm_fuses():
    a, w = (torch.randn(s).to(E4M3FN) for s in ((ROWS, DEPTH), (COLUMNS, DEPTH)))
    bias = torch.randn(COLUMNS).to(BF16)

    def model(a, w, bias):
        one = torch.ones((), dtype=torch.float32)
        return torch._scaled_mm(a, w.t(), one, one, bias=bias, out_dtype=BF16)

    made = run(model, a, w, bias)
    assert made.kinds == ["skinny_gemm"], made.reasons
    check_product(made.got, a, w, bias=bias)


def test_an_fp8_result_is_refused_alone():
    def model(x, w, norm_weight, s):
        y = functional.rms_norm(x, x.shape[-1:], norm_weight, 1e-6)
        q = (y.float() / s).clamp(-448, 448).to(E4M3FN)
        return torch._scaled_mm(q, w.t(), s, s, out_dtype=E4M3FN), torch._scaled_mm(q, w.t(), s, s)

    weight = fresh(COLUMNS, DEPTH).to(E4M3FN)
    made = run(model, fresh(ROWS, DEPTH), weight, fresh(DEPTH), torch.tensor(0.05))
    assert made.kinds == ["rms_norm_quant"], made.reasons
    reason = "skinny_gemm: the result is torch.float8_e4m3fn, expected bfloat16, float16 or float32"
    assert made.reasons == [reason] * 2


def test_twins_are_left_alone():
    """Batches, other strides, other dtypes and scaled sums are no skinny matmul."""
    x, w = fresh(ROWS, DEPTH), fresh(DEPTH, COLUMNS)
    twins = [
        (lambda x, w: torch.bmm(x.view(1, *x.shape).repeat(2, 1, 1), w.repeat(2, 1, 1)), (x, w)),
        (lambda x, w: torch.addmm(x[:, :1], x, w, alpha=2.0), (x, w)),
        (lambda x, w: x @ w, (x.float(), w.float())),
        (lambda x, w: torch.einsum("mk,mk->m", x, x), (x, w)),
    ]
    for function, args in twins:
        made = run(function, *args)
        assert not made.fused
        assert torch.equal(made.got, made.want)


def low_rank(x, down, up, scale_x, scale_h, scale_w):
    """Two projections, the first to few columns, with static scales: their quantisations too."""
    q = (x.float() / scale_x).clamp(-448, 448).to(E4M3FN)
    h = torch._scaled_mm(q, down.t(), scale_x, scale_w, out_dtype=BF16)
    q = (h.float() / scale_h).clamp(-448, 448).to(E4M3FN)
    return torch._scaled_mm(q, up.t(), scale_h, scale_w, out_dtype=BF16)


def low_rank_operands():
    weights = fresh(32, DEPTH).to(E4M3FN), fresh(COLUMNS, 32).to(E4M3FN)
    return fresh(ROWS, DEPTH), *weights, *(torch.rand(1) + 0.1 for _ in range(3))


def test_a_quantisation_of_the_result_is_done_in_the_epilogue():
    outcome = run(low_rank, *low_rank_operands())
    assert outcome.counts == {"skinny_gemm": 2}
    assert outcome.targets().count(torch.ops.mi300.skinny_gemm_quant.default) == 1
    quantised = next(f for f in outcome.fused if f.launches_before > f.launches_after)
    assert (quantised.launches_before, quantised.launches_after) == (2, 1)
    # A code that rounds otherwise changes a term of the second sum by at most an eighth of it.
    size = outcome.want.float().abs().max()
    assert (outcome.got.float() - outcome.want.float()).abs().max() <= size / 64


def test_the_addition_between_a_matmul_and_its_quantisation_joins_them():
    def sum_quantised(x, w, residual, scale):
        h = functional.linear(x, w) + residual
        return (h.float() * scale).clamp(-448, 448).to(E4M3FN)

    operands = fresh(ROWS, DEPTH), fresh(COLUMNS, DEPTH), fresh(ROWS, COLUMNS), torch.rand(1)
    outcome = run(sum_quantised, *operands)
    (call,) = [t for t in outcome.targets() if getattr(t, "namespace", "") == "mi300"]
    assert call == torch.ops.mi300.skinny_gemm_quant.default
    ordered = [o.view(torch.int8).int() for o in (outcome.got, outcome.want)]
    assert (ordered[0] - ordered[1]).abs().max() <= 1


@pytest.mark.parametrize(
    "also",
    [
        lambda h, q: (h, q),
        lambda h, q: (h.float().abs().amax(), q),
        lambda h, q: (q, (h.float() / 2).clamp(-448, 448).to(E4M3FN)),
    ],
    ids=["a result", "a reduction", "another scale"],
)
def test_a_result_that_something_else_reads_is_not_quantised_in_the_epilogue(also):
    def both(x, w, scale):
        h = functional.linear(x, w)
        return also(h, (h.float() / scale).clamp(-448, 448).to(E4M3FN))

    outcome = run(both, fresh(ROWS, DEPTH), fresh(COLUMNS, DEPTH), torch.rand(1) + 0.1)
    assert outcome.counts == {"skinny_gemm": 1}
    assert torch.ops.mi300.skinny_gemm.default in outcome.targets()
    assert any(reason.startswith("quant: ") for reason in outcome.reasons)
