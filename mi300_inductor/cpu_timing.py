"""The time model's constants of this machine's CPU, measured once and cached.

Bandwidth by a copy inside the caches and by reading weights beyond them; element-wise rates by a
small norm and activation, as operators and as Inductor's code; matrix rates by products of one row
and of many, their weights in a cache; the overhead of a call by tiny ones.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mi300_inductor import build, cache, inductor, ops
from mi300_inductor.arch import CPU, ArchSpec, MatrixRate, Timing
from mi300_inductor.graph.work import NORM_FLOPS, QUANT_FLOPS, SILU_FLOPS
from mi300_inductor.measure import Call, time_undisturbed

_CPU = torch.device("cpu")
_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
# A row problem that stays in a core's cache, and one so small that only its overhead counts.
_ROWS, _HIDDEN, _TINY = 32, 2048, 16
# Of the codes: with much larger ones most are subnormal, which takes longer.
_SCALE = 0.05
# Weights in the cache; k is of a model's size, so that activations come from where they do there.
_PRODUCT = (128, 4096)
_MANY_ROWS = 64
# Bytes that are copied inside the caches.
_NEAR = 2**20
# Weights that no cache holds.
_FAR = (16384, 16384)
# How often a disturbed measurement is made again.
_ATTEMPTS = 5
# For each element of a residual add, a norm and its quantisation, and of an activation and its own.
_OPERATIONS = 1 + NORM_FLOPS + SILU_FLOPS + 2 * QUANT_FLOPS


def measured_cpu() -> ArchSpec:
    """`arch.CPU` with constants of this machine and the current number of threads.

    Raises:
        RuntimeError: if the operators cannot be built.
    """
    threads = torch.get_num_threads()
    # The library's path has the hash of its sources: other kernels have other rates.
    library = str(build.build_cpu())
    key = ("cpu timing", build.cpu_name(), library, threads, torch.__version__, Path(__file__))
    path = cache.cached(key, "cpu_timing.json", _write)
    known = json.loads(path.read_text())
    rates = tuple(MatrixRate(**rate) for rate in known.pop("matrix_rates"))
    return dataclasses.replace(CPU, timing=Timing(**known, matrix_rates=rates))


def _write(path: Path) -> None:
    with inductor.outside_fake_mode(), torch.no_grad():
        measured = calls()
        for _ in range(_ATTEMPTS):
            seconds = time_undisturbed(list(measured.values()), _CPU)
            found = dict(zip(measured, seconds, strict=True))
            disturbed = without_growth(found)
            if not disturbed:
                break
        else:
            raise RuntimeError(
                f"cpu_timing: this CPU is too busy to be measured; got no more time for the larger "
                f"of {disturbed[0]}, expected more. Run it again on an idle machine."
            )
    known = timing(found)
    path.write_text(json.dumps(dataclasses.asdict(known), indent=1))


class _Norm(nn.Module):
    """A residual add, a norm and a static quantisation."""

    def forward(self, x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
        """Returns the codes and the sum."""
        h = x + residual
        wide = h.float()
        y = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(_BF16) * weight
        return _codes(y, scale), h


class _Activation(nn.Module):
    """SiLU, a product and a static quantisation; `weight` is not used."""

    def forward(self, gate: Tensor, up: Tensor, weight: Tensor, scale: Tensor) -> Any:
        """Returns the codes."""
        return (_codes(nn.functional.silu(gate) * up, scale),)


def _codes(y: Tensor, scale: Tensor) -> Tensor:
    return (y.float() / scale).clamp(-448.0, 448.0).to(_FP8)


def _norm(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> Any:
    return ops.add_rms_norm_quant(x, residual, weight, scale, norm_dtype=_BF16)


def _activation(gate: Tensor, up: Tensor, weight: Tensor, scale: Tensor) -> Any:
    return ops.silu_mul_quant(gate, up, scale)


def calls() -> dict[str, Call]:
    """What is measured, by name; Inductor compiles four of them, which takes some seconds."""
    found: dict[str, Call] = {}
    for name, rows, hidden in (("rows", _ROWS, _HIDDEN), ("call", 1, _TINY)):
        x, residual = torch.randn(2, rows, hidden).to(_BF16).unbind()
        given = [x, residual, torch.ones(hidden, dtype=_BF16), torch.full((1,), _SCALE)]
        for chain, operator in ((_Norm(), _norm), (_Activation(), _activation)):
            compiled = inductor.compile_plain(torch.fx.symbolic_trace(chain), given)
            family = operator.__name__
            found[f"operator{family} {name}"] = functools.partial(operator, *given)
            found[f"generated{family} {name}"] = functools.partial(compiled, *given)
    source = torch.ones(_NEAR, dtype=torch.uint8)
    target = torch.empty_like(source)
    found["near"] = lambda: target.copy_(source)
    a, weight = torch.ones(1, _FAR[1], dtype=_BF16), torch.ones(_FAR, dtype=_BF16)
    found["far"] = lambda: ops.skinny_gemm(a, weight)
    return {**found, **dict(_products(1)), **dict(_products(_MANY_ROWS))}


def _products(rows: int) -> Iterator[tuple[str, Call]]:
    """Products of so many rows, ours and PyTorch's, of FP8 and bf16."""
    n, k = _PRODUCT
    one = torch.ones(1)
    a, b = torch.randn(rows, k).to(_BF16), torch.randn(n, k).to(_BF16)
    narrow_a, narrow_b = a.to(_FP8), b.to(_FP8)
    yield f"operator 2 {rows}", lambda: ops.skinny_gemm(a, b)
    yield f"operator 1 {rows}", lambda: ops.skinny_gemm(narrow_a, narrow_b, one, one)
    yield f"library 2 {rows}", lambda: torch.mm(a, b.t())
    yield (
        f"library 1 {rows}",
        lambda: torch._scaled_mm(narrow_a, narrow_b.t(), one, one, out_dtype=_BF16),
    )


def without_growth(seconds: Mapping[str, float]) -> list[str]:
    """Calls that took no longer than smaller ones of their kind, from which no rate follows."""
    pairs = [
        (f"{source}_{family} rows", f"{source}_{family} call")
        for source in ("operator", "generated")
        for family in ("norm", "activation")
    ]
    pairs += [
        (f"{source} {size} {_MANY_ROWS}", f"{source} {size} 1")
        for source in ("operator", "library")
        for size in (1, 2)
    ]
    return [
        f"`{large}` and `{small}`" for large, small in pairs if seconds[large] <= seconds[small]
    ]


def timing(seconds: Mapping[str, float]) -> Timing:
    """The constants that follow from what the calls took."""

    def of_rows(source: str, name: str) -> float:
        return sum(seconds[f"{source}_{family} {name}"] for family in ("norm", "activation"))

    # A norm and an activation together, so that neither's own instructions decide.
    work = _ROWS * _HIDDEN * _OPERATIONS
    calls_s = {source: of_rows(source, "call") for source in ("operator", "generated")}
    rate = {s: work / max(of_rows(s, "rows") - calls_s[s], 1e-9) for s in calls_s}
    near, far = 2 * _NEAR / seconds["near"], 2 * _FAR[0] * _FAR[1] / seconds["far"]
    launch = calls_s["operator"] / 2
    rates = [
        _matrix_rate(seconds, launch, source, size)
        for source in ("operator", "library")
        for size in (2, 1)
    ]
    return dataclasses.replace(
        CPU.timing,
        launch=launch,
        generated_launch=calls_s["generated"] / 2,
        bandwidth=far,
        cache_bandwidth=max(near, far),
        cache_bytes=float(2**21 * torch.get_num_threads()),
        bytes_in_flight=1e12,
        vector_rate=rate["operator"],
        generated_rate=rate["generated"],
        matrix_rates=tuple(rates),
    )


def _matrix_rate(seconds: Mapping[str, float], launch: float, source: str, size: int) -> MatrixRate:
    n, k = _PRODUCT
    one, many = (seconds[f"{source} {size} {rows}"] for rows in (1, _MANY_ROWS))
    each = max(many - one, 1e-9) / (_MANY_ROWS - 1)
    rest = max(one - launch - each, 1e-9)
    return MatrixRate(source, size, 2 * n * k / each, n * k / rest)
