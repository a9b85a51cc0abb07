"""Deliberate faults in the product's kernels, each caught by the check that must catch it.

A fault changes the assembly of one entry point (`assembly`), or a source file (`source`) of which
the kernel is compiled anew. A change that finds nothing to change fails: then the kernel was
rewritten, and the fault must be written anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mi300_inductor.gemm_plan import Form

from ..cdna3.assembly import assemble
from ..cdna3.device import Schedule
from ..cdna3.program import Kernel, load_kernels
from .cases import BF16, E4M3FN, Case
from .gemm_cases import FP8, GemmCase, check_product
from .modules import compile_changed, entry_of, listing_text
from .rows import prepare
from .test_rows import check_rows

WRONG, WRITES = "wrong_result", "written_once"
SCHEDULES = [Schedule(), *(Schedule(seed, resident=2) for seed in range(20))]
WAIT_BEFORE_BARRIER = r"\ts_waitcnt lgkmcnt\(0\)\n(?=(?:\s*[.;].*\n|\.L\w+:.*\n)*\s*s_barrier)"

NORM = Case("add_rms_norm_quant", 5, 2048, BF16, {"scale_count": 2}, cu_count=1)
GROUPS = Case("rms_norm_quant_dynamic", 5, 4096, BF16, {"group_size": 128}, cu_count=1)
SILU = Case("silu_mul_quant", 5, 1032)
ANY = Case("add_rms_norm_quant", 5, 77, BF16, {"scale_count": 3, "q_dtype": E4M3FN}, cu_count=1)
TENSOR = Case("rms_norm_quant_dynamic", 3, 101, BF16, {"group_size": 0})
DENSE = GemmCase(16, 80, 2048, FP8, Form.DENSE, bias=True)
SPARSE = GemmCase(8, 80, 2048, FP8, Form.SPARSE)
RING = GemmCase(8, 64, 4096, FP8, Form.RING, cu_count=1)  # 16 stages through 4 slots
CALLS = [NORM, GROUPS, SILU, ANY, TENSOR, DENSE, SPARSE, RING]


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault in a kernel of a call.

    Attributes:
        name: What is wrong.
        call: The call, and which of its launches (the first unless `launch` says) is changed.
        caught_by: The checks that may report it.
        assembly: Pattern and replacement in the entry's assembly; all matches.
        source: File, text and replacement in the source.
        launch: Number of the launch.
    """

    name: str
    call: Case | GemmCase
    caught_by: tuple[str, ...]
    assembly: tuple[str, str] | None = None
    source: tuple[str, str, str] | None = None
    launch: int = 0


MUTANTS = [
    Mutant("no_barrier", NORM, ("lds_race", "uninitialized_lds"), (r"\ts_barrier", "")),
    Mutant("no_wait_for_loads", NORM, ("wait_vm",), (r"vmcnt\(\d+\)", "vmcnt(63)")),
    Mutant("no_wait_for_scalars", NORM, ("wait_lgkm",), (r"lgkmcnt\(\d+\)", "lgkmcnt(15)")),
    Mutant("no_wait_before_barrier", NORM, ("barrier_wait",), (WAIT_BEFORE_BARRIER, "")),
    Mutant("wrong_dpp_step", NORM, (WRONG,), ("row_shr:8", "row_shr:4")),
    Mutant(
        "wrong_dpp_mask", NORM, (WRONG,), ("row_bcast:31 row_mask:0xc", "row_bcast:31 row_mask:0x4")
    ),
    Mutant("no_clamp", NORM, (WRONG,), (r"v_med3_f32 (v\d+), (v\d+), .*", r"v_mov_b32_e32 \1, \2")),
    Mutant(
        "codes_one_vector_on",
        NORM,
        ("global_bounds", WRITES),
        (r"(global_store_dwordx2 .*)", r"\1 offset:8"),
    ),
    Mutant(
        "misaligned_load",
        NORM,
        ("alignment",),
        (r"(global_load_dwordx4 .*) nt", r"\1 offset:2 nt"),
    ),
    Mutant("no_end", NORM, ("no_end",), (r"\ts_endpgm", "\ts_nop 0")),
    Mutant(
        "wrong_group_of_lanes", GROUPS, (WRONG,), (r"quad_perm:\[2,3,0,1\]", "quad_perm:[1,0,3,2]")
    ),
    Mutant(
        "columns_off_by_one",
        SILU,
        ("global_bounds", WRITES),
        source=("row_share.h", "return index(v) < vectors;", "return index(v) <= vectors;"),
    ),
    Mutant(
        "wrong_scale",
        ANY,
        (WRONG,),
        source=("rows_any.hip", "static_scale(args, j)", "static_scale(args, 0)"),
    ),
    Mutant(
        "rows_off_by_one",
        ANY,
        ("global_bounds",),
        source=("rows_any.hip", "row < args.rows; row += args", "row <= args.rows; row += args"),
    ),
    Mutant(
        "writes_its_input",
        ANY,
        ("read_only",),
        source=(
            "rows_any.hip",
            "args.residual_dtype, args.residual_out",
            "args.residual_dtype, (void*)args.first",
        ),
    ),
    Mutant(
        "reads_a_row_too_many",
        TENSOR,
        ("global_bounds",),
        source=("rows_any.hip", "row < args.rows; row += team", "row <= args.rows; row += team"),
        launch=1,
    ),
    Mutant(
        "codes_past_the_end",
        TENSOR,
        ("global_bounds",),
        source=("rows_any.hip", "i < elements", "i <= elements"),
        launch=2,
    ),
    Mutant(
        "operands_swapped",
        DENSE,
        (WRONG,),
        (r"(v_mfma_f32_\S+ \S+) (\S+), (\S+),", r"\1 \3, \2,"),
    ),
    Mutant(
        "weights_never_loaded",
        DENSE,
        ("uninitialized_vgpr",),
        (r"\tglobal_load_dwordx4 .* nt\n", "\n"),
    ),
    Mutant(
        "no_barrier_after_filling", DENSE, ("lds_race", "uninitialized_lds"), (r"\ts_barrier", "")
    ),
    Mutant(
        "a_part_of_k_is_lost",
        DENSE,
        (WRONG,),
        source=(
            "gemm_results.h",
            "u32 part = 0; part < args.splits",
            "u32 part = 1; part < args.splits",
        ),
        launch=1,
    ),
    Mutant("wrong_sparse_index", SPARSE, (WRONG,), ("0xeeee", "0x4444")),
    Mutant(
        "wrong_k_offset",
        SPARSE,
        (WRONG,),
        source=("weight_stream.h", "stage_offset(i) + step * kStepBytes;", "stage_offset(i);"),
    ),
    Mutant(
        "no_release_of_the_ring",
        RING,
        ("lds_race",),
        source=("weight_ring.h", "__ATOMIC_RELEASE", "__ATOMIC_RELAXED"),
    ),
    Mutant(
        "no_acquire_of_the_ring",
        RING,
        ("lds_race",),
        source=("weight_ring.h", "__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED"),
    ),
    Mutant(
        "ring_overwritten",
        RING,
        ("lds_race",),
        source=("weight_ring.h", ">= kRingSlots)", "> kRingSlots)"),
    ),
    Mutant(
        "ring_never_emptied",
        RING,
        ("deadlock",),
        source=("weight_ring.h", "write_count(emptied_, i + 1)", "write_count(emptied_, i / 2)"),
    ),
]


def run(
    call: Case | GemmCase, schedule: Schedule, kernel_of: Callable[[object], Kernel] = entry_of
) -> None:
    """Run a call and compare its outputs with the reference.

    Raises:
        Fault: if a check fails while a kernel runs.
        NotWrittenOnce: if a byte of an output was not written exactly once.
        AssertionError: if a result is wrong.
    """
    if isinstance(call, GemmCase):
        operands = call.operands()
        got = call.prepare(operands).run(schedule, call.cu_count, kernel_of)
        check_product(call, operands, got)
    else:
        given = call.build()
        check_rows(call, given, prepare(call.op, given).run(schedule, call.cu_count, kernel_of))


def _launch(mutant: Mutant) -> object:
    """The launch whose kernel is changed."""
    call = mutant.call
    if isinstance(call, GemmCase):
        return call.prepare(call.operands()).plan(call.cu_count).launches[mutant.launch]
    return prepare(call.op, call.build()).launches(call.cu_count)[mutant.launch]


def _from_assembly(module: str, entry: str, change: tuple[str, str]) -> Kernel:
    text = listing_text(module)
    start = text.index(f"\n{entry}:")
    end = text.index(f".size\t{entry}", start)
    body, count = re.subn(*change, text[start:end])
    assert count, f"{entry}: nothing to change"
    return load_kernels(assemble(text[:start] + body + text[end:], is_kept=False))[entry]


def _from_source(module: str, entry: str, change: tuple[str, str, str], folder: Path) -> Kernel:
    file, before, after = change
    changed = []

    def edit(name: str, text: str) -> str:
        changed.extend([name] * (name == file and before in text))
        return text.replace(before, after) if name == file else text

    kernel = compile_changed(module, edit, folder, ("-Wno-everything",))[entry]
    assert changed, f"{file}: nothing to change"
    return kernel


def build(mutant: Mutant, folder: Path) -> Callable[[object], Kernel]:
    """The kernels of a call, one of them changed."""
    launch = _launch(mutant)
    module, entry = launch.module.decode(), launch.entry.decode()  # type: ignore[attr-defined]
    if mutant.assembly:
        kernel = _from_assembly(module, entry, mutant.assembly)
    else:
        assert mutant.source
        kernel = _from_source(module, entry, mutant.source, folder)

    def kernel_of(launch: object) -> Kernel:
        is_changed = launch.entry.decode() == entry  # type: ignore[attr-defined]
        return kernel if is_changed else entry_of(launch)

    return kernel_of
