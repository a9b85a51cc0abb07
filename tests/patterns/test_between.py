"""Operations between a norm or an activation and its quantisation: notes that name them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from .engine import E4M3FN, check_same, fresh, run

ROWS, HIDDEN = 12, 64
JOIN = "Quantise first, each part on its own with the same scale"
ROWS_MOVE = "Quantise first and move the FP8 tensor instead, with the scales of its rows"
MOVE = "Quantise first and move the FP8 tensor instead: quant(y, scale).t() or"
OTHER = "Quantise the result of the norm or activation itself if the model allows it"
ROUND = "Leave it out: .to(dtype) rounds to the nearest FP8 value"


def norm(x, w):
    h = x.float()
    return w * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def quant(y, s):
    return (y.float() / s).clamp(-448, 448).to(E4M3FN)


def filled(x, w, s):
    out = x.new_zeros(2 * ROWS, HIDDEN)
    out[:ROWS] = norm(x, w)
    return quant(out, s)


def scaled_by_rows(x, w, s):
    y = torch.stack([norm(x, w), x])
    return quant(y, y.abs().amax(-1, keepdim=True).float() / 448)


MODELS = [
    (lambda x, w, s: (norm(x, w).float() / s).round().to(E4M3FN), "stands round (round_1)", ROUND),
    (
        lambda x, w, s: (norm(x, w) / s).clamp(-448, 448).round().to(E4M3FN),
        "stands round (round_1)",
        ROUND,
    ),
    (lambda x, w, s: quant(torch.where(x > 0, norm(x, w), 0), s), "stands where (where)", JOIN),
    (lambda x, w, s: quant(norm(x, w).masked_fill(x > 0, 0), s), "masked_fill (where)", JOIN),
    (lambda x, w, s: quant(torch.cat([norm(x, w), x]), s), "stands cat (cat)", JOIN),
    (lambda x, w, s: quant(functional.pad(norm(x, w), (0, 4)), s), "constant_pad_nd", JOIN),
    (filled, "stands slice_scatter (slice_scatter)", JOIN),
    (scaled_by_rows, "stands stack (cat)", JOIN),
    (lambda x, w, s: quant(norm(x, w).flip(0), s), "stands flip (", ROWS_MOVE),
    (lambda x, w, s: quant(norm(x, w).t(), s), "a transposition (permute)", MOVE),
    (lambda x, w, s: quant(norm(x, w).chunk(2, -1)[0], s), "stands a split (split)", MOVE),
    (lambda x, w, s: quant(norm(x, w) + w, s), "stands add (add_1)", OTHER),
    (lambda x, w, s: quant(functional.gelu(norm(x, w)), s), "stands gelu (mul", OTHER),
    (lambda x, w, s: quant(functional.silu(norm(x, w)), s), "stands silu (div", OTHER),
    (lambda x, w, s: quant(norm(x, w) * norm(x.flip(0), w), s), "stands mul (mul", OTHER),
    (lambda x, w, s: quant(norm(x, w).clamp(-3, 3), s), "stands clamp (clamp_min)", OTHER),
    (
        lambda x, w, s: quant(torch.cat([norm(x, w).relu(), x]), s),
        "stand relu (relu) and cat (cat)",
        OTHER,
    ),
    (
        lambda x, w, s: quant(torch.tanh(functional.silu(x) * x.flip(0)), s),
        "stands tanh (tanh)",
        OTHER,
    ),
]


@pytest.mark.parametrize(("model", "reason", "hint"), MODELS)
def test_what_stands_between_is_named(model, reason, hint):
    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    assert set(made.kinds) <= {"rms_norm", "silu_mul"} and made.kinds
    (note,) = made.rejected
    assert note.kind == "quant" and reason in note.reason, note
    assert note.reason.startswith("between the result of the norm or activation and its quant")
    assert hint in note.hint
    assert "test_between.py:" in note.source
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    "model",
    [
        lambda x, w, s: quant(norm(x, w) @ w.expand(HIDDEN, HIDDEN), s),
        lambda x, w, s: quant(norm(x, w).cumsum(0), s),
        lambda x, w, s: quant(functional.gelu(x), s) if norm(x, w).shape[0] else x,
    ],
)
def test_what_is_further_away_is_not(model):
    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    assert not any("between" in reason for reason in made.reasons), made.reasons


def test_the_hint_for_joined_tensors_leads_to_the_fusions():
    def model(x, w, s, is_mended):
        parts = norm(x, w), norm(x.flip(0), w)
        if is_mended:
            return torch.cat([quant(part, s) for part in parts])
        return quant(torch.cat(parts), s)

    given = fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5
    assert run(lambda *args: model(*args, False), *given).kinds == ["rms_norm"] * 2
    mended = run(lambda *args: model(*args, True), *given)
    assert mended.kinds == ["rms_norm_quant"] * 2 and not mended.rejected
    check_same(mended.got, model(*given, False))
