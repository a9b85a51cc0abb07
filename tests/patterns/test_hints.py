"""From the hint alone: each of these models misses a fusion, and the same model mended gets it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, check_same, fresh, run

ROWS, HIDDEN = 12, 64


def norm(x, w, eps=1e-6):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def rstd_of(h):
    return torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


def eps_as_a_tensor(x, w, s, is_mended):
    return norm(x, w, 1e-6 if is_mended else s)


def dimension_0(x, w, s, is_mended):
    h = x.float()
    dim = -1 if is_mended else 0
    return h * torch.rsqrt(h.pow(2).mean(dim, keepdim=True) + 1e-6) * w.float()


def squares_in_half(x, w, s, is_mended):
    h = x.float() if is_mended else x
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def eps_behind_the_root(x, w, s, is_mended):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    root = (mean + 1e-6).sqrt() if is_mended else mean.sqrt() + 1e-6
    return (h / root).to(x.dtype) * w


def rstd_in_half(x, w, s, is_mended):
    rstd = rstd_of(x.float())
    return w * ((x.float() * rstd).to(x.dtype) if is_mended else x * rstd.to(x.dtype))


def bound_instead_of_eps(x, w, s, is_mended):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    return w * (h * torch.rsqrt(mean + 1e-6 if is_mended else mean.clamp(min=1e-6))).to(x.dtype)


def weight_first(x, w, s, is_mended):
    h = x.float()
    normed = h * rstd_of(h) if is_mended else h * w.float() * rstd_of(h)
    return (normed * w.float() if is_mended else normed).to(x.dtype)


def scale_per_column(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s if is_mended else w.float().abs() + 0.1)


def factors_of_columns(x, w, s, is_mended):
    return quant(norm(x, w * w) if is_mended else norm(x, w) * w, s)


def scale_of_columns(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, y.abs().amax(-1 if is_mended else 0, keepdim=True).float() / 448)


def eps_added_to_the_scale(x, w, s, is_mended):
    y = norm(x, w)
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return quant(y, scale.clamp(min=1e-8) if is_mended else scale + 1e-8)


def power_of_two_scale(x, w, s, is_mended):
    y = norm(x, w)
    scale = y.abs().amax(-1, keepdim=True).float() / 448
    return quant(y, scale if is_mended else torch.exp2(torch.ceil(torch.log2(scale))))


def two_formats(x, w, s, is_mended):
    y = norm(x, w)
    second = E4M3FN if is_mended else torch.float8_e5m2
    return quant(y, s), (y.float() / (2 * s)).clamp(-448, 448).to(second)


def five_scales(x, w, s, is_mended):
    y = norm(x, w)
    return [quant(y, s * (1 + (i % 4 if is_mended else i))) for i in range(5)]


def normed_returned(x, w, s, is_mended):
    h = x.float()
    normed = (h * rstd_of(h)).to(x.dtype)
    return (w * normed,) if is_mended else (w * normed, normed)


def up_of_one_row(x, w, s, is_mended):
    return functional.silu(x) * (w.expand(x.shape) if is_mended else w)


def rstd_used_twice(x, w, s, is_mended):
    h = x.float()
    rstd = rstd_of(h)
    y = w * (h * rstd).to(x.dtype)
    return y, (y if is_mended else rstd) * 2


def rstd_returned(x, w, s, is_mended):
    h = x.float()
    rstd = rstd_of(h)
    y = w * (h * rstd).to(x.dtype)
    return (y,) if is_mended else (y, rstd)


def scale_in_half(x, w, s, is_mended):
    y = norm(x.float(), w.float())
    amax = y.abs().amax(-1, keepdim=True)
    return quant(y, (amax.float() if is_mended else amax.to(BF16)) / 448)


def scale_of_the_input(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, (y if is_mended else x).abs().amax(-1, keepdim=True).float() / 448)


def rounded_on_the_way(x, w, s, is_mended):
    scaled = norm(x, w).float() / s
    return (scaled if is_mended else scaled.to(BF16)).to(E4M3FN)


def divided_in_half(x, w, s, is_mended):
    y = norm(x, w)
    return ((y.float() if is_mended else y) / s[0]).clamp(-448, 448).to(E4M3FN)


def two_clamps(x, w, s, is_mended):
    y = norm(x, w)
    return quant(y, s), (y.float() / (s * 2)).clamp(-448, 448 if is_mended else 100).to(E4M3FN)


def sigmoid_in_half(x, w, s, is_mended):
    act = functional.silu(x) if is_mended else x / (1 + torch.exp(-x))
    return act * x.flip(0)


def up_of_another_shape(x, w, s, is_mended):
    return functional.silu(x) * (x.flip(0) if is_mended else x[:, :1])


def stored_by_columns(x, w, s, is_mended):
    weight = x.new_ones(HIDDEN, HIDDEN).tril()
    return x @ (weight.t() if is_mended else weight)


def every_other_column(x, w, s, is_mended):
    weight = x.new_ones(HIDDEN, 2 * HIDDEN).tril()[:, ::2]
    return functional.linear(x, weight.contiguous() if is_mended else weight)


def eps_with_an_alpha(x, w, s, is_mended):
    h = x.float()
    mean = h.pow(2).mean(-1, keepdim=True)
    shifted = mean + 1e-6 if is_mended else torch.add(s * 0 + 1e-6, mean, alpha=3)
    return (h * torch.rsqrt(shifted)).to(x.dtype) * w


def squares_by_einsum(x, w, s, is_mended):
    h = x.float() if is_mended else x
    mean = torch.einsum("td,td->t", h, h)[:, None].float() / HIDDEN
    return (x.float() * torch.rsqrt(mean + 1e-6)).to(x.dtype) * w


def weight_added_to_one(x, w, s, is_mended):
    h = x.float() * rstd_of(x.float())
    return (h * (1 + w.float()) if is_mended else h + h * w.float()).to(x.dtype)


def factor_behind_the_norm(x, w, s, is_mended):
    return quant(norm(x, w), s / 2) if is_mended else quant(norm(x, w) * 2, s)


def rows_of_other_heads(x, w, s, is_mended):
    y = norm(x, w)
    y = y if is_mended else y.view(-1, 2 * HIDDEN)
    return quant(y, y.abs().amax(-1, keepdim=True).float() / 448).view(-1, 2 * HIDDEN)


def amax_of_both_ends(x, w, s, is_mended):
    y = norm(x, w)
    ends = torch.maximum(y.amax(-1, keepdim=True), -y.amin(-1, keepdim=True))
    return quant(y, (y.abs().amax(-1, keepdim=True) if is_mended else ends).float() / 448)


def amax_used_twice(x, w, s, is_mended):
    y = norm(x, w)
    amax = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-4)
    if is_mended:
        scale = amax / 448
        return quant(y, scale), scale > 1
    return (y.float() * (448 / amax)).clamp(-448, 448).to(E4M3FN), amax / 448 > 1


MISSES = [
    (amax_used_twice, "rms_norm_quant", "Compute from that scale what else is needed, 1 / scale"),
    (rstd_in_half, "rms_norm", "Keep the reciprocal root in float32"),
    (bound_instead_of_eps, "rms_norm", "rsqrt(mean(x.float()**2, -1, keepdim=True) + eps)"),
    (weight_first, "rms_norm", "x.float() * rsqrt(mean(x.float()**2, -1, keepdim=True) + eps) *"),
    (scale_per_column, "rms_norm_quant", "or use one static scale"),
    (factors_of_columns, "rms_norm_quant", "Multiply the norm's weight by such"),
    (scale_of_columns, "rms_norm_quant", "Compute it as y.abs().amax(-1, keepdim=True)"),
    (eps_added_to_the_scale, "rms_norm_quant", "a lower bound is a clamp(min=...)"),
    (power_of_two_scale, "rms_norm_quant", "Compute it as y.abs().amax(-1, keepdim=True)"),
    (two_formats, "rms_norm_quant", "Quantise the value in one way everywhere"),
    (five_scales, "rms_norm_quant", "Share a scale between some of them"),
    (normed_returned, "rms_norm", "Do not return this value"),
    (up_of_one_row, "silu_mul", "gate and up of one shape"),
    (eps_as_a_tensor, "rms_norm", "Keep eps as a Python number"),
    (eps_with_an_alpha, "rms_norm", "Write mean(x.float()**2, -1, keepdim=True) + eps"),
    (squares_by_einsum, "rms_norm", "Convert x with .float() before squaring it"),
    (weight_added_to_one, "rms_norm", "Write it as h * (1 + weight)"),
    (factor_behind_the_norm, "rms_norm_quant", "Fold this factor into the scale"),
    (rows_of_other_heads, "rms_norm_quant", "Quantise before the view"),
    (amax_of_both_ends, "rms_norm_quant", "Compute it as y.abs().amax(-1, keepdim=True)"),
    (dimension_0, "rms_norm", "the normalised values are the last dimension: mean(-1, keepdim"),
    (squares_in_half, "rms_norm", "Convert x with .float() before squaring it"),
    (eps_behind_the_root, "rms_norm", "Add eps to the mean inside the root"),
    (rstd_used_twice, "rms_norm", "use the result or the input of the fused part"),
    (rstd_returned, "rms_norm", "Do not return this value"),
    (scale_in_half, "rms_norm_quant", "Compute the scale in float32"),
    (scale_of_the_input, "rms_norm_quant", "from the value that is quantised"),
    (rounded_on_the_way, "rms_norm_quant", "Convert to FP8 directly from the dtype"),
    (divided_in_half, "rms_norm_quant", "Scale in float32: y.float() / scale"),
    (two_clamps, "rms_norm_quant", "Quantise the value in one way everywhere"),
    (sigmoid_in_half, "silu_mul", "Use torch.nn.functional.silu"),
    (up_of_another_shape, "silu_mul", "gate and up of one shape"),
    (stored_by_columns, "skinny_gemm", "Store the weight as [n, k] and pass its transpose"),
    (every_other_column, "skinny_gemm", "weight = weight.contiguous()"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "kind", "hint"), MISSES, ids=lambda v: getattr(v, "__name__", "")
)
def test_a_model_changed_as_the_hint_says_gets_the_fusion(model, kind, hint):
    check_hint(model, kind, hint)


def check_hint(model, kind, hint, refused_as=None):
    """Holds a refusal to its hint, and to eager's results with and without the change.

    `refused_as` is the kind of the refusal where it is another than that of the fusion.
    """

    def inputs():
        return fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5

    broken = run(lambda x, w, s: model(x, w, s, False), *inputs())
    missed = [rejection for rejection in broken.rejected if rejection.kind == (refused_as or kind)]
    assert missed and hint in missed[0].hint, broken.rejected
    files = model.__code__.co_filename, quant.__code__.co_filename
    assert any(f"{file}:" in missed[0].source for file in files)
    mended = run(lambda x, w, s: model(x, w, s, True), *inputs())
    assert mended.counts[kind] > broken.counts[kind] or kind == "rms_norm_quant"
    assert kind in mended.counts and not mended.rejected, mended.reasons
    if kind != "skinny_gemm":
        check_same(broken.got, broken.want)
        check_same(mended.got, mended.want)
