"""Every skinny GEMM kernel, executed from the code object that ships, against float64."""

from __future__ import annotations

import pytest

from mi300_inductor import plan
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import list_shapes, plan_shape

from ..cdna3.device import Schedule
from .gemm_cases import (
    BF16,
    CASES,
    FP8,
    LISTS,
    QUANTISED,
    GemmCase,
    check_codes,
    check_product,
)
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


@pytest.mark.parametrize("case", QUANTISED, ids=[case.name for case in QUANTISED])
def test_a_quantised_result_has_the_codes_of_the_unquantised_one(case):
    counters = check_codes(case, Schedule(seed=case.n, resident=2, noise=case.k))
    assert counters and all(c.ended == c.waves for c in counters)


CUTS = [GemmCase(8, 40, 2048, FP8), GemmCase(16, 40, 1552, BF16), GemmCase(33, 24, 1024, FP8)]


@pytest.mark.parametrize("case", CUTS, ids=[case.name for case in CUTS])
def test_every_cut_that_measuring_may_choose_equals_the_product(case, monkeypatch):
    info = plan.device_info(GFX942)
    given = case.operands()
    shapes = list_shapes(case.prepare(given).problem, info)
    assert len(shapes) > 10
    for shape in shapes:
        call = case.prepare(given)
        planned = plan_shape(call.problem, shape, info)
        monkeypatch.setattr(call, "plan", lambda cu_count, planned=planned: planned)
        check_product(case, given, call.run(Schedule(seed=shape.splits, resident=2, noise=1)))
