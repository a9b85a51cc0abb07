"""One compilation serves every batch: no guard of ours on the row count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._dynamo.utils import counters
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, StaticCache

import mi300_inductor as mi
from mi300_inductor import graph
from mi300_inductor.options import Options
from tests.patterns import engine

CONFIG = LlamaConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
)


@pytest.fixture(scope="module", params=["per_token", None])
def model(request: pytest.FixtureRequest) -> LlamaModel:
    torch.manual_seed(0)
    model = LlamaModel(CONFIG).to(torch.bfloat16).eval()
    if request.param is not None:
        ids = torch.randint(0, 100, (4, 16))
        mi.quantize_(model, activations=request.param, calibrate=[ids], skip=())
    return model


@torch.no_grad()
def test_rows_share_one_graph_and_one_row_has_its_own(model: LlamaModel) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="mi300", fullgraph=True, dynamic=True)
    for rows in (2, 3, 7, 8, 31, 32, 33, 64, 1000, 4096, 1):
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


def compare(model: LlamaModel, compiled: Any, rows: int) -> None:
    """Compares a compiled model with eager on fresh tokens."""
    ids = torch.randint(0, 100, (rows, 1))
    found = compiled(ids, use_cache=False).last_hidden_state
    expected = model(ids, use_cache=False).last_hidden_state
    assert (found - expected).float().norm() < 0.02 * expected.float().norm(), rows


@pytest.mark.parametrize("model", ["per_token"], indirect=True)
@torch.no_grad()
def test_automatic_dynamic_takes_one_graph_more(model: LlamaModel) -> None:
    """The first size is compiled as a number, the second as a symbol; that one serves the rest."""
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="mi300", fullgraph=True)
    for graphs, rows in ((1, 2), (2, 3), (2, 33), (2, 1000)):
        compare(model, compiled, rows)
        assert counters["stats"]["unique_graphs"] == graphs, rows


@pytest.mark.parametrize("model", ["per_token"], indirect=True)
@torch.no_grad()
def test_rows_that_are_marked_dynamic_are_compiled_once(model: LlamaModel) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, backend="mi300", fullgraph=True)
    for rows in (2, 7, 33):
        ids = torch.randint(0, 100, (rows, 1))
        torch._dynamo.mark_dynamic(ids, 0)
        # Raises if anything, a guard of the pass for example, fixes the number of rows.
        found = compiled(ids, use_cache=False).last_hidden_state
        expected = model(ids, use_cache=False).last_hidden_state
        assert (found - expected).float().norm() < 0.02 * expected.float().norm(), rows
    assert counters["stats"]["unique_graphs"] == 1


def test_the_pass_adds_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        h = (x + residual).float()
        y = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16()
        q = (y.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
        return torch._scaled_mm(q, weight.t(), scale, scale, out_dtype=torch.bfloat16)

    known: list[tuple[int, dict[Any, Any]]] = []
    run = graph.run

    def watched(gm: fx.GraphModule, options: Options) -> graph.PassResult:
        sizes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
        shapes = next(v.node.shape_env for v in sizes if isinstance(v, torch.SymInt))
        known.append((len(shapes.guards), dict(shapes.var_to_range)))
        result = run(gm, options)
        known.append((len(shapes.guards), dict(shapes.var_to_range)))
        return result

    monkeypatch.setattr(graph, "run", watched)
    x, residual = (engine.fresh(6, 64) for _ in range(2))
    weight, scale = engine.fresh(32, 64).to(torch.float8_e4m3fn), torch.tensor([0.5])
    done = engine.run(block, x, residual, weight, scale, dynamic=True)
    assert done.kinds == ["add_rms_norm_quant", "skinny_gemm"]
    before, after = known
    assert before == after


@torch.no_grad()
def test_prefill_and_decode_are_one_graph_each_and_a_step_none() -> None:
    """With a static cache; other batches take the graphs that Dynamo makes by itself, no more."""
    torch.manual_seed(0)
    causal = LlamaForCausalLM(CONFIG).to(torch.bfloat16).eval()
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(causal, backend="mi300", fullgraph=True, dynamic=True)

    def generate(call: Any, ids: Tensor, steps: int) -> list[Tensor]:
        cache = StaticCache(config=CONFIG, max_cache_len=32)
        logits = [call(ids, past_key_values=cache, use_cache=True).logits[:, -1:]]
        for step in range(steps):
            position = torch.full((len(ids), 1), ids.shape[1] + step)
            token = torch.full((len(ids), 1), 7 + step)
            out = call(token, position_ids=position, past_key_values=cache, use_cache=True)
            logits.append(out.logits)
        return logits

    batches = ((2, 8), (3, 5), (33, 8))
    needed = []
    traced = torch.compile(causal, backend="eager", fullgraph=True, dynamic=True)
    for batch, prompt in batches:
        ids = torch.randint(0, 100, (batch, prompt))
        generate(traced, ids, 1)
        needed.append(counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    counters.clear()
    for (batch, prompt), graphs in zip(batches, needed, strict=True):
        ids = torch.randint(0, 100, (batch, prompt))
        for found, expected in zip(
            generate(compiled, ids, 3), generate(causal, ids, 3), strict=True
        ):
            error = (found - expected).float().norm() / expected.float().norm()
            assert error < 0.02, (batch, prompt)
        assert counters["stats"]["unique_graphs"] == graphs, (batch, prompt)
    assert needed[0] == 2
