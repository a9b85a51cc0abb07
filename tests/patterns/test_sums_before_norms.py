"""Sums before a norm that its operator does not make: notes, and hints that lead to the fusion."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import check_same, fresh, run

ROWS, HIDDEN = 12, 64
BEFORE = "the sum before the norm "


def normed(h, w):
    return functional.rms_norm(h, (HIDDEN,), w, 1e-6), h


def with_alpha(x, r, w, is_mended):
    return normed(x + 2 * r if is_mended else torch.add(x, r, alpha=2), w)


def with_negative_alpha(x, r, w, is_mended):
    return normed(x + -0.5 * r if is_mended else torch.sub(x, r, alpha=0.5), w)


def one_batch(x, r, w, is_mended):
    r = r[:1]
    return normed(x + (r.expand(x.shape) if is_mended else r), w)


def one_row(x, r, w, is_mended):
    r = r[:, :1]
    return normed((r.expand(x.shape) if is_mended else r) + x, w)


MODELS = {
    with_alpha: ("has an alpha of 2, expected a plain sum", "and write x + r"),
    with_negative_alpha: ("has an alpha of -0.5, expected a plain sum", "and write x + r"),
    one_batch: ("of shape [1, 12, 64] to [3, 12, 64], expected one shape", "r.expand(x.shape)"),
    one_row: ("of shape [3, 1, 64] to [3, 12, 64], expected one shape", "r.expand(x.shape)"),
}


def given():
    return fresh(3, ROWS, HIDDEN), fresh(3, ROWS, HIDDEN), fresh(HIDDEN)


@pytest.mark.parametrize("model", MODELS)
def test_a_sum_that_is_left_out_is_a_note_and_the_hint_leads_to_the_fusion(model):
    reason, hint = MODELS[model]
    plain = run(lambda *args: model(*args, False), *given())
    assert plain.kinds == ["rms_norm"]
    (note,) = plain.rejected
    assert note.kind == "unsupported" and note.reason.startswith(BEFORE), note
    assert reason in note.reason and "so the norm is fused without it" in note.reason, note
    assert hint in note.hint and "test_sums_before_norms.py:" in note.source
    check_same(plain.got, plain.want)
    mended = run(lambda *args: model(*args, True), *given())
    assert mended.kinds == ["add_rms_norm"] and not mended.rejected, mended.reasons
    check_same(mended.got, mended.want)


def test_one_sum_before_two_norms_is_one_note():
    def model(x, r, w):
        h = torch.add(x, r, alpha=2)
        return normed(h, w), functional.rms_norm(h, (HIDDEN,), w * 2, 1e-6)

    made = run(model, *given())
    assert made.kinds == ["rms_norm"] * 2 and len(made.rejected) == 1, made.reasons
    disabled = run(model, *given(), disable=["add_rms_norm"])
    assert disabled.kinds == ["rms_norm"] * 2 and not disabled.rejected


@pytest.mark.parametrize(
    "before",
    [
        lambda x, r, w: x + w,
        lambda x, r, w: x + 1,
        lambda x, r, w: x - r,
        lambda x, r, w: x + r[..., :1],
        lambda x, r, w: torch.lerp(x, r, 1.0),
        lambda x, r, w: torch.addcmul(x, r, r),
    ],
)
def test_what_is_no_residual_is_not_mentioned(before):
    made = run(lambda x, r, w: functional.rms_norm(before(x, r, w), (HIDDEN,), w, 1e-6), *given())
    assert made.kinds == ["rms_norm"] and not made.rejected, made.reasons
