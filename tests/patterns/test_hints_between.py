"""Hints about what stands between a norm or an activation and its quantisation, followed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import E4M3FN, check_same, fresh, run
from .test_hints import HIDDEN, ROWS, check_hint, norm, quant


def quant_rows(y):
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return quant(y, scale), scale


def columns(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s)[..., :32] if is_mended else quant(y[..., :32], s)


def parts(x, w, s, is_mended):
    y = norm(x, w)
    return list(quant(y, s).chunk(2, -1)) if is_mended else [quant(c, s) for c in y.chunk(2, -1)]


def turned(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s).t() if is_mended else quant(y.t(), s)


def turned_activation(x, w, s, is_mended):
    y = functional.silu(x) * x.flip(0)
    return quant(y, s).t() if is_mended else quant(y.t(), s)


def heads_first(x, w, s, is_mended):
    y = norm(x.view(2, 6, 4, 16), w[:16])
    if is_mended:
        return [part.transpose(1, 2) for part in quant_rows(y)]
    return list(quant_rows(y.transpose(1, 2).contiguous()))


def heads_of_the_input(x, w, s, is_mended):
    x = x.view(2, 6, 4, 16)
    y = norm(x.transpose(1, 2) if is_mended else x, w[:16])
    return quant(y if is_mended else y.transpose(1, 2), s)


def last_tokens(x, w, s, is_mended):
    x = x.view(2, 6, HIDDEN)
    return quant(norm(x[:, -1], w) if is_mended else norm(x, w)[:, -1], s)


def gathered(x, w, s, is_mended):
    order = torch.tensor([3, 3, 0])
    y = norm(x, w)
    return quant(y, s)[order] if is_mended else quant(y[order], s)


def rolled(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s).roll(1, 0) if is_mended else quant(y.roll(1, 0), s)


def rolled_in_the_row(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s).roll(1, -1) if is_mended else quant(y.roll(1, -1), s)


def masked(x, w, s, is_mended):
    y, is_kept = norm(x, w), x[:, :1] > 0
    if not is_mended:
        return quant(torch.where(is_kept, y, 0), s)
    return torch.where(is_kept, quant(y, s).view(torch.uint8), 0).view(E4M3FN)


def saturated(x, w, s, is_mended):
    v = norm(x, w).float() / s
    v = v.clamp(-448, 448) if is_mended else torch.where(v < 448, v, 448.0)
    return v.to(E4M3FN)


def saturated_by_sign(x, w, s, is_mended):
    v = norm(x, w).float() / s
    v = v.clamp(-448, 448) if is_mended else torch.where(v.abs() > 448, v.sign() * 448, v)
    return v.to(E4M3FN)


def saturated_by_fmin(x, w, s, is_mended):
    v, top = norm(x, w).float() / s, torch.tensor(448.0)
    v = v.clamp(-448, 448) if is_mended else torch.fmin(torch.fmax(v, -top), top)
    return v.to(E4M3FN)


def saturated_by_nan_to_num(x, w, s, is_mended):
    v = norm(x, w).float() / s
    return (v.clamp(-448, 448) if is_mended else v.nan_to_num(0.0, 448, -448)).to(E4M3FN)


def with_its_sign(x, w, s, is_mended):
    v = norm(x, w).float() / s
    v = v.clamp(-448, 448) if is_mended else torch.copysign(v.abs().clamp(max=448), v)
    return v.to(E4M3FN)


ROW = "move the FP8 tensor instead, with the scales of its rows where each has one"
PART = "move the FP8 tensor instead: quant(y, scale).t() or quant(y, scale)[..., :n]"
CLAMP = "write it as a clamp, (y / scale).clamp(-448, 448), which fuses"
MISSES = [
    (columns, "rms_norm_quant", PART),
    (parts, "rms_norm_quant", PART),
    (turned, "rms_norm_quant", PART),
    (turned_activation, "silu_mul_quant", PART),
    (rolled_in_the_row, "rms_norm_quant", PART),
    (heads_first, "rms_norm_quant", ROW),
    (heads_of_the_input, "rms_norm_quant", "or move the input of the norm"),
    (last_tokens, "rms_norm_quant", "or move the input of the norm"),
    (gathered, "rms_norm_quant", ROW),
    (rolled, "rms_norm_quant", ROW),
    (masked, "rms_norm_quant", "torch.where and writes into a part their .view(torch.uint8)"),
    (saturated, "rms_norm_quant", CLAMP),
    (saturated_by_sign, "rms_norm_quant", CLAMP),
    (saturated_by_fmin, "rms_norm_quant", CLAMP),
    (saturated_by_nan_to_num, "rms_norm_quant", CLAMP),
    (with_its_sign, "rms_norm_quant", CLAMP),
]


@pytest.mark.parametrize(
    ("model", "kind", "hint"), MISSES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_model_changed_as_the_hint_says_gets_the_fusion(model, kind, hint):
    check_hint(model, kind, hint, refused_as="quant")


def factors_of_rows(x, w, s, is_mended):
    factors = x[:, :1].float().abs() + 0.5
    if is_mended:
        q, scale = quant_rows(norm(x, w))
        return q, scale * factors
    return quant_rows(norm(x, w) * factors.to(x.dtype))


def factors_of_an_activation(x, w, s, is_mended):
    up, factors = x.flip(0), x[:, :1]
    if is_mended:
        return quant(functional.silu(x) * (up * factors), s)
    return quant(functional.silu(x) * up * factors, s)


def mask_of_an_activation(x, w, s, is_mended):
    up, mask = x.flip(0), w > 0
    return quant(
        functional.silu(x) * (up * mask) if is_mended else functional.silu(x) * up * mask, s
    )


def two_dtypes(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y if is_mended else y.half(), s)


def columns_of_an_activation(x, w, s, is_mended):
    up = x.flip(0)
    return quant(functional.silu(x) * (up * w) if is_mended else functional.silu(x) * up * w, s)


@pytest.mark.parametrize(
    ("model", "kind", "hint"),
    [
        (factors_of_rows, "rms_norm_quant", "or the scales of the rows) by them"),
        (factors_of_an_activation, "silu_mul_quant", "Fold this factor into the second operand"),
        (mask_of_an_activation, "silu_mul_quant", "Fold this factor into the second operand"),
        (two_dtypes, "rms_norm_quant", "quantise the result in its own dtype"),
        (columns_of_an_activation, "silu_mul_quant", "Fold this factor into the second operand"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_factor_that_is_folded_as_the_hint_says_gets_the_fusion(model, kind, hint):
    check_hint(model, kind, hint)


def weight_of_heads(x, w):
    return norm(x.view(ROWS, 4, 16), w.view(4, 16))


def weight_of_groups(x, w):
    h = x.float().view(ROWS, 4, 16)
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return h.view(ROWS, HIDDEN).to(x.dtype) * w


@pytest.mark.parametrize("normed", [weight_of_heads, weight_of_groups], ids=lambda f: f.__name__)
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("has_rows", [False, True])
def test_a_weight_for_each_group_is_named_and_no_lost_fusion(normed, is_flat, has_rows):
    def model(x, w, s):
        y = normed(x, w)
        y = y.view(ROWS, HIDDEN) if is_flat else y
        return quant_rows(y)[0] if has_rows else quant(y, s)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    (note,) = made.rejected
    assert made.kinds == ["rms_norm"] and note.kind == "unsupported" and note.is_note
    assert note.reason.startswith("the norm, of shape [12, 4, 16], has the weight ")
    assert note.reason.endswith("], expected one of shape [16] for all rows")
    assert "No kernel takes a weight for each head or group" in note.hint
    check_same(made.got, made.want)


def test_one_weight_for_all_groups_gets_the_fusion():
    def model(x, w, s):
        return quant(norm(x.view(ROWS, 4, 16), w[:16]).view(ROWS, HIDDEN), s)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    assert made.kinds == ["rms_norm_quant"] and not made.rejected
    check_same(made.got, made.want)
