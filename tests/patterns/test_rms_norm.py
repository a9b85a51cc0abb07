"""Every spelling of RMSNorm fuses once and equals eager; what only looks like one does not fuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import FLOATS, check_same, fresh, run

ROWS, HIDDEN = 24, 128


def llama(x, w, eps):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return w * h.to(x.dtype)


def llama_weight_last(x, w, eps):
    h = x.to(torch.float32)
    return (h * (h.square().mean(dim=-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * w


def fp32_weight_then_cast(x, w, eps):
    h = x.float()
    h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)
    return (h * w.float()).to(x.dtype)


def functional_form(x, w, eps):
    return functional.rms_norm(x, (x.shape[-1],), w, eps)


def functional_eps_none(x, w, eps):
    return functional.rms_norm(x, (x.shape[-1],), w, None)


def module_form(x, w, eps):
    norm = torch.nn.RMSNorm(x.shape[-1], eps, elementwise_affine=False)
    return norm(x) * w


def gemma(x, w, eps):
    h = x.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return (h * (1.0 + w.float())).type_as(x)


def no_weight(x, w, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def functional_no_weight(x, w, eps):
    return functional.rms_norm(x, (x.shape[-1],), None, eps)


def sum_over_n(x, w, eps):
    h = x.float()
    mean = (h * h).sum(-1, keepdim=True) / x.shape[-1]
    return w * (h * torch.rsqrt(mean + eps)).to(x.dtype)


def sum_times_reciprocal_n(x, w, eps):
    h = x.float()
    mean = h.pow(2).sum(-1, keepdim=True) * (1.0 / x.shape[-1])
    return w * (h * torch.rsqrt(eps + mean)).to(x.dtype)


def one_over_sqrt(x, w, eps):
    h = x.float()
    return w * (h * (1.0 / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)


def power_minus_half(x, w, eps):
    h = x.float()
    return w * (h * torch.pow(h.pow(2).mean(-1, keepdim=True) + eps, -0.5)).to(x.dtype)


def divided_by_sqrt(x, w, eps):
    h = x.float()
    return w * (h / torch.sqrt(h.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def by_vector_norm(x, w, eps):
    h = x.float()
    mean = torch.linalg.vector_norm(h, dim=-1, keepdim=True).pow(2) / x.shape[-1]
    return w * (h * torch.rsqrt(mean + eps)).to(x.dtype)


def by_torch_norm(x, w, eps):
    h = x.float()
    mean = torch.norm(h, 2, -1, True) ** 2 * (1.0 / x.shape[-1])
    return w * (h * torch.rsqrt(mean + eps)).to(x.dtype)


def by_norm_times_itself(x, w, eps):
    h = x.float()
    size = torch.norm(h, dim=-1, keepdim=True)
    return w * (h * torch.rsqrt(size * size / x.shape[-1] + eps)).to(x.dtype)


def by_norm_squared(x, w, eps):
    h = x.float()
    size = h.norm(dim=-1, keepdim=True)
    return w * (h * torch.rsqrt(size.square() / x.shape[-1] + eps)).to(x.dtype)


def by_norm_without_its_dimension(x, w, eps):
    h = x.float()
    size = torch.linalg.norm(h, dim=-1)[..., None]
    return w * (h / torch.sqrt(size * size / x.shape[-1] + eps)).to(x.dtype)


def by_scaled_norm(x, w, eps):
    h = x.float()
    rms = torch.linalg.vector_norm(h, dim=-1, keepdim=True) / x.shape[-1] ** 0.5
    return w * (h * torch.rsqrt(rms * rms + eps)).to(x.dtype)


def promoted_by_rstd(x, w, eps):
    rstd = torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + eps)
    return w * (x * rstd).to(w.dtype)


def root_then_reciprocal(x, w, eps):
    h = x.float()
    return w * (h * (eps + torch.square(h).mean(-1, keepdim=True)).sqrt().reciprocal()).to(x.dtype)


def no_keepdim(x, w, eps):
    h = x.float()
    rstd = torch.rsqrt(h.pow(2).mean(-1) + eps)
    return w * (h * rstd.unsqueeze(-1)).to(x.dtype)


def per_head(x, w, eps):
    heads = x.view(x.shape[0], 2, -1)
    return llama(heads, w[: heads.shape[-1]], eps)


SPELLINGS = (
    llama,
    llama_weight_last,
    fp32_weight_then_cast,
    functional_form,
    functional_eps_none,
    module_form,
    gemma,
    no_weight,
    functional_no_weight,
    sum_over_n,
    sum_times_reciprocal_n,
    one_over_sqrt,
    power_minus_half,
    divided_by_sqrt,
    by_vector_norm,
    by_torch_norm,
    by_norm_times_itself,
    by_norm_squared,
    by_norm_without_its_dimension,
    by_scaled_norm,
    promoted_by_rstd,
    root_then_reciprocal,
    no_keepdim,
    per_head,
)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda f: f.__name__)
def test_every_spelling_fuses_once(spelling, dtype, eps):
    x = fresh(ROWS, HIDDEN, dtype=dtype, special=True)
    made = run(spelling, x, fresh(HIDDEN, dtype=dtype), eps)
    assert made.kinds == ["rms_norm"], made.reasons
    assert not made.rejected
    check_same(made.got, made.want, lost=dtype)


def rsqrt_alone(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))).to(x.dtype)


def sum_over_n_alone(x, w):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).sum(-1, keepdim=True) / x.shape[-1]) * w.float()).to(x.dtype)


def sqrt_alone(x, w):
    h = x.float()
    return w * (h / h.square().mean(-1, keepdim=True).sqrt()).to(x.dtype)


def reciprocal_alone(x, w):
    h = x.float()
    return (h * (1 / (h * h).mean(-1, keepdim=True).sqrt()) * (1 + w.float())).to(x.dtype)


def no_keepdim_alone(x, w):
    h = x.float()
    return w * (h * h.pow(2).mean(-1).pow(-0.5)[..., None]).to(x.dtype)


def zero_added(x, w):
    return functional.rms_norm(x, (HIDDEN,), w, 0.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "spelling",
    [rsqrt_alone, sum_over_n_alone, sqrt_alone, reciprocal_alone, no_keepdim_alone, zero_added],
    ids=lambda f: f.__name__,
)
def test_a_norm_without_eps_is_one_with_an_eps_of_zero(spelling, dtype):
    x = fresh(ROWS, HIDDEN, dtype=dtype, special=True)
    x[5] = 0.0  # NaN in eager, and no error
    made = run(spelling, x, fresh(HIDDEN, dtype=dtype))
    assert made.kinds == ["rms_norm"] and not made.rejected, made.reasons
    assert "eps=0.0" in made.fused[0].op
    assert made.got[5].isnan().all()
    check_same(made.got, made.want, lost=dtype)
