"""Calls of `skinny_gemm` that together reach every kernel, and the comparison with float64."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mi300_inductor.gemm_plan import Form

from ..cdna3.counters import Counters
from ..cdna3.device import Device, Schedule
from ..kernels import reference
from .gemm import SCALINGS, GemmCall, prepare_gemm

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fnuz


@dataclass(frozen=True)
class GemmCase:
    """A call of `skinny_gemm`.

    Attributes:
        m: Activation rows.
        n: Weight rows.
        k: Elements of a row.
        dtype: Of both operands.
        form: That the plan is restricted to.
        out_dtype: Of the output.
        scales: Whether there is a scale per row, and one per column (FP8).
        bias: Whether there is one.
        addend: None (""), one for all rows ("row") or one per element ("full").
        term_dtype: Of bias and addend; None means the output's.
        pad: Elements between rows of the operands.
        cu_count: Compute units of the device that is planned for.
        special: NaN and infinity among the operands.
        products: With operands of their own in one launch (`skinny_gemm_list`).
        quant: Scaling with which the result is quantised (`skinny_gemm_quant`).
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype
    form: Form = Form.ANY
    out_dtype: torch.dtype = BF16
    scales: tuple[bool, bool] = (True, True)
    bias: bool = False
    addend: str = ""
    term_dtype: torch.dtype | None = None
    pad: int = 0
    cu_count: int = 304
    special: bool = False
    products: int = 1
    quant: str = ""

    @property
    def name(self) -> str:
        """For pytest."""
        dtypes = f"{self.dtype}-{self.out_dtype}".replace("torch.", "")
        scales = "".join("1m"[s] for s in self.scales) if self.dtype == FP8 else ""
        terms = [
            f"{self.products}x" * (self.products > 1),
            "bias" * self.bias,
            self.addend,
            self.quant,
            "special" * self.special,
            f"cu{self.cu_count}",
        ]
        parts = [self.form.name.lower(), f"{self.m}x{self.n}x{self.k}", dtypes, scales, *terms]
        return "-".join(part for part in parts if part)

    def operands(self) -> dict[str, Tensor | None]:
        """Random operands with zeros and large values among them."""
        size = self.k + self.pad
        a, weight = torch.randn(self.m, size), torch.randn(self.n, size)
        a[:, ::31] *= 8
        weight[self.n // 2] = 0
        if self.special:
            a[0, self.k // 2] = float("nan")
            weight[self.n - 1, 0] = float("nan" if self.dtype == FP8 else "-inf")
        given: dict[str, Tensor | None] = {
            "a": a.to(self.dtype)[:, : self.k],
            "weight": weight.to(self.dtype)[:, : self.k],
        }
        if self.dtype == FP8:
            for name, size, is_vector in zip("ab", (self.m, self.n), self.scales, strict=True):
                given[f"scale_{name}"] = torch.rand(size if is_vector else 1) + 0.1
        term_dtype = self.term_dtype or self.out_dtype
        if self.bias:
            given["bias"] = torch.randn(self.n).to(term_dtype)
        if self.addend:
            shape = (self.n,) if self.addend == "row" else (self.m, self.n)
            given["addend"] = torch.randn(shape).to(term_dtype)
        return given

    def prepare(
        self,
        given: dict[str, Tensor | None],
        count_reads: bool = False,
        device: Device | None = None,
        scale: Tensor | None = None,
    ) -> GemmCall:
        """The call on a device, quantised if there is a scale for it."""
        return prepare_gemm(
            **given,
            quant=None if scale is None else (self.quant, scale),
            out_dtype=self.out_dtype,
            form=self.form,
            count_reads=count_reads,
            device=device,
        )


def _cases() -> list[GemmCase]:
    cases = []
    for dtype, k in ((FP8, 1072), (BF16, 536), (F16, 536)):
        for cu_count in (304, 2):
            cases += [
                GemmCase(1, 80, k, dtype, Form.DENSE, cu_count=cu_count),
                GemmCase(7, 250, k, dtype, Form.DENSE, F32, bias=True, cu_count=cu_count),
                GemmCase(16, 250, k, dtype, Form.DENSE, F16, addend="row", cu_count=cu_count),
                GemmCase(29, 250, k, dtype, Form.DENSE, scales=(False, False), cu_count=cu_count),
                GemmCase(64, 120, k, dtype, Form.DENSE, addend="full", cu_count=cu_count),
            ]
        cases += [
            *(GemmCase(m, 48, 272, dtype, Form.DENSE) for m in (8, 9, 15, 17, 31, 32, 33, 63)),
            *(GemmCase(m, 20, 50, dtype, Form.UNALIGNED) for m in (1, 8, 16, 17, 64)),
            *(GemmCase(3, n, 16, dtype, Form.DENSE, F32, bias=True) for n in (1, 15, 17)),
            GemmCase(5, 48, 272, dtype, Form.DENSE, bias=True, addend="full", term_dtype=F32),
            GemmCase(5, 48, 272, dtype, Form.DENSE, special=True),
            GemmCase(5, 48, 272, dtype, Form.DENSE, scales=(True, False)),
            GemmCase(5, 48, 272, dtype, Form.DENSE, scales=(False, True)),
            GemmCase(5, 70, 333, dtype, bias=True),
            GemmCase(33, 40, 129, dtype, pad=1, scales=(False, False)),
            GemmCase(2, 64, 1, dtype),
            GemmCase(4, 64, 16, dtype, pad=16),
        ]
    for form, rows in ((Form.SPARSE, (1, 7, 8)), (Form.RING, (3, 8, 9, 16))):
        for m in rows:
            for cu_count in (304, 2):
                cases.append(GemmCase(m, 250, 1072, FP8, form, cu_count=cu_count))
                one = (False, False)
                cases.append(GemmCase(m, 80, 4096, FP8, form, F32, one, cu_count=cu_count))
        cases.append(GemmCase(2, 48, 512, FP8, form, special=True))
    return cases


def _quantised() -> list[GemmCase]:
    cases = []
    for dtype in (FP8, BF16, F16):
        forms = (Form.DENSE, Form.UNALIGNED, *((Form.SPARSE, Form.RING) if dtype == FP8 else ()))
        for index, form in enumerate(forms):
            for cu_count in (304, 2):
                quant, wide = SCALINGS[index % 3], (BF16, F16)[index % 2]
                one = GemmCase(7, 80, 544, dtype, form, wide, quant=quant, cu_count=cu_count)
                cases += [one, replace(one, n=42, bias=True, addend="full", quant="div")]
        dense = GemmCase(29, 40, 272, dtype, Form.DENSE, F32, quant="div", special=True)
        cases += [dense, replace(dense, m=61, addend="row", out_dtype=BF16, quant="mul")]
    return cases


CASES = _cases()
QUANTISED = _quantised()
LISTS = [
    GemmCase(m, 40, 272, dtype, form, products=products, cu_count=cu_count, bias=products == 3)
    for dtype in (FP8, BF16, F16)
    for form in (Form.DENSE, Form.UNALIGNED, *((Form.SPARSE, Form.RING) if dtype == FP8 else ()))
    for m, products in ((5, 3), (8, 2))
    for cu_count in (304, 1)
]


def check_codes(case: GemmCase, schedule: Schedule) -> list[Counters]:
    """Runs a call with and without quantisation: its codes are those of the other's result."""
    given, scale = case.operands(), torch.rand(1) * 0.2 + 0.01
    y = case.prepare(given).run(schedule, case.cu_count)
    call = case.prepare(given, scale=scale)
    got = call.run(schedule, case.cu_count)
    limit = torch.finfo(FP8).max
    want = reference.codes(y, scale, FP8, case.quant, F32, -limit, limit)
    check_product(case, given, y)
    assert torch.equal(got.view(torch.uint8), want.view(torch.uint8)), "codes differ"
    return call.counters


def check_product(
    case: GemmCase,
    given: dict[str, Tensor | None],
    got: Tensor,
    work: torch.dtype = torch.float64,
) -> None:
    """Within the rounding of fp32 sums in any order and of the result; NaN and infinity exactly.

    Args:
        case: The call.
        given: Its operands.
        got: Its output.
        work: Of the reference's sums; float32 is quicker and its own error is far below the bound.
    """
    names = ("a", "weight", "scale_a", "scale_b", "bias", "addend")
    values = [given.get(name) for name in names]
    exact = reference.skinny_gemm(*values, work, work)  # type: ignore[arg-type]
    wide = [None if v is None else v.to(work).abs() for v in values]
    size = reference.skinny_gemm(*wide, work, work)  # type: ignore[arg-type]
    # fp32 sums of k products in any order, then one or two roundings to out_dtype.
    rounding = torch.finfo(case.out_dtype).eps * (1 + bool(case.addend))
    bound = size * (2.0**-22 * (4 + case.k**0.5)) + exact.abs() * rounding + 1e-30
    if case.addend:
        bound = bound + size * 2.0**-22 + wide[5] * rounding  # type: ignore[union-attr]
    assert torch.equal(got.isnan(), exact.isnan()), "NaN differ"
    infinite = exact.isinf()
    assert torch.equal(got.to(work)[infinite], exact[infinite]), "infinities differ"
    finite = exact.isfinite()
    error = (got.to(work) - exact).abs()[finite] / bound[finite]
    assert (error <= 1).all(), f"{error.max().item()} of the bound"
