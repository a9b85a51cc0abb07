"""What stands between a SiLU and its product with up, and what only looks like such a product."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import silu

from mi300_inductor.contract import check_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

from .engine import FLOATS, check_same, fresh, run

ROWS, HIDDEN = 12, 64
BETWEEN = "between the SiLU and its product with up stands "
INDEX = torch.tensor([3, 1, 0, 7])
BEHIND = "(silu(gate) * up).masked_fill(mask, 0)"
MOVE = "Do it to gate instead, silu(gate[:, :n]) * up"
JOIN = "Multiply each part by its own up"
OTHER = "No kernel makes this step."
LIMIT = "silu(gate.clamp(max=limit)) * up"

MODELS = {
    "masked_fill (where)": (lambda a, b, k: silu(a).masked_fill(k, 0) * b, BEHIND),
    "where (where)": (lambda a, b, k: torch.where(k, silu(a), 0) * b, BEHIND),
    "an indexing (index)": (lambda a, b, k: b[:4] * silu(a)[INDEX], MOVE),
    "a selection (index)": (lambda a, b, k: silu(a).index_select(0, INDEX) * b[:4], MOVE),
    "an indexing (gather)": (lambda a, b, k: silu(a).gather(-1, k.long()) * b, MOVE),
    "a slice (slice_1)": (lambda a, b, k: silu(a)[:, 8:] * b[:, 8:], MOVE),
    "a transposition (permute)": (lambda a, b, k: silu(a).t() * b.t().contiguous(), MOVE),
    "flip (rev)": (lambda a, b, k: silu(a).flip(-1) * b, MOVE),
    "roll (index)": (lambda a, b, k: silu(a).roll(1, -1) * 2 * b, MOVE),
    "cat (cat)": (
        lambda a, b, k: torch.cat([silu(a), a]) * torch.cat([b, a]),
        JOIN,
    ),
    "clamp_min (clamp_min)": (lambda a, b, k: b * silu(a).clamp_min(-0.1), LIMIT),
    "abs (abs_1)": (lambda a, b, k: silu(a).abs() * b, OTHER),
    "add (add_1)": (lambda a, b, k: (silu(a) + 1) * b, OTHER),
    "nan_to_num (where": (lambda a, b, k: silu(a).nan_to_num() * b, OTHER),
}


def held_to_strict(made):
    """Raises where `strict` would."""
    check_graph(GraphReport("0", "inference", rejected=tuple(made.rejected)), Options(strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_what_stands_between_is_named(name):
    model, hint = MODELS[name]
    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), torch.rand(ROWS, HIDDEN) > 0.5)
    assert not made.fused
    (note,) = made.rejected
    assert note.kind == "unsupported" and note.reason.startswith(BETWEEN + name), note
    assert hint in note.hint and "test_near_silu.py:" in note.source
    held_to_strict(made)
    check_same(made.got, made.want)


MENDED = {
    "mask": (
        lambda a, b, k: silu(a).masked_fill(k, 0) * b,
        lambda a, b, k: (silu(a) * b).masked_fill(k, 0),
    ),
    "slice": (lambda a, b, k: silu(a)[:, 8:] * b[:, 8:], lambda a, b, k: silu(a[:, 8:]) * b[:, 8:]),
    "index": (lambda a, b, k: silu(a)[INDEX] * b[:4], lambda a, b, k: silu(a[INDEX]) * b[:4]),
    "factor": (lambda a, b, k: silu(a) * 0.5 * b, lambda a, b, k: silu(a) * b * 0.5),
    "factor of booleans": (lambda a, b, k: silu(a) * k * b, lambda a, b, k: silu(a) * b * k),
}


@pytest.mark.parametrize("name", MENDED)
def test_the_hint_leads_to_the_fusion_of_the_same_values(name):
    plain, mended = MENDED[name]
    args = fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), torch.rand(ROWS, HIDDEN) > 0.5
    assert not run(plain, *args).fused
    made = run(mended, *args)
    assert made.kinds == ["silu_mul"] and not made.rejected, made.reasons
    check_same(made.got, made.want)
    check_same(made.got, plain(*args))


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        (lambda a, b, k: silu(a) * 0.5 * b, "the number 0.5"),
        (lambda a, b, k: b * (k * silu(a)), "a graph input (arg1_1)"),
        (lambda a, b, k: silu(a) * (a > b) * b, "the result of gt.Tensor (gt)"),
    ],
)
def test_a_factor_that_is_not_up_is_named(model, factor):
    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), torch.rand(ROWS, HIDDEN) > 0.5)
    (refused,) = made.rejected
    assert refused.kind == "silu_mul"
    assert refused.reason == (
        f"the SiLU is multiplied by {factor} before it is multiplied by up"
    ), refused
    assert "silu(gate) * up * factor" in refused.hint
    check_same(made.got, made.want)


@pytest.mark.parametrize("grad", [False, True])
def test_dropout_before_the_product_is_named(grad):
    def model(a, b):
        return functional.dropout(silu(a), 0.5, training=True) * b

    made = run(model, fresh(ROWS, HIDDEN).requires_grad_(grad), fresh(ROWS, HIDDEN), grad=grad)
    forward = made.results[0].rejected
    assert [note.kind for note in forward] == ["unsupported"], forward
    assert forward[0].reason == "dropout (gt) stands between the SiLU and its product with up"
    assert "dropout(silu(gate) * up)" in forward[0].hint
    held_to_strict(made)
    dropped = made.got == 0
    assert 0 < int(dropped.sum()) < dropped.numel()


def test_dropout_behind_the_product_leaves_the_fusion():
    made = run(
        lambda a, b: functional.dropout(silu(a) * b, 0.5, training=True),
        fresh(ROWS, HIDDEN),
        fresh(ROWS, HIDDEN),
    )
    assert made.kinds == ["silu_mul"] and not made.rejected


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("has_weight", [False, True])
def test_the_norm_of_a_silu_is_a_norm_alone(dtype, has_weight):
    def model(a, w):
        return functional.rms_norm(silu(a), (HIDDEN,), w if has_weight else None, 1e-6)

    made = run(model, fresh(ROWS, HIDDEN, dtype=dtype), fresh(HIDDEN, dtype=dtype))
    assert made.kinds == ["rms_norm"] and not made.rejected, made.reasons
    check_same(made.got, made.want)


def test_the_norm_of_a_silu_is_not_the_gate_of_a_sigmoid_behind_it():
    def model(a, b, w):
        return functional.rms_norm(silu(a), (HIDDEN,), w, 1e-6) * torch.sigmoid(b)

    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"]
    (note,) = made.rejected
    assert note.kind == "unsupported" and "gate, a graph input (arg2_1)" in note.reason, note
    check_same(made.got, made.want)


@pytest.mark.parametrize(
    "model",
    [
        lambda a, b: silu(a) ** 2,
        lambda a, b: silu(a).square().mean(-1),
        lambda a, b: silu(a) + b,
        lambda a, b: silu(a).cumsum(-1) * b,
        lambda a, b: (silu(a) + silu(b)) * b,
        lambda a, b: silu(a).relu() ** 2,
    ],
)
def test_a_silu_without_a_product_is_not_mentioned(model):
    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN))
    assert not made.fused and not made.rejected, made.reasons
    check_same(made.got, made.want)
