"""Facts compose into the largest legal fusion; sharing costs outputs, not the fusion."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

ROWS, HIDDEN = 24, 128


def norm(x, w):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return w * h.to(x.dtype)


def quant(y, s, top=448.0):
    return (y.float() / s).clamp(-top, top).to(E4M3FN)


def scale():
    return torch.rand(1) * 0.05 + 0.01


def inputs():
    return fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6])
def test_add_norm_and_several_quantisations_are_one_operator(number):
    def model(x, r, w, *scales):
        h = x + r
        y = norm(h, w)
        return (h, *(quant(y, s) for s in scales))

    made = run(model, *inputs(), *(scale() for _ in range(number)))
    assert made.kinds == ["add_rms_norm_quant"]
    assert len(made.rejected) == max(0, number - 4), made.reasons
    assert all("at most 4 in a fusion" in reason for reason in made.reasons)
    check_same(made.got, made.want)


def test_the_normalised_value_is_an_output_when_it_is_used_too():
    def model(x, r, w, s):
        h = x + r
        y = norm(h, w)
        return quant(y, s), y, h

    made = run(model, *inputs(), scale())
    assert made.kinds == ["add_rms_norm_quant"] and not made.rejected
    check_same(made.got, made.want)
    assert torch.equal(made.got[2], made.want[2])


def test_a_residual_may_be_used_many_times():
    def model(x, r, w, v, s):
        h = x + r
        k = h + norm(h, w)
        return quant(norm(k, v), s), k * 2, h.float().sum(), h - k

    x, r, w = inputs()
    made = run(model, x, r, w, fresh(HIDDEN), scale())
    assert made.kinds == ["add_rms_norm", "add_rms_norm_quant"] and not made.rejected
    check_same(made.got[:2], made.want[:2])


def test_a_residual_stream_in_fp32_keeps_its_dtype():
    def model(x, r, w, s):
        h = x.float() + r
        return quant(norm(h, w).to(BF16), s), h

    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN, dtype=F32), fresh(HIDDEN), scale())
    assert made.kinds == ["add_rms_norm_quant"]
    assert made.got[1].dtype == F32 and torch.equal(made.got[1], made.want[1])
    check_same(made.got[0], made.want[0])


def test_the_sum_in_fp32_may_be_normalised_and_stored_in_a_half():
    def model(x, r, w, s):
        h = x.float() + r.float()
        y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF16) * w
        return quant(y, s), h.to(BF16)

    made = run(model, *inputs(), scale())
    assert made.kinds == ["add_rms_norm_quant"] and not made.rejected
    assert "sum_dtype=float32, residual_dtype=bfloat16" in made.fused[0].op
    assert torch.equal(made.got[1], made.want[1])
    check_same(made.got[0], made.want[0])


def test_of_two_kinds_of_quantisation_one_is_fused_and_the_other_reported():
    def model(x, w, s):
        y = norm(x, w)
        return quant(y, s), quant(y, s * 2), quant(y, s, top=100.0)

    x, _, w = inputs()
    made = run(model, x, w, scale())
    assert made.kinds == ["rms_norm_quant"]
    assert made.reasons == [
        "rms_norm_quant: it differs from the quantisations that were fused with the same value in "
        "clamp_min: -100.0 against -448.0"
    ]
    check_same(made.got, made.want)


def test_of_two_nodes_of_one_value_the_one_that_is_left_is_read():
    """`x * 1.0` is x, so both norms have one value, and one of them is gone when it is read."""

    def model(x, w):
        y, same = norm(x, w), norm(x * 1.0, w)
        return y.to(E4M3FN), norm(same, w), same

    x, _, w = inputs()
    made = run(model, x, w)
    assert not any(reason.startswith("pass") for reason in made.reasons), made.reasons
    assert made.kinds == ["rms_norm", "rms_norm_quant"]
    check_same(made.got, made.want)


def test_a_scale_from_the_residual_sum_makes_no_cycle():
    def model(x, r, w):
        h = x + r
        s = h.abs().amax().float() / 448.0
        return quant(norm(h, w), s), h, s

    made = run(model, *inputs())
    assert made.kinds in (["rms_norm_quant"], ["add_rms_norm"]), made.reasons
    check_same(made.got, made.want)


def test_a_scale_from_the_norm_itself_is_not_merged():
    def model(x, w):
        y = norm(x, w)
        return quant(y, y.float().mean().abs() + 0.01), y

    x, _, w = inputs()
    made = run(model, x, w)
    assert made.kinds == ["rms_norm"]
    check_same(made.got[1], made.want[1])


def test_one_operator_may_feed_another():
    """The second fusion takes results of the first as inputs, whatever the order of the nodes."""

    def model(x, r, w, v, s):
        h = x + r
        y = norm(h, w)
        g = functional.silu(y) * h
        return quant(norm(g + h, v), s), h

    x, r, w = inputs()
    made = run(model, x, r, w, fresh(HIDDEN), scale())
    assert made.kinds == ["add_rms_norm", "add_rms_norm_quant", "silu_mul"], made.reasons
    check_same(made.got[1], made.want[1])


def test_equal_results_stay_different_tensors():
    def model(x, w):
        return functional.rms_norm(x, (HIDDEN,), w), functional.rms_norm(x, (HIDDEN,), w)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.got[0].data_ptr() != made.got[1].data_ptr()
    check_same(made.got, made.want)


def test_a_clone_of_a_result_stays_a_tensor_of_its_own():
    def model(x, w):
        y = functional.rms_norm(x, (HIDDEN,), w)
        return y, y.clone()

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"]
    assert made.got[0].data_ptr() != made.got[1].data_ptr()
    check_same(made.got, made.want)


def test_views_may_stand_between_the_parts():
    def model(x, r, w, s):
        y = norm((x + r).view(2, -1, HIDDEN), w)
        return quant(y.reshape(-1, HIDDEN), s), quant(y.unsqueeze(1), s)

    made = run(model, *inputs(), scale())
    assert made.kinds == ["add_rms_norm_quant"], made.reasons
    check_same(made.got, made.want)


def test_a_transpose_stands_in_the_way():
    def model(x, w, s):
        return quant(norm(x, w).transpose(0, 1), s)

    x, _, w = inputs()
    made = run(model, x, w, scale())
    assert made.kinds == ["rms_norm"]
    check_same(made.got, made.want)


@pytest.mark.parametrize("target", ["x", "w", "s"])
def test_a_write_between_the_parts_is_not_crossed(target):
    def model(x, w, s):
        y = norm(x, w)
        {"x": x, "w": w, "s": s}[target].mul_(3)
        return quant(y, s)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), scale())
    check_same(made.got, made.want)


def test_the_result_does_not_depend_on_the_order_of_nodes():
    """Parts in another order of definition give the same fusions."""

    def first(x, r, w, v, s):
        h = x + r
        a, b = norm(h, w), norm(x, v)
        return quant(a, s), quant(b, s), functional.silu(a) * b, h

    def second(x, r, w, v, s):
        b = norm(x, v)
        q = quant(b, s)
        h = x + r
        a = norm(h, w)
        g = functional.silu(a) * b
        return quant(a, s), q, g, h

    x, r, w = inputs()
    args = (x, r, w, fresh(HIDDEN), scale())
    one, other = run(first, *args), run(second, *args)
    assert one.kinds == other.kinds
    assert [f.op for f in one.fused] != [] and {f.op for f in one.fused} == {
        f.op for f in other.fused
    }
    check_same(one.got, other.got)


def product_of_columns(a, b):
    return (functional.silu(a) * b).as_strided((8, 64), (64, 1))


def sum_of_columns(a, b):
    total = a + b
    return functional.rms_norm(total, (8,)), total.as_strided((8, 64), (64, 1))


@pytest.mark.parametrize("function", [product_of_columns, sum_of_columns])
def test_what_reads_the_memory_of_a_result_finds_eagers_layout(function):
    a, b = (torch.randn(8, 64).bfloat16().t() for _ in range(2))
    torch._dynamo.reset()
    with torch.no_grad():
        got, want = torch.compile(function, backend="mi300")(a, b), function(a, b)
    torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)
    result = run(function, a, b)
    assert len(result.fused) == 1
    torch.testing.assert_close(result.got, result.want, rtol=2**-7, atol=2**-7)
