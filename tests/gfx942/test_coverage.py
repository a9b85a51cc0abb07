"""No kernel of the product goes unexecuted."""

from __future__ import annotations

from .cases import CASES
from .gemm_cases import CASES as GEMM_CASES
from .modules import all_entries
from .rows import prepare


def _planned() -> set[str]:
    """Entry points that the cases of test_rows.py and test_gemm.py launch, by the plan alone."""
    launches = []
    for case in CASES:
        call = prepare(case.op, case.build(), misalign=case.misalign)
        launches += call.launches(case.cu_count)
    for case in GEMM_CASES:
        launches += case.prepare(case.operands()).plan(case.cu_count).launches
    return {launch.entry.decode() for launch in launches}


def test_every_entry_point_is_executed():
    """A new kernel needs a case in cases.py or gemm_cases.py that the plan sends to it."""
    missing = all_entries() - _planned()
    assert not missing, f"no case executes {sorted(missing)}"
