"""Models with random weights at the true sizes of published ones, and one step of them.

A tensor-parallel preset is one of eight shards: its heads and its share of the MLP, without the
all-reduce. Embeddings and the head are left out: a step starts from embedded tokens and ends with
the last norm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mi300_inductor as mi
from benchmarks.timing import Unavailable

DTYPES = ("fp8", "fp8-per-token", "bf16")
CONTEXT = 128  # tokens of the cache, as in the published setting: input 1, output 128


@dataclass(frozen=True)
class Preset:
    """Sizes of a model as its configuration on Hugging Face states them, divided by `shards`.

    Attributes:
        layers: Layers of the whole model.
        stack: Layers that are benchmarked when nothing else is said.
    """

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    stack: int
    family: str = "llama"
    head_dim: int = 128

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """[n, k] of each linear of a layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (q, self.hidden),
            "k_proj": (kv, self.hidden),
            "o_proj": (self.hidden, q),
            "gate_proj": (self.intermediate, self.hidden),
            "down_proj": (self.hidden, self.intermediate),
        }

    @property
    def merged_linears(self) -> dict[str, tuple[int, int]]:
        """[n, k] of the projections that serving engines merge."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv_proj": (q + 2 * kv, self.hidden),
            "gate_up_proj": (2 * self.intermediate, self.hidden),
        }

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's linears."""
        size = {name: n * k for name, (n, k) in self.linears.items()}
        return sum(size.values()) + size["k_proj"] + size["gate_proj"]  # and v_proj and up_proj


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("llama-8b", 4096, 14336, 32, 8, layers=32, stack=4),
        Preset("llama-70b-tp8", 8192, 28672 // 8, 8, 1, layers=80, stack=4),
        Preset("llama-405b-tp8", 16384, 53248 // 8, 16, 1, layers=126, stack=1),
        Preset("qwen3-8b", 4096, 12288, 32, 8, layers=36, stack=4, family="qwen3"),
        Preset("tiny", 256, 896, 2, 1, layers=2, stack=2),
    )
}

# What ops and gemm measure when nothing is said: only the small one on a CPU, where a matmul of
# the large one takes PyTorch more than a second.
STANDARD_PRESETS = {"cuda": ["llama-8b", "llama-405b-tp8"], "cpu": ["llama-8b"]}


def check_memory(needed: int, device: torch.device) -> None:
    """Refuses what would not fit.

    Raises:
        Unavailable: with the bytes that are needed and those that are free.
    """
    free = torch.cuda.mem_get_info()[0] if device.type == "cuda" else free_host_memory()
    if needed > free:
        raise Unavailable(
            f"memory: {needed / 2**30:.1f} GiB needed, {free / 2**30:.1f} GiB free on {device}"
        )


def free_host_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**63


class Model:
    """A stack of decoder layers, quantised, and the functions that are timed.

    Raises:
        Unavailable: if it does not fit into the memory.
    """

    def __init__(
        self, preset: Preset, layers: int, dtype: str, device: torch.device, seed: int = 0
    ) -> None:
        # The bf16 weights and, while they are quantised, the largest layer in fp32.
        largest = max(n * k for n, k in preset.linears.values())
        check_memory(2 * layers * preset.layer_parameters + 12 * largest, device)
        self.preset, self.layers, self.device = preset, layers, device
        torch.manual_seed(seed)
        self.module, self.config = _random_module(preset, layers, device)
        if dtype != "bf16":
            scales = "static" if dtype == "fp8" else "per_token"
            calibrate = [{"inputs_embeds": self.tokens(1, 64)}] if dtype == "fp8" else None
            mi.quantize_(self.module, scales, calibrate)
        names = inspect.signature(self.module.forward).parameters
        # transformers before 5.24 calls it past_key_values.
        self._cache_name = "cache" if "cache" in names else "past_key_values"

    def tokens(self, rows: int, length: int) -> Tensor:
        """Embedded tokens with a few large channels, as trained models have."""
        x = torch.randn(rows, length, self.preset.hidden, device=self.device)
        x[..., :: self.preset.hidden // 4] *= 16
        return x.to(torch.bfloat16)

    def step(self, rows: int, length: int = 1) -> Step:
        """One forward of `length` tokens a row: decoding if it is one, else a prefill.

        Raises:
            Unavailable: if its cache and its activations do not fit into the memory.
        """
        check_memory(rows * self.bytes_per_row(length), self.device)
        return Step(self, rows, length)

    def bytes_per_row(self, length: int) -> int:
        """What a row of a step takes: its KV cache, and what a layer of eager's holds at once."""
        preset = self.preset
        keys = 2 * self.layers * preset.kv_heads * preset.head_dim * 2 * max(CONTEXT, length)
        return keys + length * (48 * preset.hidden + 32 * preset.intermediate)


class Step:
    """A forward over a static KV cache that starts at the same place each time it is prepared."""

    def __init__(self, model: Model, rows: int, length: int) -> None:
        from transformers import StaticCache

        config = model.config
        self.capacity = max(CONTEXT, length)
        self.start = 0 if length > 1 else self.capacity // 2
        self.calls = 1 if length > 1 else self.capacity - self.start
        cache = StaticCache(config=config, max_cache_len=self.capacity)
        heads = (config.num_key_value_heads, config.head_dim)
        cache.early_initialization(rows, *heads, torch.bfloat16, model.device)
        self.cache, self.inputs = cache, model.tokens(rows, length)
        position = torch.arange(self.start, self.start + length, device=model.device)[None]
        module, keywords = model.module, {model._cache_name: cache}

        def forward(x: Tensor) -> Tensor:
            return module(inputs_embeds=x, position_ids=position, **keywords).last_hidden_state

        self.forward: Callable[[Tensor], Tensor] = forward
        self.prepare()

    def prepare(self) -> None:
        """Sets the cache back; after it, `calls` calls may follow."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.start)


def _random_module(preset: Preset, layers: int, device: torch.device) -> tuple[nn.Module, Any]:
    try:
        import transformers
    except ImportError:
        raise Unavailable("library transformers: not installed. Install the extra bench.") from None
    kinds = {"llama": ("LlamaConfig", "LlamaModel"), "qwen3": ("Qwen3Config", "Qwen3Model")}
    config_name, model_name = kinds[preset.family]
    config = getattr(transformers, config_name)(
        hidden_size=preset.hidden,
        intermediate_size=preset.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=preset.heads,
        num_key_value_heads=preset.kv_heads,
        head_dim=preset.head_dim,
        vocab_size=128,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
    )
    with torch.device(device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            module = getattr(transformers, model_name)(config).eval()
        finally:
            torch.set_default_dtype(default)
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            nn.init.normal_(parameter, 1.0, 0.1)
    return module, config
