"""Every skinny GEMM kernel, executed from the code object that ships, against float64."""

from __future__ import annotations

import pytest

from ..cdna3.device import Schedule
from .gemm_cases import CASES, check_product


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_kernel_equals_the_product(case):
    given = case.operands()
    call = case.prepare(given)
    assert call.plan(case.cu_count).launch_count > 0
    check_product(
        case, given, call.run(Schedule(seed=case.n, resident=2, noise=case.k), case.cu_count)
    )
    assert call.counters and all(c.ended == c.waves for c in call.counters)
