"""Greedy decoding of a small random Llama with a static KV cache, timed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

Progress = Callable[[str], None]


def llama_config(hidden: int, layers: int, vocab: int) -> LlamaConfig:
    """The proportions of Llama-3.1 8B at another width and depth; heads stay 128 wide."""
    heads = max(hidden // 128, 1)
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1),
        head_dim=hidden // heads,
        vocab_size=vocab,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )


def random_llama(config: LlamaConfig, device: torch.device, seed: int) -> LlamaForCausalLM:
    """A bf16 model with random weights, norm weights included.

    As in trained models the residual stream is larger than what a layer adds to it: embeddings of
    unit size, output projections smaller by the root of their number. With the default weights the
    stream is nothing but the layers' sum, and one flipped FP8 code grows to the size of all
    quantisation noise within a few layers, whoever computes. And as in trained models the next
    token is rarely a near tie: a share of the head is a permutation of the embeddings, so that
    each token has a likely successor.
    """
    torch.manual_seed(seed)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.normal_(parameter, 1.0, 0.1)
        elif name.endswith("embed_tokens.weight"):
            nn.init.normal_(parameter)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_((2 * config.num_hidden_layers) ** -0.5)
    embeddings, head = model.get_input_embeddings().weight.data, model.lm_head.weight.data
    successors = torch.randperm(config.vocab_size, device=device)
    head.add_(embeddings[successors], alpha=0.3 * config.initializer_range)
    return model


@dataclass(frozen=True)
class Agreement:
    """How a run compares with eager's on the same contexts.

    Attributes:
        tokens: Number of tokens compared.
        equal: How many are equal.
        unexplained: How many of the others differ although eager's best token leads the second by
            more than twice the largest logit difference at that place.
        difference: Largest logit difference.
        lead: Median lead of eager's best token.
    """

    tokens: int
    equal: int
    unexplained: int
    difference: float
    lead: float


@dataclass
class Decoding:
    """What one run gave.

    Attributes:
        logits: One [rows, vocab] fp32 tensor for the prompt and each step.
        first_s: Seconds of the first prefill and the first step; with a compiler, compiling.
        prefill_ms: Times of the prefills that were repeated to be timed.
        decode_ms: Times of the steps that were repeated.
    """

    logits: list[Tensor] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    prefill_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> Tensor:
        """The most likely token after the prompt and each step, [rows, 1 + steps]."""
        return torch.stack([logits.argmax(-1) for logits in self.logits], 1)

    def compare(self, exact: Decoding) -> Agreement:
        """Compares with a run that was fed the same tokens."""
        pairs = list(zip(self.logits, exact.logits, strict=True))
        differs = self.tokens != exact.tokens
        # [rows, 1 + steps]
        worst = torch.stack([(mine - other).abs().amax(-1) for mine, other in pairs], 1)
        best = torch.stack([other.topk(2).values for other in exact.logits], 1)
        lead = best[..., 0] - best[..., 1]
        return Agreement(
            tokens=differs.numel(),
            equal=int((~differs).sum()),
            unexplained=int((differs & (lead > 2 * worst)).sum()),
            difference=worst.max().item(),
            lead=lead.median().item(),
        )

    @property
    def spread(self) -> float:
        """How far the quartiles of the decode steps are apart, as a part of their median."""
        if len(self.decode_ms) < 2:
            return 0.0
        low, middle, high = quantiles(self.decode_ms, n=4, method="inclusive")
        return (high - low) / middle

    @property
    def prefill(self) -> float:
        """Median milliseconds of a prefill."""
        return median(self.prefill_ms)

    @property
    def decode(self) -> float:
        """Median milliseconds of a decode step."""
        return median(self.decode_ms)


class Decoder:
    """Runs a (compiled) model with a static KV cache. The row count is marked as dynamic."""

    def __init__(self, model: Callable[..., Any], config: LlamaConfig, max_tokens: int) -> None:
        self.model, self.config, self.max_tokens = model, config, max_tokens

    def new_cache(self, rows: int, device: torch.device) -> StaticCache:
        """An empty cache; made outside compiled code, as CUDA graphs need it."""
        cache = StaticCache(config=self.config, max_cache_len=self.max_tokens)
        heads, width = self.config.num_key_value_heads, self.config.head_dim
        cache.early_initialization(rows, heads, width, torch.bfloat16, device)
        for layer in cache.layers:
            torch._dynamo.mark_dynamic(layer.keys, 0)
            torch._dynamo.mark_dynamic(layer.values, 0)
        return cache

    @torch.no_grad()
    def forward(self, ids: Tensor, cache: StaticCache) -> tuple[Tensor, float]:
        """One forward of `ids`, [rows, tokens]: the last logits, [rows, vocab], and seconds."""
        torch._dynamo.mark_dynamic(ids, 0)
        torch.compiler.cudagraph_mark_step_begin()
        _wait(ids.device)
        start = time.perf_counter()
        logits = self.model(input_ids=ids, cache=cache, logits_to_keep=1).logits[:, -1]
        _wait(ids.device)
        return logits.float(), time.perf_counter() - start

    def run(
        self,
        prompt: Tensor,
        steps: int,
        feed: Tensor | None = None,
        progress: Progress = lambda _: None,
    ) -> Decoding:
        """Prefills `prompt`, [rows, tokens], and decodes `steps` tokens.

        Args:
            prompt: Token ids.
            steps: Number of decode steps.
            feed: Tokens to go on with, [rows, >= steps]; None takes the most likely ones.
            progress: Told what is being done.
        """
        progress("first prefill")
        self.cache = cache = self.new_cache(prompt.shape[0], prompt.device)
        logits, seconds = self.forward(prompt, cache)
        result = Decoding([logits], [seconds])
        for step in range(steps):
            progress(f"decode {step}/{steps}" if step else "first decode step")
            token = result.logits[-1].argmax(-1) if feed is None else feed[:, step]
            logits, seconds = self.forward(token[:, None].clone(), cache)
            result.logits.append(logits)
            if not step:
                result.first_s.append(seconds)
        return result

    def repeat(self, prompt: Tensor, feed: Tensor) -> tuple[float, list[float]]:
        """Prefills and decodes once more, over the cache of the last `run`, which is emptied.

        Returns:
            Milliseconds of the prefill and of every step but the first, which finds the caches of
            the processor as the prefill has left them.
        """
        cache = self.cache
        cache.reset()
        prefill = self.forward(prompt, cache)[1]
        steps = [self.forward(token[:, None].clone(), cache)[1] for token in feed.unbind(1)]
        return 1e3 * prefill, [1e3 * seconds for seconds in steps[1:]]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_prompts(config: LlamaConfig, shape: tuple[int, int], seed: int) -> Iterator[Tensor]:
    """Endless different prompts of random tokens, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randint(0, config.vocab_size, shape, generator=generator)
