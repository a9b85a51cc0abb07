"""Every skinny GEMM kernel, executed from the code object that ships, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from mi300_inductor.gemm_plan import Form

from ..cdna3.device import Schedule
from ..kernels import reference
from .gemm import GemmCall, prepare_gemm

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fnuz


@dataclass(frozen=True)
class GemmCase:
    """A call; `cu_count` and `form` steer the plan, `pad` sets rows of the operands apart."""

    m: int
    n: int
    k: int
    dtype: torch.dtype
    form: Form = Form.ANY
    out_dtype: torch.dtype = BF16
    vectors: bool = True  # one scale per row and per column
    bias: bool = False
    addend: str = ""
    pad: int = 0
    cu_count: int = 304

    @property
    def name(self) -> str:
        """For pytest."""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.form.name.lower()}-{self.m}x{self.n}x{self.k}-{dtype}-cu{self.cu_count}"

    def operands(self) -> dict[str, Tensor | None]:
        """Random operands with zeros and large values among them."""
        size = self.k + self.pad
        a, weight = torch.randn(self.m, size), torch.randn(self.n, size)
        a[:, ::31] *= 8
        weight[self.n // 2] = 0
        given: dict[str, Tensor | None] = {
            "a": a.to(self.dtype)[:, : self.k],
            "weight": weight.to(self.dtype)[:, : self.k],
        }
        if self.dtype == FP8:
            given["scale_a"] = torch.rand(self.m if self.vectors else 1) + 0.1
            given["scale_b"] = torch.rand(self.n if self.vectors else 1) + 0.1
        if self.bias:
            given["bias"] = torch.randn(self.n).to(self.out_dtype)
        if self.addend:
            shape = (self.n,) if self.addend == "row" else (self.m, self.n)
            given["addend"] = torch.randn(shape).to(self.out_dtype)
        return given

    def prepare(self, given: dict[str, Tensor | None], count_reads: bool = False) -> GemmCall:
        """The call on the device."""
        return prepare_gemm(
            **given, out_dtype=self.out_dtype, form=self.form, count_reads=count_reads
        )


def _cases() -> list[GemmCase]:
    cases = []
    for dtype, k in ((FP8, 1072), (BF16, 536), (F16, 536)):
        for cu_count in (304, 2):
            cases += [
                GemmCase(1, 80, k, dtype, Form.DENSE, cu_count=cu_count),
                GemmCase(7, 250, k, dtype, Form.DENSE, F32, bias=True, cu_count=cu_count),
                GemmCase(16, 250, k, dtype, Form.DENSE, F16, addend="row", cu_count=cu_count),
                GemmCase(29, 250, k, dtype, Form.DENSE, vectors=False, cu_count=cu_count),
                GemmCase(64, 120, k, dtype, Form.DENSE, addend="full", cu_count=cu_count),
            ]
        cases += [
            GemmCase(5, 70, 333, dtype, Form.ANY, bias=True),
            GemmCase(33, 40, 129, dtype, Form.ANY, pad=1, vectors=False),
            GemmCase(2, 64, 1, dtype, Form.ANY),
            GemmCase(4, 64, 16, dtype, Form.ANY, pad=16),
        ]
    for form, rows in ((Form.SPARSE, (1, 8)), (Form.RING, (3, 8, 16))):
        for m in rows:
            for cu_count in (304, 2):
                cases.append(GemmCase(m, 250, 1072, FP8, form, cu_count=cu_count))
                cases.append(GemmCase(m, 80, 4096, FP8, form, F32, False, cu_count=cu_count))
    return cases


CASES = _cases()


def check_product(case: GemmCase, given: dict[str, Tensor | None], got: Tensor) -> None:
    names = ("a", "weight", "scale_a", "scale_b", "bias", "addend")
    values = [given.get(name) for name in names]
    exact = reference.skinny_gemm(*values, torch.float64)  # type: ignore[arg-type]
    wide = [None if v is None else v.double().abs() for v in values]
    size = reference.skinny_gemm(*wide, torch.float64)  # type: ignore[arg-type]
    # fp32 sums of k products in any order, then one or two roundings to out_dtype.
    rounding = torch.finfo(case.out_dtype).eps * (1 + bool(case.addend))
    bound = size * (2.0**-22 * (4 + case.k**0.5)) + exact.abs() * rounding + 1e-30
    if case.addend:
        bound = bound + size * 2.0**-22 + values[5].double().abs() * rounding  # type: ignore[union-attr]
    error = (got.double() - exact).abs()
    assert (error <= bound).all(), f"{(error / bound).max().item()} of the bound"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_kernel_equals_the_product(case):
    given = case.operands()
    call = case.prepare(given)
    assert call.plan(case.cu_count).launch_count > 0
    check_product(
        case, given, call.run(Schedule(seed=case.n, resident=2, noise=case.k), case.cu_count)
    )
