"""Whole models of transformers: fusions per family, plain and quantised, and results as eager's."""

from __future__ import annotations

import pytest
import torch
import transformers

import mi300_inductor as mi

LAYERS = 2

# Fusions per layer and for the whole model, plain: norms alone, behind an add, SiLU*mul, matmuls.
# The first norm of a model has no add before it, unless it is a norm of q or k.
PLAIN = {
    "Llama": {"rms_norm": 1, "add_rms_norm": 4, "silu_mul": 2, "skinny_gemm": 15},
    "Mistral": {"rms_norm": 1, "add_rms_norm": 4, "silu_mul": 2, "skinny_gemm": 15},
    "Qwen2": {"rms_norm": 1, "add_rms_norm": 4, "silu_mul": 2, "skinny_gemm": 15},
    "Qwen3": {"rms_norm": 5, "add_rms_norm": 4, "silu_mul": 2, "skinny_gemm": 15},
    "Gemma2": {"rms_norm": 5, "add_rms_norm": 4, "skinny_gemm": 15},
    "Gemma3": {"rms_norm": 9, "add_rms_norm": 4, "skinny_gemm": 15},
    "Phi3": {"rms_norm": 1, "add_rms_norm": 4, "silu_mul": 2, "skinny_gemm": 9},
}


def expected(family: str, is_quantised: bool) -> dict[str, int]:
    """With FP8 linears the norms before them quantise; the last one feeds lm_head, which is not."""
    counts = dict(PLAIN[family])
    if is_quantised:
        counts["rms_norm"] -= 1
        counts["rms_norm_quant"] = 1
        counts["add_rms_norm_quant"] = counts.pop("add_rms_norm") - 1
        counts["add_rms_norm"] = 1
        if "silu_mul" in counts:
            counts["silu_mul_quant"] = counts.pop("silu_mul")
    return {kind: count for kind, count in counts.items() if count}


def make(family: str) -> torch.nn.Module:
    """A small model of a family with random weights."""
    name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, name)(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=128,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones and zeros would hide a forgotten weight
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("activations", [None, "static", "per_token"])
@pytest.mark.parametrize("family", PLAIN)
def test_a_family_fuses_all_its_norms_and_activations(family, activations):
    model = make(family)
    tokens = torch.randint(3, 128, (2, 9))
    is_quantised = activations is not None
    if is_quantised:
        mi.quantize_(model, activations=activations, calibrate=[tokens])
    with torch.no_grad():
        want = model(tokens, use_cache=False).logits
        compiled = torch.compile(
            model, backend="mi300", options={"expect": expected(family, is_quantised)}
        )
        report = mi.explain(compiled, tokens, use_cache=False)
        got = compiled(tokens, use_cache=False).logits
    assert report.counts == expected(family, is_quantised)
    explained = {rejection.kind for rejection in report.rejected}
    assert explained <= {"quant", "competition"}, str(report)
    # A flipped rounding of one matmul goes through all layers behind it.
    error = (got.float() - want.float()).abs().max()
    assert error <= 0.05 * want.float().abs().max()
    top = want.float().topk(2, -1).values
    decided = top[..., 0] - top[..., 1] > 2 * error
    assert torch.equal(got.argmax(-1)[decided], want.argmax(-1)[decided])
    assert decided.float().mean() > 0.5
