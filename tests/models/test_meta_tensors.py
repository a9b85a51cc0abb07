"""A model on the meta device compiles to shapes and dtypes, without data."""

import torch
from torch import nn


def test_a_model_without_data_gives_tensors_without_data():
    model = nn.Sequential(nn.RMSNorm(32), nn.Linear(32, 48)).to("meta").to(torch.bfloat16).eval()
    compiled = torch.compile(model, backend="mi300")
    with torch.no_grad():
        result = compiled(torch.empty(3, 32, dtype=torch.bfloat16, device="meta"))
    assert result.device.type == "meta"
    assert result.shape == (3, 48) and result.dtype == torch.bfloat16
