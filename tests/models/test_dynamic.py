"""One compilation serves every batch: no guard of ours on the row count."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaModel

import mi300_inductor as mi


@pytest.fixture(scope="module", params=["per_token", None])
def model(request: pytest.FixtureRequest) -> LlamaModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model = LlamaModel(config).to(torch.bfloat16).eval()
    if request.param is not None:
        ids = torch.randint(0, 100, (4, 16))
        mi.quantize_(model, activations=request.param, calibrate=[ids], skip=())
    return model


@torch.no_grad()
def test_rows_share_one_graph_and_one_row_has_its_own(model: LlamaModel) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="mi300", fullgraph=True, dynamic=True)
    for rows in (2, 3, 8, 31, 32, 33, 64, 1000, 1):
        # One token each, as in decoding: the rows of every operator are the batch.
        ids = torch.randint(0, 100, (rows, 1))
        found = compiled(ids, use_cache=False).last_hidden_state
        expected = model(ids, use_cache=False).last_hidden_state
        # A flipped FP8 code is 1/16 of a value; a wrong kernel is off by the value itself.
        error = (found - expected).float().norm() / expected.float().norm()
        assert error < 0.02, rows
        assert counters["stats"]["unique_graphs"] == (2 if rows == 1 else 1), rows
        if rows == 2:
            fused = mi.last_report().fused
            assert all("s" in str(fusion.bytes_after) for fusion in fused)
    counts = mi.last_report().counts
    assert counts["skinny_gemm"] == 14
    assert sum(counts.get(kind, 0) for kind in ("silu_mul", "silu_mul_quant")) == 2
    assert sum(n for kind, n in counts.items() if "rms_norm" in kind) == 5
