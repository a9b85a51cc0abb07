"""Deliberate faults in kernels, each caught by the check that must catch it.

A mutant changes the HIP source (`replace`) or deletes instructions of the assembly (`delete`, a
pattern and which of its matches).
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

import pytest

from .assembly import assemble, compile_hip
from .checks import Fault
from .program import Kernel, load_kernels
from .selftest import KERNELS, RUNS, SCHEDULES, WrongResult

WRONG = "wrong_result"


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault: the kernel, the change, and the checks that may report it."""

    name: str
    kernel: str
    caught_by: tuple[str, ...]
    replace: tuple[str, str] | None = None
    delete: str | None = None
    match: int = 0


MUTANTS = [
    Mutant(
        "missing_barrier_before_read",
        "norm",
        ("lds_race", "uninitialized_lds"),
        ("barrier();  // this row's partial sums are there", ""),
    ),
    Mutant(
        "missing_barrier_before_reuse",
        "norm",
        ("lds_race",),
        ("barrier();  // the last row's partial sums have been read", ""),
    ),
    Mutant("deleted_barrier_instruction", "norm", ("lds_race",), delete=r"s_barrier", match=0),
    Mutant("deleted_vmcnt_wait", "norm", ("wait_vm",), delete=r"s_waitcnt vmcnt\(0\)", match=0),
    Mutant(
        "deleted_kernarg_wait", "norm", ("wait_lgkm",), delete=r"s_waitcnt lgkmcnt\(0\)", match=0
    ),
    Mutant(
        "deleted_wait_before_barrier",
        "norm",
        ("barrier_wait",),
        delete=r"s_waitcnt lgkmcnt\(0\)\n(?=(?:\s*[.;].*\n|\.L\w+:.*\n)*\s*s_barrier)",
        match=-1,
    ),
    Mutant(
        "store_out_of_bounds",
        "norm",
        ("global_bounds",),
        (
            "i < per_row; i += 256) {\n      Float4 v = in[i] *",
            "i < per_row + 1; i += 256) {\n      Float4 v = in[i % per_row] *",
        ),
    ),
    Mutant("rows_past_the_end", "norm", ("global_bounds",), ("row < rows", "row <= rows")),
    Mutant("wrong_scale", "norm", (WRONG,), ("+ eps) * inverse_scale", "+ eps) * eps")),
    Mutant("wrong_dpp_step", "norm", (WRONG,), ("moved<0x114, 0xf>", "moved<0x112, 0xf>")),
    Mutant("wrong_dpp_row_mask", "norm", (WRONG,), ("moved<0x142, 0xa>", "moved<0x142, 0x2>")),
    Mutant(
        "missing_clamp",
        "norm",
        (WRONG,),
        ("__builtin_fminf(__builtin_fmaxf(v[k], -240.0f), 240.0f)", "v[k]"),
    ),
    Mutant(
        "partial_sum_past_the_waves",
        "norm",
        ("lds_bounds",),
        ("partial[3];", "partial[3] + partial[4];"),
    ),
    Mutant(
        "partial_sum_never_written",
        "norm",
        ("uninitialized_lds",),
        ("if (thread() % 64 == 0) partial", "if (thread() % 64 == 0 && thread() > 63) partial"),
    ),
    Mutant(
        "writes_its_input",
        "norm",
        ("read_only",),
        ("q[row * per_row + i] =", "((u32*)x)[row * per_row + i] ="),
    ),
    Mutant(
        "misaligned_load",
        "dense16",
        ("alignment",),
        (
            "w[(first + i) * (k / 8) + offset]",
            "*(const long*)((const char*)w + (first + i) * k + offset * 8 + 2)",
        ),
    ),
    Mutant(
        "unset_accumulator",
        "dense16",
        ("uninitialized_vgpr",),
        delete=r"v_mov_b32_e32 v\d+, 0",
        match=0,
    ),
    Mutant(
        "wrong_k_offset",
        "dense16",
        (WRONG,),
        ("a[i * (k / 8) + offset]", "a[i * (k / 8) + offset / 8 * 8]"),
    ),
    Mutant("unmasked_columns", "dense16", ("global_bounds",), ("first + i < n ?", "true ?")),
    Mutant(
        "swapped_result_rows",
        "dense32",
        (WRONG,),
        ("r / 4 * 8 + part * 4", "part * 16 + r / 4 * 4"),
    ),
    Mutant("wrong_sparse_index", "sparse8", (WRONG,), ("0xEEEE : 0x4444", "0x4444 : 0x4444")),
    Mutant("wrong_fold", "sparse8", (WRONG,), ("(sum.z + sum.w)", "(sum.y + sum.w)")),
    Mutant(
        "flag_before_data",
        "ring",
        ("lds_race", "uninitialized_lds"),
        (
            "slots[i % kSlots][lane] = x[i * 64 + lane];\n",
            "if (lane == 0) __scoped_atomic_store_n(&filled, i + 1, __ATOMIC_RELEASE, WORKGROUP);\n"
            "      slots[i % kSlots][lane] = x[i * 64 + lane];\n",
        ),
    ),
    Mutant(
        "ring_overwrite",
        "ring",
        ("lds_race",),
        ("WORKGROUP) + kSlots)", "WORKGROUP) + kSlots + 1)"),
    ),
    Mutant(
        "relaxed_release",
        "ring",
        ("lds_race",),
        ("i + 1, __ATOMIC_RELEASE", "i + 1, __ATOMIC_RELAXED"),
    ),
    Mutant(
        "relaxed_acquire",
        "ring",
        ("lds_race",),
        ("&filled, __ATOMIC_ACQUIRE", "&filled, __ATOMIC_RELAXED"),
    ),
    Mutant("deadlock", "ring", ("deadlock",), ("&taken, i + 1", "&taken, i / 2")),
    Mutant(
        "wave_past_its_count",
        "ring",
        ("deadlock", "global_bounds"),
        ("i < steps; ++i) {\n      while (__s", "i <= steps; ++i) {\n      while (__s"),
    ),
    Mutant(
        "no_agent_release",
        "parts",
        ("global_race",),
        ('__builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");', ""),
    ),
    Mutant(
        "no_agent_acquire",
        "parts",
        ("global_race",),
        ('__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");', ""),
    ),
    Mutant(
        "sums_before_the_last",
        "parts",
        ("uninitialized_global", "global_race"),
        ("arrived != groups - 1", "arrived != groups - 2"),
    ),
]


def _build(mutant: Mutant, folder) -> Kernel:
    file = RUNS[mutant.kernel][0]
    source = (KERNELS / file).read_text()
    if mutant.replace:
        before, after = mutant.replace
        assert before in source, f"{mutant.name}: nothing to replace"
        source = source.replace(before, after)
    shutil.copy(KERNELS / "common.h", folder)
    (folder / file).write_text(source)
    assembly = compile_hip(folder / file, ("-Wno-everything",), is_kept=False)
    if mutant.delete:
        text = assembly.text
        start = text.index(f"\n{mutant.kernel}:")
        found = list(re.finditer(mutant.delete, text[start:]))[mutant.match]
        text = text[: start + found.start()] + "s_nop 0\n" + text[start + found.end() :]
        assembly = assemble(text, is_kept=False)
    return load_kernels(assembly)[mutant.kernel]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_mutant_is_caught(mutant, tmp_path):
    code, run = _build(mutant, tmp_path), RUNS[mutant.kernel][1]
    caught = None
    for schedule in SCHEDULES:
        try:
            run(code, schedule)
        except Fault as fault:
            caught, message = fault.check, str(fault)
        except WrongResult as error:
            caught, message = WRONG, str(error)
        if caught:
            break
    assert caught in mutant.caught_by, (mutant.name, caught, message if caught else "not caught")
