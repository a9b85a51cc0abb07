"""Kernels of other libraries for the same chains, where they can be imported.

They write into tensors they are given and change the residual in place; copies for that are made
once, outside of what is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.chains import EPS, Case
from benchmarks.header import has_module

Note = Callable[[str], None]
NAMES = ("flashinfer", "vllm", "aiter")


def row_kernels(case: Case, note: Note) -> dict[str, Callable[..., object]]:
    """Calls by the library's name for a case; `note` is told which library is not there."""
    found = {}
    for name in NAMES:
        if not has_module(name):
            note(f"library {name}: not installed")
            continue
        try:
            make = MAKERS.get((name, case.family, case.form))
            if make is not None:
                found[name] = make(importlib.import_module(name), case)
        except (ImportError, AttributeError, OSError) as error:
            note(f"library {name}: {type(error).__name__}: {error}")
    return found


class Outputs:
    """Result tensors of a case, made at the first call for each device."""

    def __init__(self, case: Case) -> None:
        self.case, self.made = case, {}

    def __getitem__(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """(quantised rows, one scale a row, a residual that may be changed)."""
        if device not in self.made:
            shape = (self.case.rows, self.case.hidden)
            self.made[device] = (
                torch.empty(shape, dtype=self.case.q_dtype, device=device),
                torch.empty((shape[0], 1), device=device),
                torch.zeros(shape, dtype=self.case.dtype, device=device),
            )
        made: tuple[Tensor, Tensor, Tensor] = self.made[device]
        return made


def flashinfer_norm(library: Any, case: Case) -> Callable[..., object]:
    outputs, kernel = Outputs(case), library.norm.fused_add_rmsnorm_quant

    def call(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        return kernel(outputs[x.device][0], x, residual, weight, scale, EPS, enable_pdl=True)

    return call


def vllm_norm(_: Any, case: Case) -> Callable[..., object]:
    importlib.import_module("vllm._custom_ops")
    outputs, kernel = Outputs(case), torch.ops._C.fused_add_rms_norm_static_fp8_quant

    def call(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        return kernel(outputs[x.device][0], x, residual, weight, scale, EPS)

    return call


def vllm_norm_per_token(_: Any, case: Case) -> Callable[..., object]:
    importlib.import_module("vllm._custom_ops")
    outputs, kernel = Outputs(case), torch.ops._C.rms_norm_dynamic_per_token_quant

    def call(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        q, scales, _ = outputs[x.device]
        return kernel(q, x, weight, scales, EPS, None, residual)

    return call


def vllm_silu(_: Any, case: Case) -> Callable[..., object]:
    importlib.import_module("vllm._custom_ops")
    outputs, kernel = Outputs(case), torch.ops._C.silu_and_mul_quant

    def call(packed: Tensor, scale: Tensor) -> object:
        return kernel(outputs[packed.device][0], packed, scale)

    return call


def aiter_norm_per_token(library: Any, case: Case) -> Callable[..., object]:
    outputs, kernel = Outputs(case), library.rmsnorm2d_fwd_with_add_dynamicquant

    def call(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
        q, scales, residual_out = outputs[x.device]
        return kernel(q, x, residual, residual_out, scales, weight, EPS)

    return call


def aiter_silu(library: Any, case: Case) -> Callable[..., object]:
    outputs, kernel = Outputs(case), library.scaled_silu_and_mul

    def call(packed: Tensor, scale: Tensor) -> object:
        return kernel(outputs[packed.device][0], packed, scale)

    return call


MAKERS: dict[tuple[str, str, str], Callable[[Any, Case], Callable[..., object]]] = {
    ("flashinfer", "norm", "static"): flashinfer_norm,
    ("vllm", "norm", "static"): vllm_norm,
    ("vllm", "norm", "per_token"): vllm_norm_per_token,
    ("vllm", "silu", "static"): vllm_silu,
    ("aiter", "norm", "per_token"): aiter_norm_per_token,
    ("aiter", "silu", "static"): aiter_silu,
}
