"""Operations that resemble a kind and are another one: notes, which `strict` does not count."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mi300_inductor.contract import check_graph
from mi300_inductor.options import Options
from mi300_inductor.report import GraphReport

from .engine import check_same, fresh, run

ROWS, HIDDEN = 12, 64
GATE = "is not multiplied by its sigmoid, so this is a sigmoid gate"
L2 = "the squares are summed, not averaged, so this is an L2 normalisation"
WIDE = (
    "the operands are torch.float32 and torch.float32, expected two FP8 tensors or two of bfloat16 "
    "or float16"
)


def layer_norm(x, y, w):
    h = x.float()
    h = h - h.mean(-1, keepdim=True)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)


def clamped_gate_with_alpha(x, y, w):
    gate, up = x.clamp(max=7.0), y.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(1.702 * gate))


def clamped_silu(x, y, w):
    return functional.silu(x).clamp(max=7.0) * y.clamp(-7.0, 7.0)


NOTES = [
    (lambda x, y, w: functional.glu(x), "glu multiplies by the sigmoid of gate", "silu(gate)"),
    (lambda x, y, w: functional.glu(x.float(), 0), "by the sigmoid of gate alone", "silu(gate)"),
    (lambda x, y, w: x * torch.sigmoid(y), GATE, "silu(gate) * up if that is meant"),
    (lambda x, y, w: torch.sigmoid(y[:, :1]) * x, GATE, "silu(gate) * up if that is meant"),
    (lambda x, y, w: x.float() / (1 + torch.exp(-y.float())), GATE, "Inductor compiles it"),
    (lambda x, y, w: x * torch.sigmoid(1.702 * x), "the sigmoid is of a multiplication", "GELU"),
    (clamped_gate_with_alpha, "the sigmoid is of a multiplication", "GPT-OSS's SwiGLU"),
    (clamped_silu, "product with up stands clamp (clamp_max)", "silu(gate.clamp(max=limit)) * up"),
    (lambda x, y, w: functional.normalize(x, dim=-1), L2, "If an RMSNorm is meant"),
    (lambda x, y, w: functional.normalize(x.float(), dim=-1) * w, L2, "If an RMSNorm is meant"),
    (lambda x, y, w: x.float() / x.float().norm(dim=-1, keepdim=True), L2, "Inductor compiles it"),
    (lambda x, y, w: functional.cosine_similarity(x.float(), w.float()), L2, "RMSNorm is meant"),
    (
        lambda x, y, w: x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1e-6),
        L2,
        "mean(x.float()**2, -1, keepdim=True)",
    ),
    (
        lambda x, y, w: torch.dot(x[0], y[0]),
        "a product of two vectors, which has one row and one column",
        "Nothing to change",
    ),
    (
        lambda x, y, w: torch.exp(x) @ w,
        "the matrix of a product with a vector, exp (exp), is computed in the graph",
        "Nothing to change",
    ),
    (layer_norm, "the mean is subtracted first, so this is a LayerNorm", "LayerNorm is not a kind"),
]  # fmt: skip


def test_the_hint_for_sums_leads_to_a_norm():
    def model(x, is_mended):
        squares = x.float().pow(2)
        mean = squares.mean(-1, keepdim=True) if is_mended else squares.sum(-1, keepdim=True)
        return x.float() * torch.rsqrt(mean + 1e-6)

    x = fresh(ROWS, HIDDEN)
    assert run(lambda x: model(x, False), x).reasons == [f"unsupported: {L2}"]
    assert run(lambda x: model(x, True), x).kinds == ["rms_norm"]


def test_a_norm_that_its_own_input_gates_is_no_silu():
    def model(x, w):
        return functional.rms_norm(x, (HIDDEN,), w, 1e-6) * torch.sigmoid(x)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"]
    assert [note.kind for note in made.rejected] == ["unsupported"] and GATE in made.reasons[0]
    check_same(made.got, made.want)


def test_the_hint_for_a_clamped_silu_leads_to_the_fusion():
    def model(x, y):
        return functional.silu(x.clamp(max=7.0)) * y.clamp(-7.0, 7.0)

    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN))
    assert made.kinds == ["silu_mul"] and not made.rejected
    check_same(made.got, made.want)


WIDE_MATMULS = {
    "linear": lambda x, w, b: functional.linear(x, w),
    "bias": lambda x, w, b: functional.linear(x, w, b),
    "matmul": lambda x, w, b: x @ w.t(),
    "vector": lambda x, w, b: w @ x[0],
    "sum": lambda x, w, b: (w * x[0]).sum(-1),
    "columns": lambda x, w, b: w @ x.cumsum(0).t(),
}


def held_to_strict(made):
    """Raises where `strict` would."""
    check_graph(GraphReport("0", "inference", rejected=tuple(made.rejected)), Options(strict=True))


@pytest.mark.parametrize(("model", "reason", "hint"), NOTES)
def test_another_operation_is_a_note_with_its_reason(model, reason, hint):
    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert not made.fused
    assert {item.kind for item in made.rejected} == {"unsupported"}, made.reasons
    note = made.rejected[0]
    assert reason in note.reason and hint in note.hint, note
    assert "test_unsupported.py:" in note.source
    held_to_strict(made)
    check_same(made.got, made.want)


@pytest.mark.parametrize("name", WIDE_MATMULS)
def test_a_matmul_in_float32_is_a_note(name):
    args = (fresh(ROWS, HIDDEN).float(), fresh(96, HIDDEN).float(), fresh(96).float())
    made = run(WIDE_MATMULS[name], *args)
    assert not made.fused
    assert made.reasons and set(made.reasons) == {f"unsupported: {WIDE}"}, made.reasons
    assert ".bfloat16()" in made.rejected[0].hint
    held_to_strict(made)
    torch.testing.assert_close(made.got, made.want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["linear", "bias", "matmul", "vector"])
def test_the_hint_for_float32_leads_to_the_fusion(name):
    made = run(WIDE_MATMULS[name], fresh(ROWS, HIDDEN), fresh(96, HIDDEN), fresh(96))
    assert made.kinds == ["skinny_gemm"] and not made.rejected, made.reasons


@pytest.mark.parametrize(
    "model",
    [
        lambda x, y, w: x.float() @ y.float().t(),
        lambda x, y, w: (x.float() * y.float()).sum(-1),
        lambda x, y, w: (x.float().exp() * w.float()).sum(-1),
        lambda x, y, w: x.float().cumsum(0) @ y.float().exp().t(),
    ],
)
def test_products_of_what_is_computed_are_none(model):
    made = run(model, fresh(ROWS, HIDDEN), fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert "unsupported" not in {item.kind for item in made.rejected}, made.reasons


def test_notes_of_a_disabled_kind_are_not_shown():
    x, w = fresh(ROWS, HIDDEN).float(), fresh(96, HIDDEN).float()

    def model(x, w):
        return functional.linear(torch.sigmoid(x) * x.flip(0), w)

    assert len(run(model, x, w).rejected) == 2
    assert len(run(model, x, w, disable=["skinny_gemm"]).rejected) == 1
    assert not run(model, x, w, disable=["skinny_gemm", "silu_mul"]).rejected


def test_a_weight_that_is_widened_for_a_wide_x_is_a_note():
    def model(x, w, is_mended):
        return functional.linear(x.to(w.dtype), w) if is_mended else functional.linear(x, w.float())

    x, w = fresh(ROWS, HIDDEN).float(), fresh(96, HIDDEN)
    plain = run(lambda x, w: model(x, w, False), x, w)
    assert plain.reasons == [f"unsupported: {WIDE}"]
    assert "Convert x to the dtype of the weight" in plain.rejected[0].hint
    held_to_strict(plain)
    mended = run(lambda x, w: model(x, w, True), x, w)
    assert mended.kinds == ["skinny_gemm"] and not mended.rejected


def test_halves_that_are_both_widened_are_refused_and_the_hint_leads_to_the_fusion():
    def model(x, w, is_mended):
        if is_mended:
            return functional.linear(x, w).float()
        return functional.linear(x.float(), w.float())

    x, w = fresh(ROWS, HIDDEN), fresh(96, HIDDEN)
    plain = run(lambda x, w: model(x, w, False), x, w)
    (refused,) = plain.rejected
    assert refused.kind == "skinny_gemm"
    assert refused.reason == (
        "both operands are halves that are converted to torch.float32 first, expected the halves"
    )
    assert "torch.nn.functional.linear(x, weight), and convert the result" in refused.hint
    assert refused.hint.endswith("but its result is rounded to the dtype of the halves before.")
    mended = run(lambda x, w: model(x, w, True), x, w)
    assert mended.kinds == ["skinny_gemm"] and not mended.rejected
    torch.testing.assert_close(mended.got, plain.want, rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize(
    "model",
    [
        lambda x, s: functional.silu(x) * s,
        lambda x, s: x * torch.sigmoid(x) * s,
        lambda x, s: s * functional.silu(x.float()).to(x.dtype),
        lambda x, s: torch.sigmoid(x) * s,
    ],
)
def test_an_activation_times_one_value_is_no_gated_one(model):
    made = run(model, fresh(ROWS, HIDDEN), torch.rand(1))
    assert not made.fused and not made.rejected, made.reasons
