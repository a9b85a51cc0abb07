"""The README's support table read as what it claims of gfx942: every cell becomes calls to execute.

A row's last columns are rungs; the ones before it are operators, input dtypes and forms. Forms are
dimensions, separated by ";", whose values are separated by ",". A claim is their full product.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from mi300_inductor.gemm_plan import Form

from .cases import BF16, E4M3FN, E4M3FNUZ, E5M2, F16, F32, LIMIT, Case
from .gemm_cases import GemmCase

README = Path(__file__).parents[2] / "README.md"
_COLUMN = "gfx942 (MI300)"
_INPUTS = {"bf16": BF16, "fp16": F16, "fp32": F32, "e4m3fnuz": E4M3FNUZ}
_GROUPS = {"per token": (-1,), "per group": (64, 128, 12), "per tensor": (0,)}
_QUOTIENTS = ("amax_div", "amax_mul", "div_amax")
# What a word of the forms says: dimension and the values it stands for.
_WORDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "1 to 4 static scales": ("scale_count", (1, 2, 3, 4)),
    "e4m3fn": ("q_dtype", (E4M3FN,)),
    "e4m3fnuz": ("q_dtype", (E4M3FNUZ,)),
    "e5m2": ("q_dtype", (E5M2,)),
    "packed": ("packed", (True,)),
    "separate": ("packed", (False,)),
    "`reciprocal_mul` scales": ("scale_form", ("reciprocal_mul",)),
    "scales rounded to the dtype of y": (
        "scale_form",
        tuple(f"{form}_rounded" for form in (*_QUOTIENTS, "reciprocal_mul")),
    ),
    "a scale per tensor": ("scales", ((False, False),)),
    "scales per row and column": ("scales", ((True, True), (True, False), (False, True))),
    "bias": ("bias", (False, True)),
    "addend": ("addend", ("", "row", "full")),
    **{word: ("group_size", sizes) for word, sizes in _GROUPS.items()},
    **{f"to {name}": ("out_dtype", (_INPUTS[name],)) for name in ("bf16", "fp16", "fp32")},
}


@dataclass(frozen=True)
class Claim:
    """One operator with one input dtype and one value of each dimension, by its name."""

    op: str
    dtype: torch.dtype
    forms: tuple[tuple[str, object], ...]


def _table(text: str) -> list[dict[str, str]]:
    """The rows of the support table by the names of its columns."""
    lines = text[text.index("| operator | inputs |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def _dimensions(words: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for word in re.split("[;,] *", words) if words else []:
        if word not in _WORDS:
            raise ValueError(f"support table: unknown form {word!r}; expected one of {[*_WORDS]}")
        name, values = _WORDS[word]
        found.setdefault(name, []).extend(values)
    return found


def _row_claims(row: dict[str, str]) -> Iterator[Claim]:
    dimensions = _dimensions(row["forms"])
    ops = re.findall(r"`(\w+)`", row["operator"])
    if "group_size" in dimensions:
        dimensions.setdefault("scale_form", [*_QUOTIENTS])
    inputs = [_INPUTS[word] for word in re.findall(r"\w+", row["inputs"]) if word in _INPUTS]
    for op, dtype in itertools.product(ops, inputs):
        names = [name for name in dimensions if name != "packed" or "silu" in op]
        for values in itertools.product(*(dimensions[name] for name in names)):
            yield Claim(op, dtype, tuple(sorted(zip(names, values, strict=True))))


def claims(text: str) -> set[Claim]:
    """Everything that the table marks with rung 3 for gfx942.

    Raises:
        ValueError: if a form has no meaning here.
    """
    rows = [row for row in _table(text) if row[_COLUMN] == "3"]
    return {claim for row in rows for claim in _row_claims(row)}


def _row_cases(claim: Claim) -> Iterator[Case]:
    change = dict(claim.forms)
    packed = bool(change.pop("packed", False))
    if "scale_form" in change:
        limit = LIMIT[change["q_dtype"]]  # type: ignore[index]
        form = str(change["scale_form"]).removesuffix("_rounded")
        change["scale_const"] = 1 / limit if form == "amax_mul" else limit
        if form in ("div_amax", "reciprocal_mul"):
            change |= {"scaling": "mul", "amax_min": 1e-4}
    for return_y in (False, True) if "quant" in claim.op else (False,):
        yield Case(claim.op, 3, 384, claim.dtype, {**change, "return_y": return_y}, packed=packed)


def _gemm_cases(claim: Claim) -> Iterator[GemmCase]:
    is_fp8 = claim.dtype == E4M3FNUZ
    for form in (Form.DENSE, Form.UNALIGNED, *((Form.SPARSE, Form.RING) if is_fp8 else ())):
        change = dict(claim.forms) | {"products": 3 if claim.op == "skinny_gemm_list" else 1}
        change |= {"quant": "div"} if claim.op == "skinny_gemm_quant" else {}
        yield GemmCase(5, 40, 272, claim.dtype, form, **change)  # type: ignore[arg-type]


def cases_of(claim: Claim) -> list[Case] | list[GemmCase]:
    """The calls that show a claim: with and without y, or with each of the GEMM's kernels."""
    return [*_gemm_cases(claim)] if claim.op.startswith("skinny") else [*_row_cases(claim)]


def claim_of(case: Case | GemmCase) -> Claim:
    """The claim that a call belongs to; all group sizes that are not named count as 64."""
    if isinstance(case, GemmCase) and case.quant:
        return Claim("skinny_gemm_quant", case.dtype, (("out_dtype", case.out_dtype),))
    if isinstance(case, GemmCase):
        names = ["bias", "out_dtype"] + ["scales"] * (case.dtype == E4M3FNUZ)
        names += ["addend"] * (case.products == 1)
        forms = {name: getattr(case, name) for name in names}
        op = "skinny_gemm" if case.products == 1 else "skinny_gemm_list"
        return Claim(op, case.dtype, tuple(sorted(forms.items())))
    given = {"q_dtype": E4M3FNUZ, "scale_count": 1, "group_size": -1, "scale_form": "amax_div"}
    given |= {**case.change, "packed": case.packed}
    if given["group_size"] not in (-1, 0, 12, 64, 128):
        given["group_size"] = 64
    names = ["packed"] * ("silu" in case.op) + ["q_dtype"] * ("quant" in case.op)
    names += ["group_size", "scale_form"] * case.op.endswith("dynamic")
    names += ["scale_count"] * case.op.endswith("quant")
    return Claim(case.op, case.dtype, tuple(sorted((name, given[name]) for name in names)))
