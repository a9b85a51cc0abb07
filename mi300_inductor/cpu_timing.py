"""The time model's constants of this machine's CPU, measured once and cached.

Bandwidth by a copy inside the caches and by reading weights beyond them; element-wise rates by a
small norm, as operator and as Inductor's code; matrix rates by small products of both, of one row
and of many; the overhead of a call by tiny ones.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mi300_inductor import build, cache, inductor, ops
from mi300_inductor.arch import CPU, ArchSpec, MatrixRate, Timing
from mi300_inductor.graph.work import NORM_FLOPS, QUANT_FLOPS
from mi300_inductor.measure import time_calls

_CPU = torch.device("cpu")
_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
# A row problem that stays in a core's cache, and one so small that only its overhead counts.
_ROWS, _HIDDEN, _TINY = 32, 2048, 16
_PRODUCT = (512, 512)
_MANY_ROWS = 64
# Weights that no cache holds.
_FAR = (16384, 16384)
_ADD_NORM_QUANT = 1 + NORM_FLOPS + QUANT_FLOPS


def measured_cpu() -> ArchSpec:
    """`arch.CPU` with constants of this machine and the current number of threads.

    Raises:
        RuntimeError: if the operators cannot be built.
    """
    threads = torch.get_num_threads()
    key = ("cpu timing", build.cpu_name(), build.cpu_level(), threads, torch.__version__)
    path = cache.cached((*key, Path(__file__)), "cpu_timing.json", _write)
    known = json.loads(path.read_text())
    rates = tuple(MatrixRate(**rate) for rate in known.pop("matrix_rates"))
    return dataclasses.replace(CPU, timing=Timing(**known, matrix_rates=rates))


def _write(path: Path) -> None:
    with inductor.outside_fake_mode(), torch.no_grad():
        path.write_text(json.dumps(dataclasses.asdict(_measure()), indent=1))


class _Chain(nn.Module):
    """A residual add, a norm and a static quantisation."""

    def forward(self, x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
        """Returns the codes and the sum."""
        h = x + residual
        wide = h.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(_BF16) * weight
        return (y.float() / scale).clamp(-448.0, 448.0).to(_FP8), h


def _measure() -> Timing:
    """Measures everything; about ten seconds, most of it Inductor's compilation."""
    chain = _Chain()
    inputs = {rows: _chain_inputs(rows, hidden) for rows, hidden in ((_ROWS, _HIDDEN), (1, _TINY))}
    compiled = {
        rows: inductor.compile_plain(torch.fx.symbolic_trace(chain), given)
        for rows, given in inputs.items()
    }
    calls: list[Callable[[], Any]] = []
    for rows, given in inputs.items():
        calls.append(lambda given=given: _operator(*given))  # type: ignore[misc]
        calls.append(lambda rows=rows, given=given: compiled[rows](*given))  # type: ignore[misc]
    operator, generated, operator_call, generated_call = time_calls(calls, _CPU)
    work = _ROWS * _HIDDEN * _ADD_NORM_QUANT
    near, far = _copy_rate(2**20), _read_rate()
    return Timing(
        launch=operator_call,
        generated_launch=generated_call,
        memory_latency=0.0,
        cache_latency=0.0,
        bandwidth=far,
        cache_bandwidth=max(near, far),
        cache_bytes=float(2**21 * torch.get_num_threads()),
        bytes_in_flight=1e12,
        vector_rate=work / max(operator - operator_call, 1e-9),
        generated_rate=work / max(generated - generated_call, 1e-9),
        matrix_rates=_matrix_rates(operator_call),
    )


def _chain_inputs(rows: int, hidden: int) -> list[Tensor]:
    x, residual = torch.randn(2, rows, hidden).to(_BF16).unbind()
    return [x, residual, torch.ones(hidden, dtype=_BF16), torch.ones(1)]


def _operator(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
    return ops.add_rms_norm_quant(x, residual, weight, scale, norm_dtype=_BF16)


def _copy_rate(size: int) -> float:
    """Bytes per second that a copy reads and writes."""
    source = torch.ones(size, dtype=torch.uint8)
    target = torch.empty_like(source)
    (seconds,) = time_calls([lambda: target.copy_(source)], _CPU)
    return 2 * size / seconds


def _read_rate() -> float:
    """Bytes per second at which weights are read by a product of one row."""
    n, k = _FAR
    a, weight = torch.ones(1, k, dtype=_BF16), torch.ones(n, k, dtype=_BF16)
    (seconds,) = time_calls([lambda: ops.skinny_gemm(a, weight)], _CPU)
    return weight.nbytes / seconds


def _matrix_rates(overhead: float) -> tuple[MatrixRate, ...]:
    """Rates of small products, ours and PyTorch's, FP8 and bf16."""
    n, k = _PRODUCT
    many, one = _product_seconds(_MANY_ROWS, overhead), _product_seconds(1, overhead)
    rates = []
    for source, size in many:
        each = max(many[source, size] - one[source, size], 1e-9) / (_MANY_ROWS - 1)
        rest = max(one[source, size] - each, 1e-9)
        rates.append(MatrixRate(source, size, 2 * n * k / each, n * k / rest))
    return tuple(rates)


def _product_seconds(rows: int, overhead: float) -> dict[tuple[str, int], float]:
    """Seconds of a product in the cache, by who wrote it and its operands' size."""
    n, k = _PRODUCT
    one = torch.ones(1)
    a, b = torch.randn(rows, k).to(_BF16), torch.randn(n, k).to(_BF16)
    narrow_a, narrow_b = a.to(_FP8), b.to(_FP8)
    calls = {
        ("operator", 2): lambda: ops.skinny_gemm(a, b),
        ("operator", 1): lambda: ops.skinny_gemm(narrow_a, narrow_b, one, one),
        ("library", 2): lambda: torch.mm(a, b.t()),
        ("library", 1): lambda: torch._scaled_mm(narrow_a, narrow_b.t(), one, one, out_dtype=_BF16),
    }
    times = time_calls(list(calls.values()), _CPU)
    return {key: seconds - overhead for key, seconds in zip(calls, times, strict=True)}
