"""The README's support table claims exactly what is executed here."""

from __future__ import annotations

import itertools

import pytest

from ..cdna3.device import Schedule
from .cases import BF16, CASES, E4M3FNUZ, F16, F32, OPS, Case
from .gemm_cases import CASES as GEMM_CASES
from .gemm_cases import LISTS, QUANTISED, GemmCase, check_codes, check_product
from .gemm_list import check_list
from .rows import prepare
from .support import README, cases_of, claim_of, claims
from .test_rows import check_rows

CELLS = [
    (op, dtype)
    for op in OPS
    for dtype in ((E4M3FNUZ, BF16, F16) if op.startswith("skinny") else (BF16, F16, F32))
]


def execute(case: Case | GemmCase) -> None:
    """Run a call's machine code and compare with the reference; a failure names the call."""
    schedule = Schedule(seed=len(case.name), resident=2, noise=3)
    try:
        if isinstance(case, GemmCase) and case.products > 1:
            assert check_list(case, schedule), "no kernel takes it"
        elif isinstance(case, GemmCase) and case.quant:
            assert check_codes(case, schedule), "no kernel takes it"
        elif isinstance(case, GemmCase):
            operands = case.operands()
            product = case.prepare(operands)
            check_product(case, operands, product.run(schedule))
            assert product.counters, "no kernel takes it"
        else:
            given = case.build()
            rows = prepare(case.op, given)
            check_rows(case, given, rows.run(schedule))
            assert rows.counters, "no kernel takes it"
    except AssertionError as error:
        raise AssertionError(f"{case.name}: {error}") from error


@pytest.mark.parametrize("op,dtype", CELLS, ids=[f"{op}-{dtype}"[:48] for op, dtype in CELLS])
def test_what_the_readme_claims_is_executed(op, dtype):
    claimed = [c for c in claims(README.read_text()) if (c.op, c.dtype) == (op, dtype)]
    assert claimed, "the support table marks no rung 3"
    for case in itertools.chain.from_iterable(map(cases_of, claimed)):
        execute(case)


def test_the_readme_claims_all_that_is_executed():
    claimed = claims(README.read_text())
    executed = (*CASES, *GEMM_CASES, *LISTS, *QUANTISED)
    missing = [case.name for case in executed if claim_of(case) not in claimed]
    assert not missing, f"executed, but not in the support table: {missing}"


def test_every_claim_names_the_cell_it_is_in():
    """The cases of a claim show that claim and no other; no claim is about another dtype."""
    for claim in claims(README.read_text()):
        assert (claim.op, claim.dtype) in CELLS
        assert {claim_of(case) for case in cases_of(claim)} == {claim}


@pytest.mark.parametrize(
    "before,after",
    [
        (", e5m2", ""),
        ("| bf16, fp16 |", "| bf16 |"),
        (", packed", ""),
        (", per tensor", ""),
        (", addend", ""),
        ("| tested | 3 | 1 |", "| tested | 1 | 1 |"),
    ],
)
def test_what_is_struck_from_the_table_is_missed(before, after):
    text = README.read_text()
    assert before in text
    claimed = claims(text.replace(before, after))
    assert any(claim_of(case) not in claimed for case in (*CASES, *GEMM_CASES, *LISTS))


def test_a_form_without_meaning_is_refused():
    text = README.read_text().replace("per tensor", "per column")
    with pytest.raises(ValueError, match="unknown form 'per column'"):
        claims(text)
