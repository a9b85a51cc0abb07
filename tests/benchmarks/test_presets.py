"""Presets have the true sizes, and a step can be repeated."""

from __future__ import annotations

import pytest
import torch

from benchmarks import breakdown, presets
from benchmarks.presets import PRESETS, Model
from benchmarks.timing import Unavailable

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "shards", "billions", "embeddings"),
    [
        ("llama-8b", 1, 8.03, 2 * 128256 * 4096),
        ("llama-70b-tp8", 8, 70.55, 2 * 128256 * 8192),
        ("llama-405b-tp8", 8, 405.85, 2 * 128256 * 16384),
        ("qwen3-8b", 1, 8.19, 2 * 151936 * 4096),
    ],
)
def test_layers_add_up_to_the_published_size(name, shards, billions, embeddings):
    preset = PRESETS[name]
    total = shards * preset.layers * preset.layer_parameters + embeddings
    assert total / 1e9 == pytest.approx(billions, rel=2e-3)


def test_merged_projections_are_the_separate_ones_together():
    preset = PRESETS["llama-405b-tp8"]
    assert preset.merged_linears == {"qkv_proj": (2304, 16384), "gate_up_proj": (13312, 16384)}
    q, k = preset.linears["q_proj"], preset.linears["k_proj"]
    assert q[0] + 2 * k[0] == 2304


@pytest.mark.parametrize("dtype", presets.DTYPES)
def test_a_prepared_step_gives_the_same_result_again(dtype):
    model = Model(PRESETS["tiny"], 2, dtype, CPU)
    kinds = {module.weight.dtype for module in model.module.modules() if hasattr(module, "weight")}
    assert (torch.float8_e4m3fn in kinds) == (dtype != "bf16")
    step = model.step(rows=3)
    assert (step.start, step.calls) == (64, 64)
    with torch.no_grad():
        first = step.forward(step.inputs).clone()
        assert first.shape == (3, 1, 256) and first.isfinite().all()
        assert int(step.cache.layers[0].cumulative_length) == 65
        assert step.cache.layers[1].keys[:, :, 64].abs().sum() > 0
        step.prepare()
        assert torch.equal(step.forward(step.inputs), first)


def test_a_prefill_fills_a_cache_of_its_length():
    step = Model(PRESETS["tiny"], 1, "bf16", CPU).step(rows=1, length=200)
    assert (step.capacity, step.start, step.calls) == (200, 0, 1)
    with torch.no_grad():
        assert step.forward(step.inputs).shape == (1, 200, 256)
    assert (step.cache.layers[0].keys.abs().sum(-1) > 0).all()


def test_qwen3_normalises_queries_and_keys():
    preset = presets.Preset("small", 256, 512, 2, 1, layers=1, stack=1, family="qwen3")
    model = Model(preset, 1, "fp8", CPU)
    assert any(name.endswith("q_norm") for name, _ in model.module.named_modules())


def test_inputs_have_outliers():
    x = Model(PRESETS["tiny"], 1, "bf16", CPU).tokens(4, 2)
    assert x.abs().max() > 20 > x.abs().float().median() * 10


def test_what_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(presets, "free_host_memory", lambda: 2**30)
    with pytest.raises(Unavailable, match=r"memory: [\d.]+ GiB needed, 1.0 GiB free on cpu"):
        Model(PRESETS["llama-405b-tp8"], 1, "fp8", CPU)


def test_projections_of_a_model_are_the_ones_whose_quantisation_counts_as_norm():
    model = Model(PRESETS["tiny"], 1, "bf16", CPU)
    leaves = {name.rpartition(".")[2] for name, _ in model.module.named_modules()}
    assert set(breakdown.AFTER_NORM) <= leaves
    assert set(PRESETS["tiny"].linears) <= leaves
