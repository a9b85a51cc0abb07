"""Every deliberate fault in the product's kernels is caught by its check, and says where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mi300_inductor.build import csrc_dir

from ..cdna3.checks import Fault
from ..cdna3.device import Schedule
from .modules import NotWrittenOnce, entry_of
from .mutants import CALLS, MUTANTS, SCHEDULES, WRITES, WRONG, build, run


def failed_check(call, schedule, kernel_of=entry_of) -> str:
    """Name of the check that failed, or nothing."""
    try:
        run(call, schedule, kernel_of)
    except Fault as fault:
        return fault.check
    except NotWrittenOnce:
        return WRITES
    except AssertionError:
        return WRONG
    return ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_fault_is_caught(mutant, tmp_path):
    kernel_of = build(mutant, tmp_path)
    caught = next(
        filter(None, (failed_check(mutant.call, s, kernel_of) for s in SCHEDULES)), "nothing"
    )
    assert caught in mutant.caught_by


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_unchanged_kernels_pass(call):
    assert [failed_check(call, schedule) for schedule in SCHEDULES] == [""] * len(SCHEDULES)


def fault_of(name: str, folder: Path) -> Fault:
    """The fault of a mutant in the default schedule."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with pytest.raises(Fault) as caught:
        run(mutant.call, Schedule(), build(mutant, folder))
    return caught.value


def test_a_fault_names_kernel_instruction_place_and_source_line(tmp_path):
    """Element 303 of 3 x 101: workgroup 1 of 256 work-items, lane 47, byte 606 of y in bf16."""
    fault = fault_of("codes_past_the_end", tmp_path)
    assert (fault.kernel, fault.check) == ("tensor_quantize", "global_bounds")
    assert (fault.workgroup, fault.wave, fault.lane) == ((1, 0, 0), 0, 47)
    assert re.search(r"byte 606 of buffer \d+, 606 bytes long", fault.detail)
    assert fault.instruction.startswith("global_load_ushort")
    assert fault.pc > 0 and fault.address > 0
    source = (tmp_path / "rows_any.hip").read_text().splitlines()
    numbers = [int(n) for n in re.findall(r"rows_any\.hip:(\d+)", fault.source)]
    assert any("load_float(args.y_dtype, args.y, i)" in source[n - 1] for n in numbers)
    parts = ("tensor_quantize", "global_bounds", f"0x{fault.pc:x}", f"0x{fault.address:x}")
    for part in (*parts, fault.instruction, "workgroup (1, 0, 0), wave 0, lane 47", fault.source):
        assert part in str(fault)


def test_a_missing_wait_names_the_register_and_the_line_of_the_shipped_source(tmp_path):
    fault = fault_of("no_wait_for_loads", tmp_path)
    register = re.search(r"uses v(\d+) before s_waitcnt vmcnt", fault.detail)
    assert register, fault.detail
    ranges = re.findall(r"v\[(\d+):(\d+)\]|v(\d+)", fault.instruction)
    spans = [(int(low or one), int(high or one)) for low, high, one in ranges]
    assert any(low <= int(register[1]) <= high for low, high in spans), fault.instruction
    frames = re.findall(r"csrc/(\S+?):(\d+)", fault.source)
    assert frames[-1][0] == "gpu/rms_norm_bf16.hip"
    for file, line in frames:
        assert int(line) <= len((csrc_dir() / file).read_text().splitlines())
