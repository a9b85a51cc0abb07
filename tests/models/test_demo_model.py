"""The demo's Llama, small: every place fuses, results are eager's, no batch compiles again."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import LlamaForCausalLM

import mi300_inductor as mi
from benchmarks.decoding import Decoder, llama_config, random_llama, random_prompts
from benchmarks.demo_tables import places

LAYERS = 2
CONFIG = llama_config(hidden=256, layers=LAYERS, vocab=512)
CPU = torch.device("cpu")
PROMPT, STEPS = 16, 32


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def quantized(seed: int, **kwargs) -> LlamaForCausalLM:
    model = random_llama(CONFIG, CPU, seed)
    prompts = random_prompts(CONFIG, (2, PROMPT), seed)
    mi.quantize_(model, calibrate=[next(prompts), next(prompts)], **kwargs)
    return model


def expected(quant: str) -> dict[str, int]:
    return {kind: count for kind, (count, _) in places(LAYERS, quant).items()}


def test_decode_fuses_everything_and_serves_three_models_and_every_batch():
    """One compilation per phase; three sets of weights and five row counts share it."""
    model = quantized(seed=0)
    decoder = Decoder(torch.compile(model, backend="mi300", fullgraph=True), CONFIG, PROMPT + STEPS)
    for seed in (0, 1, 2):
        model.load_state_dict(quantized(seed).state_dict())
        prompt = next(random_prompts(CONFIG, (2, PROMPT), 10 + seed))
        eager = Decoder(model, CONFIG, PROMPT + STEPS).run(prompt, STEPS)
        assert len(eager.tokens.unique()) > 8
        run = decoder.run(prompt, STEPS, eager.tokens)
        found = run.compare(eager)
        assert found.unexplained == 0 and found.equal >= 0.9 * found.tokens, found
        assert found.difference < 0.25 * eager.logits[0].std()
    assert counters["stats"]["unique_graphs"] == 2
    for rows in (3, 8, 31, 64):
        prompt = next(random_prompts(CONFIG, (rows, PROMPT), rows))
        eager = Decoder(model, CONFIG, PROMPT + STEPS).run(prompt, 2)
        found = decoder.run(prompt, 2, eager.tokens).compare(eager)
        assert found.unexplained == 0 and found.equal >= 0.9 * found.tokens, found
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    prefill, decode = mi.last_report().graphs[-2:]
    assert prefill.counts == decode.counts == expected("static")


def test_everything_but_the_matmul_gives_eagers_tokens():
    """Decoded freely: the fused norms and activations and Inductor's own code round as eager.

    A norm's sum may be taken in another order, so a logit may be off by one bf16 rounding.
    """
    model = quantized(seed=0)
    options = {"disable": ["skinny_gemm"]}
    compiled = Decoder(
        torch.compile(model, backend="mi300", options=options), CONFIG, PROMPT + STEPS
    )
    eager = Decoder(model, CONFIG, PROMPT + STEPS)
    for seed in (0, 1, 2):
        model.load_state_dict(quantized(seed).state_dict())
        prompt = next(random_prompts(CONFIG, (2, PROMPT), 20 + seed))
        want = eager.run(prompt, STEPS)
        got = compiled.run(prompt, STEPS)
        assert torch.equal(got.tokens, want.tokens)
        largest = max(logits.abs().max() for logits in want.logits)
        assert got.compare(want).difference <= 2**-7 * largest


@pytest.mark.parametrize(
    ("quant", "kwargs"),
    [
        ("none", None),
        ("per_token", {"activations": "per_token"}),
        ("static", {"weights": "per_channel"}),
        ("static", {"dtype": torch.float8_e4m3fnuz}),
    ],
    ids=["bf16", "per_token", "per_channel", "e4m3fnuz"],
)
def test_other_quantisations_fuse_everything_and_agree(quant, kwargs):
    model = random_llama(CONFIG, CPU, 0) if kwargs is None else quantized(0, **kwargs)
    ids = next(random_prompts(CONFIG, (2, 6), 1))
    with torch.no_grad():
        eager = model(input_ids=ids, use_cache=False).logits.float()
    report = mi.explain(model, input_ids=ids, use_cache=False)
    assert report.counts == expected(quant)
    with torch.no_grad():
        got = torch.compile(model, backend="mi300")(input_ids=ids, use_cache=False).logits.float()
    assert (got - eager).abs().max() < 0.25 * eager.std()
    assert (got - eager).std() < 0.05 * eager.std()
