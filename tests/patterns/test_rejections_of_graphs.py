"""Refusals that a whole graph or its surroundings cause, and graphs that have none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.nn import functional

from .engine import check_same, fresh, run
from .test_rejections import HIDDEN, ROWS, norm, quant


def test_values_saved_for_backward_are_named():
    x, w = fresh(ROWS, HIDDEN).requires_grad_(), fresh(HIDDEN).requires_grad_()
    made = run(lambda x, w: norm(x, w), x, w, grad=True)
    reasons = [r for r in made.rejected if r.kind == "rms_norm"]
    assert any("is saved for backward" in r.reason for r in reasons), made.reasons
    assert any("torch.no_grad() or inference_mode()" in r.hint for r in reasons)
    check_same(made.got, made.want)
    made.got.float().sum().backward()


class WithGradients(nn.Module):
    """Turns gradients on itself."""

    def __init__(self, is_on=True):
        super().__init__()
        self.weight = nn.Parameter(fresh(HIDDEN))
        self.is_on = is_on

    def forward(self, x):
        with torch.set_grad_enabled(self.is_on):
            return norm(x, self.weight)


@pytest.mark.parametrize("grad", [False, True])
def test_gradients_that_the_model_turns_on_are_the_reason(grad):
    x = fresh(ROWS, HIDDEN)
    made = run(WithGradients(), x, grad=grad)
    assert not made.fused and made.rejected
    assert all("gradients are on, and a parameter" in r.reason for r in made.rejected)
    assert "with no torch.enable_grad() inside" in made.rejected[0].hint
    for mended in (WithGradients(False), WithGradients().requires_grad_(False)):
        assert run(mended, x, grad=grad).kinds == ["rms_norm"]


def test_a_write_between_the_parts_is_named():
    """AOTAutograd leaves no such writes; a pass before ours might."""

    def write(gm):
        node = next(n for n in gm.graph.nodes if n.target is torch.ops.aten.rsqrt.default)
        source = gm.graph.find_nodes(op="placeholder")[2]
        with gm.graph.inserting_after(node):
            gm.graph.call_function(torch.ops.aten.add_.Tensor, (source, 0.0)).meta.update(
                source.meta
            )

    made = run(
        lambda x, w, s: (norm(x, w), s + 1),
        *(fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.ones(1)),
        before_pass=write,
    )
    assert made.reasons == ["rms_norm: a write in place stands between the parts"]
    assert "out of place" in made.rejected[0].hint
    check_same(made.got, made.want)


def test_tensors_on_several_devices_are_named():
    def move_the_scale(gm):
        node = gm.graph.find_nodes(op="placeholder")[2]
        mode = node.meta["val"].fake_mode
        with mode:
            empty = torch.empty(1, device="meta")
        node.meta["val"] = FakeTensor(mode, empty, torch.device("cuda", 0))

    args = fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5
    made = run(lambda x, w, s: quant(norm(x, w), s), *args, before_pass=move_the_scale)
    assert made.kinds == ["rms_norm"]
    assert made.reasons == ["rms_norm_quant: the tensors are on cpu and cuda:0"]
    assert "one device" in made.rejected[0].hint
    check_same(made.got, made.want)


def test_a_number_that_is_an_argument_is_named():
    made = run(norm, fresh(ROWS, HIDDEN), fresh(HIDDEN), 1e-5, dynamic=True)
    (refusal,) = made.rejected
    assert not made.fused
    assert refusal.reason.startswith(
        "eps is not a constant: it is a number that is not known while compiling ("
    )
    assert "no argument of what is compiled" in refusal.hint
    check_same(made.got, made.want)


def test_a_computed_scale_with_an_unknown_number_is_no_maximum_of_two():
    def model(x, w, largest):
        y = functional.rms_norm(x, (HIDDEN,), w, 1e-6)
        return quant(y, y.abs().amax(-1, keepdim=True).float() / largest)

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN), 448.5, dynamic=True)
    assert made.kinds == ["rms_norm"]
    assert "in a known way: it is divided by a number that is not known while" in made.reasons[0]
    assert "Give the factor as a Python number" in made.rejected[0].hint
    check_same(made.got, made.want)


def test_a_largest_value_that_is_returned_is_to_follow_from_the_scale():
    def model(x, w):
        y = norm(x, w)
        amax = y.abs().amax(-1, keepdim=True).float()
        return quant(y, amax / 448), amax

    made = run(model, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert made.kinds == ["rms_norm"]
    assert made.reasons[0].endswith("inside the fusion, is a result of the graph")
    assert "amax = scale * 448" in made.rejected[0].hint


@pytest.mark.filterwarnings("ignore:Graph break")
def test_a_scale_that_breaks_the_graph_is_told_to_stay_a_tensor():
    def model(x, w, s):
        return quant(norm(x, w), s)

    given = fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5
    broken = run(lambda x, w, s: quant(norm(x, w), s.item()), *given)
    assert broken.kinds == ["rms_norm"] and len(broken.results) == 2
    assert "TORCH_LOGS=graph_breaks says what parts the two: an .item()" in broken.rejected[0].hint
    assert run(model, *given).kinds == ["rms_norm_quant"]


def test_a_disabled_kind_is_not_reported():
    made = run(norm, fresh(ROWS, HIDDEN), fresh(HIDDEN), disable=["rms_norm"])
    assert not made.fused and not made.rejected


def test_a_convolutional_model_gives_a_note_for_its_matmul_alone():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
        nn.LogSoftmax(-1),
    ).eval()  # fmt: skip
    made = run(model, torch.randn(2, 3, 16, 16))
    assert not made.fused and [item.kind for item in made.rejected] == ["unsupported"]
    made = run(model.bfloat16(), torch.randn(2, 3, 16, 16).bfloat16())
    assert made.kinds == ["skinny_gemm"] and not made.rejected, made.reasons


def test_a_model_with_layer_norms_and_attention_gives_no_norm():
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval()
    made = run(layer, torch.randn(2, 5, 32))
    assert not made.fused and not made.rejected, made.reasons


@pytest.mark.parametrize(
    "twin",
    [
        lambda x, w, s: (norm(x, w) / s).clamp(-128, 127).to(torch.int8),
        lambda x, w, s: torch.sigmoid(x) * w,
        lambda x, w, s: torch.tanh(x) * w,
        lambda x, w, s: x * torch.rsqrt(x.float().abs().mean(-1, keepdim=True) + 1e-6),
        lambda x, w, s: functional.silu(x) + w,
    ],
)
def test_what_only_looks_alike_equals_eager(twin):
    made = run(twin, fresh(ROWS, HIDDEN), fresh(HIDDEN), torch.rand(1) + 0.5)
    assert set(made.kinds) <= {"rms_norm"}
    check_same(made.got, made.want)


def test_an_error_of_the_pass_leaves_the_graph_as_it_was(monkeypatch):
    from mi300_inductor import graph

    def fail(*_):
        raise KeyError("broken on purpose")

    monkeypatch.setattr(graph, "fuse", fail)
    made = run(norm, fresh(ROWS, HIDDEN), fresh(HIDDEN))
    assert not made.fused
    assert made.reasons == ["pass: an error in the fusion pass: KeyError: 'broken on purpose'"]
    check_same(made.got, made.want)
