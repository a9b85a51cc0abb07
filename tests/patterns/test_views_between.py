"""What stands between a norm or an activation and its quantisation: views, moves, factors.

One scale for the whole tensor quantises each element alone, so that any view may come first. Scales
of rows are those of the rows that the kernel has.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import BF16, E4M3FN, F32, check_quantised, check_same, fresh, run

TOKENS, HEADS, DEPTH = 6, 4, 64


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gated(x, w):
    return functional.silu(x) * x.flip(0)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def scaled_by(y, amax):
    scale = amax.float() / 448
    return quant(y, scale), scale


PRODUCERS = {"rms_norm_quant": norm, "silu_mul_quant": gated}
VIEWS = {
    "flat": lambda y: y.view(-1),
    "heads": lambda y: y.view(TOKENS, HEADS * DEPTH),
    "halves": lambda y: y.reshape(-1, DEPTH // 2),
    "twice": lambda y: y.view(-1).view(2, -1),
    "outer": lambda y: y.flatten(1)[None],
    "five": lambda y: y.view(2, 3, 2, 2, DEPTH),
    "narrowed": lambda y: y.flatten().contiguous().view(DEPTH, -1),
}


def inputs(dtype=BF16):
    return fresh(TOKENS, HEADS, DEPTH, dtype=dtype), fresh(DEPTH, dtype=dtype)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", PRODUCERS)
def test_one_scale_is_applied_through_any_view(kind, view):
    def model(x, w, s):
        return quant(VIEWS[view](PRODUCERS[kind](x, w)), s)

    made = run(model, *inputs(), torch.rand(1) + 0.5)
    assert made.kinds == [kind] and not made.rejected, made.reasons
    check_same(made.got, made.want)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", PRODUCERS)
def test_a_scale_of_the_whole_tensor_is_computed_through_any_view(kind, view):
    def model(x, w):
        y = VIEWS[view](PRODUCERS[kind](x, w))
        return scaled_by(y, y.abs().amax())

    made = run(model, *inputs())
    assert made.kinds == [kind] and not made.rejected, made.reasons
    check_quantised(made.got, made.want)


def test_the_whole_tensor_may_be_viewed_otherwise_for_its_scale():
    def model(x, w):
        y = norm(x, w)
        return scaled_by(y.view(-1), y.view(TOKENS, -1).abs().amax())

    made = run(model, *inputs())
    assert made.kinds == ["rms_norm_quant"], made.reasons
    check_quantised(made.got, made.want)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, F32])
def test_views_with_several_scales_and_a_result_that_is_used_too(dtype):
    def model(x, w, s):
        y = norm(x, w).view(TOKENS, -1)
        return quant(y, s), quant(y.view(-1), s * 2), y, y.sum(-1)

    made = run(model, *inputs(dtype), torch.rand(1) + 0.5)
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    assert len(made.fused[0].outputs) == 3
    check_same(made.got[:3], made.want[:3])


def test_views_of_unknown_sizes():
    def model(x, w, s):
        y = norm(x, w)
        return quant(y.view(-1), s), quant(y.flatten(1), s * 2), quant(y.flatten(0, 1), s * 3)

    made = run(model, *inputs(), torch.rand(1) + 0.5, dynamic=True)
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    check_same(made.got, made.want)
    x, w, s = fresh(9, 3, DEPTH), fresh(DEPTH), torch.rand(1) + 0.5
    with torch.no_grad():
        check_same(made.calls(x, w, s), model(x, w, s))
    assert len(made.results) == 1


def rows_of_heads(x, w, s):
    y = norm(x, w).view(TOKENS, -1)
    return quant(y, y.abs().amax(-1, keepdim=True).float() / 448)


def groups_of_two_rows(x, w, s):
    y = norm(x, w).view(-1, 2 * DEPTH)
    return quant(y, y.abs().amax(-1, keepdim=True).float() / 448)


def static_rows_of_heads(x, w, s):
    y = norm(x, w).view(TOKENS, -1)
    return quant(y, s * torch.ones(TOKENS, 1))


@pytest.mark.parametrize("model", [rows_of_heads, groups_of_two_rows, static_rows_of_heads])
def test_scales_of_other_rows_are_refused_with_the_shapes(model):
    made = run(model, *inputs(), torch.rand(1) + 0.5)
    (refusal,) = made.rejected
    shape = list(made.want.shape)
    assert made.kinds == ["rms_norm"] and refusal.kind == "rms_norm_quant"
    assert refusal.reason == (
        f"the result of the norm or activation, [6, 4, 64], is viewed as {shape} before it is "
        "quantised, and each of these rows has a scale"
    )
    assert refusal.hint.startswith("Quantise before the view, with a scale for each row")
    check_same(made.got, made.want)


def test_the_hint_for_other_rows_leads_to_the_fusion():
    def model(x, w):
        y = norm(x, w)
        q, scale = scaled_by(y, y.abs().amax(-1, keepdim=True))
        return q.view(TOKENS, -1), scale

    made = run(model, *inputs())
    assert made.kinds == ["rms_norm_quant"] and not made.rejected, made.reasons
    check_quantised(made.got, made.want)


MOVES = {
    "a transposition (permute)": lambda y: y.transpose(0, 1),
    "a slice (slice_1)": lambda y: y[-2:],
    "a selection (select)": lambda y: y[:, 0],
    "an expansion (expand)": lambda y: y[:, :, None].expand(-1, -1, 3, -1),
    "a transposition (permute) and a slice (slice_1)": lambda y: y.transpose(0, 1)[1:].reshape(-1),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_is_named_in_a_note(name):
    made = run(lambda x, w, s: quant(MOVES[name](norm(x, w)), s), *inputs(), torch.rand(1) + 0.5)
    (note,) = made.rejected
    assert made.kinds == ["rms_norm"] and note.kind == "quant" and note.is_note
    assert note.reason == (
        "between the result of the norm or activation and its quantisation "
        f"{'stand' if ' and ' in name else 'stands'} {name}"
    )
    assert "Quantise first and move the FP8 tensor instead" in note.hint
    check_same(made.got, made.want)


def test_what_computes_other_values_leaves_a_note():
    made = run(lambda x, w, s: quant(norm(x, w).cumsum(-1), s), *inputs(), torch.rand(1) + 0.5)
    assert made.reasons == [
        "quant: the quantised value is not the result of an RMSNorm or of SiLU*mul, so there is no "
        "kernel to merge it into"
    ]
    check_same(made.got, made.want)
