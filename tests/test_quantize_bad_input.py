"""What `quantize_` does not take: it says why and leaves the model as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mi300_inductor as mi
from mi300_inductor.fp8_linear import FP8Linear


def small_model(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 80), nn.SiLU(), nn.Linear(80, 24)).to(dtype)


def unused_layer() -> nn.Module:
    model = small_model()
    model.spare = nn.Linear(4, 4)
    model.forward = lambda x: nn.Sequential.forward(model[:3], x)
    return model


X = torch.ones(2, 48).bfloat16()
BAD_INPUT = {
    "activations": (small_model, {"activations": "dynamic"}, "unknown activations; got dynamic"),
    "inputs in the place of activations": (
        small_model,
        {"activations": [torch.ones(300, 48)]},
        r"unknown activations; got \[a tensor float32\[300, 48\]\], .* Pass inputs as calibrate=.$",
    ),
    "one input there": (
        small_model,
        {"activations": torch.ones(300, 48)},
        r"unknown activations; got a tensor float32\[300, 48\], .* Pass inputs as calibrate=.$",
    ),
    "weights": (small_model, {"calibrate": [X], "weights": "row"}, "unknown weights; got row"),
    "dtype": (
        small_model,
        {"calibrate": [X], "dtype": torch.float8_e5m2},
        "unknown dtype; got torch.float8_e5m2, expected torch.float8_e4m3fn or",
    ),
    "no calibration": (small_model, {}, "static activations need calibration inputs; got None"),
    "empty calibration": (small_model, {"calibrate": []}, "0 saw no calibration input"),
    "one tensor": (small_model, {"calibrate": X}, "calibrate is one input; got Tensor"),
    "one dict": (small_model, {"calibrate": {"x": X}}, "calibrate is one input; got dict"),
    "layer not reached": (unused_layer, {"calibrate": [X]}, "spare saw no calibration input"),
    "skip": (small_model, {"calibrate": [X], "skip": ["nope"]}, r"got skip=\['nope'\]"),
    "no linear": (nn.ReLU, {"calibrate": [X]}, "no layer to convert; got a ReLU"),
    "nan": (small_model, {"calibrate": [X, X * torch.nan]}, "input of 0 is not finite; got a lar"),
    "no collection": (small_model, {"calibrate": 3}, "calibrate is no collection; got 3"),
    "torch's fast path": (
        lambda: nn.TransformerEncoderLayer(16, 2, batch_first=True),
        {"activations": "per_token"},
        "the model reads the weights of its layers itself; got an nn.TransformerEncoderLayer",
    ),
    "meta": (
        lambda: small_model().to("meta"),
        {"activations": "per_token"},
        "0 has no values yet; got a weight on the meta device",
    ),
    "float64": (
        lambda: small_model(torch.float64),
        {"activations": "per_token"},
        "0 has an unsupported weight dtype; got torch.float64",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named_and_changes_nothing(case):
    build, kwargs, message = BAD_INPUT[case]
    model = build()
    with pytest.raises(ValueError, match=message) as caught:
        mi.quantize_(model, **kwargs)
    assert str(caught.value).startswith("quantize_: ")
    assert not any(isinstance(module, FP8Linear) for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_infinite_weights_are_refused():
    model = small_model()
    with torch.no_grad():
        model[2].weight[3, 4] = torch.inf
    with pytest.raises(ValueError, match="the weight of 2 is not finite; got a largest magnitude"):
        mi.quantize_(model, "per_token")


def test_other_things_than_names_in_skip_are_refused():
    for skip in (None, [3]):
        with pytest.raises(TypeError, match="quantize_: skip is a list of names; got"):
            mi.quantize_(small_model(), "per_token", skip=skip)


def test_something_that_is_no_module_is_refused():
    with pytest.raises(TypeError, match=r"quantize_: the model is no nn\.Module; got function"):
        mi.quantize_(small_model)
