"""Tensors that are filled with a number: one where an element counts, none where the shape does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def filled(*shape, dtype=BF16):
    return torch.full(shape, 1.5, dtype=dtype)


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def quant(y, s=1.5):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def bounded(x, w):
    low, high = torch.full((ROWS, 1), -448.0), torch.full((ROWS, HIDDEN), 448.0)
    return torch.minimum(torch.maximum(norm(x, w).float(), low), high).to(E4M3FN)


def scaled_rows(x, w):
    scales = filled(ROWS, 1, dtype=F32), filled(1, ROWS, dtype=F32)
    return torch._scaled_mm(quant(x), quant(x).t(), *scales, out_dtype=BF16)


MODELS = {
    "weight": (lambda x, w: functional.linear(x, filled(16, HIDDEN)), ["skinny_gemm"]),
    "rows": (lambda x, w: functional.linear(filled(3, HIDDEN), x), ["skinny_gemm"]),
    "bias": (lambda x, w: torch.addmm(filled(ROWS), x, x.t()), ["skinny_gemm"]),
    "addend": (lambda x, w: functional.linear(x, x) + filled(ROWS, ROWS), ["skinny_gemm"]),
    "batch": (lambda x, w: torch.bmm(x[None], filled(1, HIDDEN, 3)), []),
    "vector": (lambda x, w: x @ filled(HIDDEN), []),
    "matrix": (lambda x, w: filled(3, HIDDEN) @ w, []),
    "scales of rows": (scaled_rows, ["skinny_gemm"]),
    "sum": (lambda x, w: x + filled(ROWS, HIDDEN).sum(0), []),
    "mean": (lambda x, w: x + filled(ROWS, HIDDEN).mean(-1, keepdim=True), []),
    "largest": (lambda x, w: x + filled(ROWS, HIDDEN).amax(-1, keepdim=True), []),
    "part": (lambda x, w: x + filled(2, HIDDEN)[0], []),
    "norm": (lambda x, w: norm(filled(ROWS, HIDDEN), w), []),
    "norm's weight": (lambda x, w: norm(x, filled(HIDDEN)), ["rms_norm"]),
    "residual": (lambda x, w: norm(x + filled(ROWS, HIDDEN), w), ["rms_norm"]),
    "gate": (lambda x, w: functional.silu(filled(ROWS, HIDDEN)) * x, []),
    "up": (lambda x, w: functional.silu(x) * filled(ROWS, HIDDEN), []),
    "quantised": (lambda x, w: quant(filled(ROWS, HIDDEN)), []),
    "scale": (lambda x, w: quant(norm(x, w), filled(1, dtype=F32)), ["rms_norm_quant"]),
    "scale of each row": (
        lambda x, w: quant(norm(x, w), filled(ROWS, 1, dtype=F32)),
        ["rms_norm_quant"],
    ),
    "bounds": (bounded, ["rms_norm_quant"]),
    "rows of ones": (lambda x, w: norm(x[:1] * torch.ones(ROWS, 1).to(BF16), w), ["rms_norm"]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_result_is_eagers(name, dynamic):
    model, kinds = MODELS[name]
    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), dynamic=dynamic)
    assert not any(reason.startswith("pass:") for reason in made.reasons), made.reasons
    assert dynamic or made.kinds == kinds, (made.kinds, made.reasons)
    if "skinny_gemm" in made.kinds:
        torch.testing.assert_close(made.got, made.want, rtol=0.02, atol=0.1)
    else:
        check_same(made.got, made.want)


def test_a_wide_gate_that_is_a_product_is_told_from_a_quick_gelu():
    def model(x, w):
        return functional.silu(x * w.expand(3, ROWS, HIDDEN)) * x

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.reasons == [
        "silu_mul: an operand of a multiplication (mul_1) has shape [12, 64], expected one value "
        "per element"
    ]
    check_same(made.got, made.want)
