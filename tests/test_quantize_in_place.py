"""`quantize_` changes layers in place: what was set on them stays or is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import mi300_inductor as mi
from mi300_inductor.fp8_linear import FP8Linear


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 80), nn.SiLU(), nn.Linear(80, 24)).bfloat16()


def rows() -> torch.Tensor:
    x = torch.randn(3, 48)
    x[:, :3] = torch.tensor([60.0, 0.0, 1e-40])
    return x.bfloat16()


def test_what_was_set_on_a_layer_stays():
    """Hooks run and can be removed, attributes and modules are there, other holders see it."""
    model, x = small_model(), rows()
    layer = model[0]
    holders = [layer]
    seen: list[Any] = []
    before = layer.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    after = layer.register_forward_hook(
        lambda _, args, kwargs, out: seen.append((kwargs, out.shape)), with_kwargs=True
    )
    layer.register_state_dict_post_hook(lambda _, state, *__: state.update(mark=torch.ones(1)))
    layer.note, layer.adapter, layer.extra = "mine", nn.ReLU(), nn.Parameter(torch.ones(3))
    layer.register_buffer("mask", torch.ones(2))
    mi.quantize_(model, "static", [x])
    assert model[0] is layer is holders[0] and isinstance(layer, FP8Linear)
    assert torch.equal(layer.input_scale, (2 * x).abs().amax().float().reshape(1) / 448)
    hooked = model(x)
    assert seen == [({}, (3, 80))] * 2
    assert layer.note == "mine" and "mark" in model.state_dict()
    assert {"adapter", "extra", "mask"} <= {
        *dict(layer.named_children()),
        *dict(layer.named_parameters()),
        *dict(layer.named_buffers()),
    }
    before.remove()
    after.remove()
    assert torch.equal(model(2 * x), hooked)
    assert len(seen) == 2


def test_a_parametrised_subclass_and_a_computed_weight_to_skip_are_left_alone():
    class Other(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 8), Other(8, 8), nn.Linear(8, 8))
    for layer in model[1:]:
        nn.utils.parametrizations.weight_norm(layer)
    mi.quantize_(model, "per_token", skip=["2"])
    assert [isinstance(layer, FP8Linear) for layer in model] == [True, False, False]
    assert [isinstance(layer, nn.Linear) for layer in model] == [False, True, True]


def test_a_linear_alone_is_a_model():
    layer, x = nn.Linear(32, 16), torch.randn(4, 32)
    exact = layer(x)
    assert mi.quantize_(layer, calibrate=[x]) is layer
    assert isinstance(layer, FP8Linear)
    assert (layer(x) - exact).norm() < 0.15 * exact.norm()


def test_a_model_that_was_compiled_before_is_compiled_again():
    model, x = small_model().eval(), rows()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad():
        exact = compiled(x)
        mi.quantize_(model, "per_token")
        assert torch.equal(compiled(x), model(x))
        assert not torch.equal(compiled(x), exact)


def replace_forward(layer: nn.Linear) -> None:
    layer.forward = lambda x: nn.Linear.forward(layer, 2 * x)


COMPUTED = "the {} of 2 is computed at each call; got a parametrization or a hook"
REFUSED = {
    "parametrization": (nn.utils.parametrizations.weight_norm, COMPUTED.format("weight")),
    "weight_norm": (nn.utils.weight_norm, COMPUTED.format("weight")),
    "pruning": (
        partial(nn.utils.prune.l1_unstructured, name="weight", amount=0.5),
        COMPUTED.format("weight"),
    ),
    "pruned bias": (
        partial(nn.utils.prune.l1_unstructured, name="bias", amount=0.5),
        COMPUTED.format("bias"),
    ),
    "forward": (
        replace_forward,
        "2 has a forward of its own; got one set on the layer, expected that of nn.Linear",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("change", REFUSED)
def test_a_layer_that_computes_something_else_is_refused(change):
    apply, message = REFUSED[change]
    model, x = small_model(), rows()
    apply(model[2])
    before = model(x)
    with pytest.raises(ValueError, match=f"quantize_: {message}"):
        mi.quantize_(model, "per_token")
    assert not any(isinstance(module, FP8Linear) for module in model.modules())
    assert torch.equal(model(x), before)
    mi.quantize_(model, "per_token", skip=["2"])
    assert isinstance(model[0], FP8Linear) and not isinstance(model[2], FP8Linear)
