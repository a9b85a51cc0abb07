"""Calls of the norm and SiLU operators that together reach every kernel, with awkward data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mi300_inductor.ops import SCHEMAS

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
E4M3FN, E4M3FNUZ, E5M2 = torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2
LIMIT = {E4M3FN: 448.0, E4M3FNUZ: 240.0, E5M2: 57344.0}
INFINITY = float("inf")
OPS = tuple(SCHEMAS)


def rows_of(rows: int, hidden: int, dtype: torch.dtype, pad: int = 0) -> Tensor:
    """Random rows with outliers, zeros, subnormals, NaN and infinities; `pad` between rows."""
    x = torch.randn(rows, hidden + pad).to(dtype)
    x[:, ::97] *= 30
    x[:, 3 % hidden] = 0
    x[:, 5 % hidden] = torch.finfo(dtype).smallest_normal / 4
    if rows > 2:
        x[rows - 1, hidden // 2] = float("nan")
        x[rows - 2, hidden - 1] = INFINITY
        x[0] = 0
    return x[:, :hidden]


@dataclass(frozen=True)
class Case:
    """A call by its kind; `build` makes its arguments.

    Attributes:
        op: Operator.
        rows: Rows.
        hidden: Elements of a row.
        dtype: Of the inputs.
        change: Arguments that differ from the usual ones.
        pad: Elements between rows.
        misalign: Bytes that the inputs are off a 256-byte boundary.
        cu_count: Compute units of the device that is planned for; few make kernels persistent.
        no_weight: Without a norm weight.
        packed: Gate and up are the halves of one tensor's rows.
    """

    op: str
    rows: int
    hidden: int
    dtype: torch.dtype = BF16
    change: dict[str, Any] = field(default_factory=dict)
    pad: int = 0
    misalign: int = 0
    cu_count: int | None = None
    no_weight: bool = False
    packed: bool = False

    @property
    def name(self) -> str:
        """For pytest."""
        changes = "-".join(f"{k}={str(v).replace('torch.', '')}" for k, v in self.change.items())
        dtype = str(self.dtype).removeprefix("torch.")
        place = "packed" if self.packed else f"p{self.pad}m{self.misalign}"
        return f"{self.op}-{self.rows}x{self.hidden}-{dtype}-{changes}-{place}"

    def build(self) -> dict[str, Any]:
        """The operator's arguments by name, in its order."""
        rows, hidden, dtype = self.rows, self.hidden, self.dtype
        given: dict[str, Any] = {}
        if "silu" in self.op:
            if self.packed:
                given["gate"], given["up"] = rows_of(rows, 2 * hidden, dtype).split(hidden, 1)
            else:
                given["gate"] = rows_of(rows, hidden, dtype, self.pad)
                given["up"] = rows_of(rows, hidden, dtype, self.pad)
            given |= {"sigmoid_dtype": None, "act_dtype": dtype, "y_dtype": dtype}
        else:
            given["x"] = rows_of(rows, hidden, dtype, self.pad)
            if self.op.startswith("add"):
                given["residual"] = rows_of(rows, hidden, dtype)
                given |= {"sum_dtype": dtype, "residual_dtype": dtype}
            weight = None if self.no_weight else (torch.randn(hidden) + 1).to(dtype)
            given |= {"weight": weight, "eps": 1e-5, "weight_offset": 0.0}
            given |= {"norm_dtype": dtype, "y_dtype": dtype}
        if self.op.endswith("quant"):
            count = self.change.get("scale_count", 1)
            given["scales"] = [torch.rand(1) * 0.05 + 0.01 for _ in range(count)]
        if self.op.endswith("dynamic"):
            given |= {"group_size": -1, "scale_form": "amax_div", "scale_const": 240.0}
            given |= {"amax_min": 0.0, "scale_min": 1e-12}
        if "quant" in self.op:
            limit = LIMIT[self.change.get("q_dtype", E4M3FNUZ)]
            given |= {"q_dtype": E4M3FNUZ, "scaling": "div", "scaled_dtype": F32}
            given |= {"clamp_min": -limit, "clamp_max": limit, "return_y": False}
        return given | {k: v for k, v in self.change.items() if k in given}


def _cases() -> list[Case]:
    quant, dynamic, add = "rms_norm_quant", "rms_norm_quant_dynamic", "add_rms_norm"
    cases = []
    for dtype in (BF16, F16):
        for hidden in (512, 12288, 32768):  # one, two and four vectors a lane
            rows = 4 if hidden == 512 else 3
            cases += [
                Case(add, rows, hidden, dtype),
                Case(f"add_{quant}", rows, hidden, dtype, {"scale_count": 3, "return_y": True}),
                Case(f"add_{dynamic}", rows, hidden, dtype, {"q_dtype": E4M3FN}),
                Case(dynamic, rows, hidden, dtype, {"group_size": 128, "return_y": True}),
            ]
        for hidden in (512, 12288, 24576, 49152):
            cases.append(
                Case(
                    "silu_mul_quant_dynamic",
                    3,
                    hidden,
                    dtype,
                    {"scale_const": 448.0, "q_dtype": E4M3FN, "return_y": hidden == 512},
                )
            )
        cases += [
            Case("silu_mul", 5, 1032, dtype),
            Case("silu_mul_quant", 5, 1032, dtype, {"q_dtype": E4M3FN, "scale_count": 2}),
            Case("silu_mul_quant", 64, 2048, dtype, {"return_y": True}, pad=2048, cu_count=2),
            Case("silu_mul_quant_dynamic", 5, 1024, dtype, {"group_size": 64}),
            Case("silu_mul_quant_dynamic", 64, 2048, dtype, {"group_size": 512}, cu_count=2),
            Case(f"add_{dynamic}", 5, 520, dtype, {"group_size": 0}),
            Case("silu_mul_quant_dynamic", 4, 520, dtype, {"group_size": 0, "return_y": True}),
            Case(f"add_{quant}", 40, 1032, dtype, {"q_dtype": E4M3FN}, pad=24, cu_count=1),
        ]
    return cases + _awkward_cases()


def _awkward_cases() -> list[Case]:
    quant, dynamic = "rms_norm_quant", "rms_norm_quant_dynamic"
    reciprocal = {"scale_form": "reciprocal_mul"}
    special = {"clamp_min": -INFINITY, "clamp_max": INFINITY}
    return [
        Case("rms_norm", 1, 8, no_weight=True),
        Case("rms_norm", 3, 77),
        Case("rms_norm", 3, 257, F32),
        Case("rms_norm", 4, 512, misalign=2),
        Case("rms_norm", 4, 264, F16, {"weight_offset": 1.0, "norm_dtype": F32}),
        Case(quant, 4, 264, BF16, {"scaling": "mul_reciprocal", "norm_dtype": F32, "y_dtype": F32}),
        Case(quant, 4, 264, BF16, {"scaling": "mul", "scaled_dtype": BF16}),
        Case(quant, 4, 264, F16, {"scaled_dtype": F16}),
        Case(quant, 3, 101, BF16, {"q_dtype": E5M2, **special}),
        Case(quant, 3, 1024, BF16, special),
        Case(quant, 3, 1024, BF16, {"q_dtype": E4M3FN, **special}),
        Case(dynamic, 3, 264, BF16, {"scale_form": "div_amax", "scaling": "mul", "amax_min": 1e-4}),
        Case(dynamic, 3, 264, F16, {"scale_form": "amax_mul", "scale_const": 1 / 240}),
        Case(dynamic, 3, 264, BF16, {**reciprocal, "scaling": "mul", "amax_min": 1e-4}),
        Case(dynamic, 3, 101, F32, {**reciprocal, "scaling": "mul", "amax_min": 1e-4}),
        Case("silu_mul_quant_dynamic", 3, 512, F16, {**reciprocal, "group_size": 64}),
        Case("silu_mul_quant_dynamic", 3, 512, BF16, reciprocal, packed=True),
        *_rounded_scales(),
        Case(dynamic, 3, 96, BF16, {"group_size": 12}),
        Case(f"add_{dynamic}", 3, 90, F32, {"return_y": True}),
        Case("silu_mul", 3, 77, F32),
        Case("silu_mul", 2, 4104, BF16, {"sigmoid_dtype": BF16}),
        Case("silu_mul_quant_dynamic", 3, 90, BF16),
        Case("silu_mul_quant_dynamic", 3, 96, F16, {"group_size": 24, "q_dtype": E5M2}),
    ]


def _rounded_scales() -> list[Case]:
    """Scales that are computed in the dtype of y, by every kernel that computes one."""
    norm, silu = "rms_norm_quant_dynamic", "silu_mul_quant_dynamic"
    divided = {"scale_form": "amax_div_rounded", "return_y": True}
    inverse = {"scale_form": "reciprocal_mul_rounded", "scaling": "mul", "amax_min": 1e-3}
    return [
        Case(f"add_{norm}", 4, 512, BF16, divided),
        Case(norm, 4, 512, F16, {**divided, "scale_const": 57344.0, "q_dtype": E4M3FN}),
        Case(norm, 4, 512, F16, {**inverse, "return_y": True}),
        Case(norm, 3, 512, BF16, {**divided, "group_size": 128}),
        Case(norm, 4, 264, BF16, {**divided, "group_size": 0}),
        Case(norm, 3, 101, F16, {**divided, "scale_form": "amax_mul_rounded", "scale_const": 1e-3}),
        Case(silu, 4, 512, BF16, {**inverse, "return_y": True}),
        Case(silu, 4, 512, F16, {**divided, "scaled_dtype": F16, "group_size": 64}),
        Case(silu, 3, 96, BF16, {**divided, "scale_form": "div_amax_rounded", "group_size": 12}),
    ]


CASES = _cases()
