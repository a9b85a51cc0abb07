"""No kernel of the product goes unexecuted."""

from __future__ import annotations

from mi300_inductor import toolchain

from .cases import CASES
from .gemm_cases import CASES as GEMM_CASES
from .modules import all_entries
from .rows import prepare


def unexecuted() -> set[str]:
    """Entry points that no case of test_rows.py and test_gemm.py launches, by the plan."""
    launches = []
    for case in CASES:
        call = prepare(case.op, case.build(), misalign=case.misalign)
        launches += call.launches(case.cu_count)
    for case in GEMM_CASES:
        launches += case.prepare(case.operands()).plan(case.cu_count).launches
    return all_entries() - {launch.entry.decode() for launch in launches}


def test_every_entry_point_is_executed():
    """A new kernel needs a case in cases.py or gemm_cases.py that the plan sends to it."""
    assert not unexecuted()


def test_a_new_entry_point_without_a_case_is_noticed(tmp_path, monkeypatch):
    new = tmp_path / "forgotten.hip"
    new.write_text(
        "#include <mi300/portable.h>\nMI300_KERNEL(64, 1) forgotten(int* out) { out[0] = 1; }\n"
    )
    known = toolchain.sources
    monkeypatch.setattr(toolchain, "sources", lambda target: [*known(target), new])
    assert unexecuted() == {"forgotten"}
