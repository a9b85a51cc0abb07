"""Every skinny GEMM kernel, executed from the code object that ships, against float64."""

from __future__ import annotations

import pytest

from ..cdna3.device import Schedule
from .gemm_cases import CASES, LISTS, check_product
from .gemm_list import check_list


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_kernel_equals_the_product(case):
    given = case.operands()
    call = case.prepare(given)
    assert call.plan(case.cu_count).launch_count > 0
    check_product(
        case, given, call.run(Schedule(seed=case.n, resident=2, noise=case.k), case.cu_count)
    )
    assert call.counters and all(c.ended == c.waves for c in call.counters)


@pytest.mark.parametrize("case", LISTS, ids=[case.name for case in LISTS])
def test_products_of_one_launch_equal_float64(case):
    counters = check_list(case, Schedule(seed=case.m, resident=2, noise=case.n))
    assert counters and all(c.ended == c.waves for c in counters)
