"""A model on the meta device compiles to shapes and dtypes, without data and without fusions."""

import pytest
import torch
from torch import nn

import mi300_inductor as mi


def model_without_data():
    model = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 48)).to("meta").to(torch.bfloat16).eval()
    return model, torch.empty(3, 32, dtype=torch.bfloat16, device="meta")


def test_a_model_without_data_gives_tensors_without_data():
    model, x = model_without_data()
    options = {"expect": {"silu_mul": 0}}
    with torch.no_grad():
        result = torch.compile(model, backend="mi300", options=options)(x)
    assert result.device.type == "meta"
    assert result.shape == (3, 48) and result.dtype == torch.bfloat16


def test_the_report_says_that_nothing_is_fused_and_why():
    report = mi.explain(*model_without_data())
    assert report.counts == {} and len(report.graphs) == 1
    (refusal,) = report.rejected
    assert refusal.kind == "pass" and "meta device" in refusal.reason
    assert "meta device" in str(report)


@pytest.mark.parametrize("options", [{"expect": {"rms_norm": 1}}, {"strict": True}])
def test_contracts_hold_for_a_model_without_data(options):
    model, x = model_without_data()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="ContractError") as error:
        torch.compile(model, backend="mi300", options=options)(x)
    assert "meta device" in str(error.value)
