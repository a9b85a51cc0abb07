"""The chains of operators that are fused, as a model spells them, and our operator for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mi300_inductor as mi

EPS = 1e-5
FAMILIES = ("norm", "silu")
FORMS = ("static", "per_token", "per_group")
GROUP = 128  # elements that have a scale of their own in the last of them
Buffers = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        family: "norm" is residual add, RMSNorm and quantisation; "silu" is SiLU(gate) * up and
            quantisation, gate and up in one packed tensor.
        form: "static", one given scale; "per_token", a scale from each row; "per_group", one from
            each 128 elements of a row.
        hidden: Length of a row.
        rows: Number of rows.
        dtype: Of the inputs.
        q_dtype: Of the result.
    """

    family: str
    form: str
    hidden: int
    rows: int
    dtype: torch.dtype
    q_dtype: torch.dtype

    @property
    def bytes_moved(self) -> int:
        """Each input read once, each output written once, scales left out."""
        is_norm = self.family == "norm"
        wide, weight = self.dtype.itemsize * (3 if is_norm else 2), self.dtype.itemsize * is_norm
        return ((wide + self.q_dtype.itemsize) * self.rows + weight) * self.hidden

    @property
    def operations(self) -> int:
        """Arithmetic operations, roughly: what a roofline needs."""
        return (8 if self.family == "norm" else 10) * self.hidden * self.rows

    def record(self) -> dict[str, object]:
        """The case in a result."""
        names = (str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.q_dtype))
        return {
            **{"family": self.family, "form": self.form, "hidden": self.hidden, "rows": self.rows},
            **dict(zip(("dtype", "q_dtype"), names, strict=True)),
        }

    def buffers(self, device: torch.device, count: int) -> list[Buffers]:
        """Sets of inputs: random rows with a few outliers."""
        width = self.hidden * (1 if self.family == "norm" else 2)
        shape, scale = (count, self.rows, width), torch.full((1,), 0.05, device=device)
        x = torch.randn(shape, device=device)
        x[..., :: max(self.hidden // 4, 1)] *= 16
        inputs = [x.to(self.dtype)]
        del x
        if self.family == "norm":
            inputs.append(torch.randn(shape, device=device).to(self.dtype))
            weights = torch.normal(1.0, 0.1, (count, width), device=device)
            inputs.append(weights.to(self.dtype))
        return [(*of_set, scale) for of_set in zip(*inputs, strict=True)]

    def eager(self) -> Callable[..., object]:
        """The chain on the tensors of one set of buffers."""
        largest, q_dtype = torch.finfo(self.q_dtype).max, self.q_dtype

        def quantize(y: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            return ((y.float() / scale).clamp(-largest, largest).to(q_dtype),)

        def quantize_per_token(y: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            own = y.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / largest
            return (y.float() / own).clamp(-largest, largest).to(q_dtype), own

        def quantize_per_group(y: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            groups = y.float().unflatten(-1, (-1, GROUP))
            own = groups.abs().amax(-1, keepdim=True).clamp_min(1e-12) / largest
            codes = (groups / own).clamp(-largest, largest).to(q_dtype).flatten(-2)
            return codes, own.squeeze(-1)

        of_form = dict(zip(FORMS, (quantize, quantize_per_token, quantize_per_group), strict=True))
        finish = of_form[self.form]

        def norm(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            h = x + residual
            wide = h.float()
            normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
            return (*finish(weight * normed.to(h.dtype), scale), h)

        def silu(packed: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            gate, up = packed.chunk(2, -1)
            return finish(F.silu(gate) * up, scale)

        return norm if self.family == "norm" else silu

    def ours(self) -> Callable[..., object]:
        """The operator of this package on the same tensors."""
        norm = {"eps": EPS, "norm_dtype": self.dtype}
        target: dict[str, Any] = {"q_dtype": self.q_dtype}
        is_static = self.form == "static"
        if self.form == "per_group":
            target["group_size"] = GROUP

        def run_norm(x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor) -> object:
            if is_static:
                return mi.ops.add_rms_norm_quant(x, residual, weight, scale, **norm, **target)
            return mi.ops.add_rms_norm_quant_dynamic(x, residual, weight, **norm, **target)

        def run_silu(packed: Tensor, scale: Tensor) -> object:
            gate, up = packed.chunk(2, -1)
            if is_static:
                return mi.ops.silu_mul_quant(gate, up, scale, **target)
            return mi.ops.silu_mul_quant_dynamic(gate, up, **target)

        return run_norm if self.family == "norm" else run_silu
