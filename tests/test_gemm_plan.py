"""Every plan is legal on every target, for a grid of shapes and dtypes; plans are pure."""

import ctypes
import itertools
import re

import pytest
import torch

from mi300_inductor import gemm_plan, plan, toolchain
from mi300_inductor.arch import GFX942, SM90
from mi300_inductor.build import csrc_dir
from mi300_inductor.gemm_plan import Form

ARCHES = (GFX942, SM90)
ROWS = (1, 2, 8, 9, 16, 17, 32, 33, 64)
SHAPES = (
    *((1, 1), (1, 16384), (16, 64), (17, 129), (333, 1040), (2304, 16384), (4096, 4096)),
    *((6144, 4096), (4096, 14336), (13312, 16384), (16384, 6656), (28672, 4096), (128256, 4096)),
)


def operands(arch):
    return (arch.fp8_dtype, torch.bfloat16, torch.float16)


def entries(arch):
    """Entry points of a target with the workgroup that each was compiled for, by module."""
    pattern = r"MI300_KERNEL\((.*?), \d+\)\s+(skinny_gemm\w*)\("
    return {
        (path.stem, name): limit
        for path in toolchain.sources(arch)
        for limit, name in re.findall(pattern, path.read_text())
    }


def max_threads(text, arch):
    """What `max_threads(columns, tiles)` of skinny_gemm.h and kRingThreads stand for."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    if "kRingThreads" in text:
        return 512
    if not text.startswith("max_threads"):
        return numbers[0]
    columns, tiles = numbers
    return 256 if arch.wave_size == 64 or tiles > 1 or columns > 32 else 512


def sets(args):
    """The products of a launch."""
    return [args, *(own for own in args.more if own.n)]


def check_plan(made, call, arch, known):
    shape = made.shape
    launch, args = made.launches[0], made.launches[0].args
    stages = -(-call.args.row_bytes // gemm_plan.STAGE_BYTES)
    assert call.args.m <= shape.columns
    assert args.rows == shape.rows
    teams = 0
    for own, asked in zip(sets(args), sets(call.args), strict=True):
        assert own.row_groups * shape.rows >= asked.n > (own.row_groups - 1) * shape.rows
        assert own.first_team == teams and 0 < own.teams <= own.row_groups
        teams += own.teams
    assert args.splits * args.split_stages >= stages > (args.splits - 1) * args.split_stages
    assert shape.waves % shape.k_waves == 0
    assert 1 <= args.chunk * args.k_waves
    assert launch.lds_bytes <= arch.lds_per_group
    roles = 2 if shape.form == Form.RING else 1
    assert launch.block == shape.waves * arch.wave_size * roles
    assert 1 <= launch.cluster <= arch.max_cluster
    assert launch.grid == teams * args.splits
    assert launch.grid % launch.cluster == 0
    if arch.max_cluster > 1:
        assert launch.cluster == args.splits
        assert launch.grid <= arch.cu_count
        iterations = -(-args.split_stages // args.k_waves)
        assert shape.form == Form.UNALIGNED or args.chunk == iterations
    else:
        assert all(own.teams == own.row_groups for own in sets(args))
        assert made.launch_count == (2 if args.splits > 1 else 1)
        results = args.m * sum(own.n for own in sets(args))
        expected = 4 * args.splits * results if args.splits > 1 else 0
        assert made.workspace_bytes == expected
    if shape.form == Form.GROUP:
        assert shape.waves // shape.k_waves % 4 == 0 and shape.tile_rows in range(8, 65, 8)
    for one in made.launches:
        limit = known[one.module.decode(), one.entry.decode()]
        assert one.block <= max_threads(limit, arch), one.entry


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_plans_are_legal(arch):
    info, known = plan.device_info(arch), entries(arch)
    for m, (n, k), operand in itertools.product(ROWS, SHAPES, operands(arch)):
        call = gemm_plan.problem(m, n, k, operand)
        made = gemm_plan.plan_gemm(call, info)
        if not made.launches:
            is_rare = n <= 256 and k * operand.itemsize > 16384
            assert made.shape.form == Form.VENDOR and arch is SM90, (m, n, k, operand)
            assert m >= 8 or is_rare, (m, n, k, operand)
            continue
        check_plan(made, call, arch, known)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize("more", [(1024, 1024), (14336,), (8, 333)])
def test_plans_of_several_products_are_legal(arch, more):
    info, known = plan.device_info(arch), entries(arch)
    for m, k, operand in itertools.product(ROWS, (1040, 4096, 16384), operands(arch)):
        call = gemm_plan.problem(m, 4096, k, operand, more=more)
        made = gemm_plan.plan_gemm(call, info)
        if not made.launches:
            assert made.shape.form == Form.VENDOR and arch is SM90 and m > 32, (m, k, operand)
            continue
        assert len(sets(made.launches[0].args)) == 1 + len(more)
        check_plan(made, call, arch, known)


def test_a_shape_is_planned_as_given_or_refused():
    info, call = plan.device_info(SM90), gemm_plan.problem(8, 4096, 4096, SM90.fp8_dtype)
    shape = gemm_plan.GemmShape(int(Form.GROUP), 8, 1, 32, 8, 2, 2, 6)
    made = gemm_plan.plan_shape(call, shape, info)
    assert made is not None and bytes(made.shape) == bytes(shape)
    check_plan(made, call, SM90, entries(SM90))
    shape.depth = 99
    assert gemm_plan.plan_shape(call, shape, info) is None


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_all_ways_to_cut_a_call_are_legal_and_the_rule_takes_one_of_them(arch):
    info, known = plan.device_info(arch), entries(arch)
    for m, (n, k), operand in itertools.product((1, 8, 16, 33), SHAPES[::3], operands(arch)):
        call = gemm_plan.problem(m, n, k, operand)
        listed = gemm_plan.list_shapes(call, info)
        numbers = [shape.numbers for shape in listed]
        assert len(set(numbers)) == len(numbers) < 1024
        rule = gemm_plan.plan_gemm(call, info).shape
        assert rule.form == Form.VENDOR or rule.numbers in numbers
        for shape in listed[:: max(1, len(listed) // 24)]:
            check_plan(gemm_plan.plan_shape(call, shape, info), call, arch, known)
        found = {shape.form for shape in listed}
        if arch is GFX942 and k % 16 == 0:
            is_fp8 = operand == arch.fp8_dtype
            expected = {Form.DENSE} | ({Form.SPARSE} if is_fp8 and m <= 8 else set())
            expected |= {Form.RING} if is_fp8 and m <= 16 else set()
            assert found == expected, (m, n, k, operand)
        elif k % 16 == 0:
            assert found == {Form.GROUP}
    asked = gemm_plan.problem(8, 4096, 4096, arch.fp8_dtype, form=Form.UNALIGNED)
    assert {shape.form for shape in gemm_plan.list_shapes(asked, info)} == {Form.UNALIGNED}
    foreign = GFX942.fp8_dtype if arch is SM90 else SM90.fp8_dtype
    for call in (
        gemm_plan.problem(8, 4096, 4096, foreign),
        gemm_plan.problem(65, 4096, 4096, torch.bfloat16),
        gemm_plan.problem(8, 4096, 4096, torch.bfloat16, form=Form.VENDOR),
    ):
        assert gemm_plan.list_shapes(call, info) == []


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE, Form.RING])
def test_every_form_can_be_asked_for_on_gfx942(form):
    info, known = plan.device_info(GFX942), entries(GFX942)
    call = gemm_plan.problem(8, 4096, 4096, GFX942.fp8_dtype, form=form)
    made = gemm_plan.plan_gemm(call, info)
    assert made.shape.form == form
    check_plan(made, call, GFX942, known)


def test_group_form_can_be_asked_for_on_sm_90():
    info, known = plan.device_info(SM90), entries(SM90)
    for m, operand in itertools.product((1, 16, 32, 64), operands(SM90)):
        call = gemm_plan.problem(m, 4096, 4096, operand, form=Form.GROUP)
        made = gemm_plan.plan_gemm(call, info)
        assert made.shape.form == Form.GROUP
        check_plan(made, call, SM90, known)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_plan_is_a_pure_function(arch):
    info = plan.device_info(arch)
    call = gemm_plan.problem(8, 4096, 14336, arch.fp8_dtype)
    first = bytes(gemm_plan.plan_gemm(call, info))
    gemm_plan.plan_gemm(gemm_plan.problem(1, 7, 33, torch.bfloat16), info)
    assert bytes(gemm_plan.plan_gemm(call, info)) == first


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_what_no_kernel_takes_goes_to_the_vendor(arch):
    info = plan.device_info(arch)
    foreign = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2} - {arch.fp8_dtype}
    calls = [gemm_plan.problem(8, 4096, 4096, dtype) for dtype in sorted(foreign, key=str)]
    calls.append(gemm_plan.problem(65, 4096, 4096, arch.fp8_dtype))
    for call in calls:
        made = gemm_plan.plan_gemm(call, info)
        assert made.shape.form == Form.VENDOR and not made.launches


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize("field", ["weight", "activation", "weight_stride", "activation_stride"])
def test_misalignment_takes_the_kernel_that_reads_elements(arch, field):
    call = gemm_plan.problem(4, 512, 1024, torch.bfloat16)
    setattr(call.args, field, (getattr(call.args, field) or 0) + 2)
    made = gemm_plan.plan_gemm(call, plan.device_info(arch))
    assert made.shape.form == Form.UNALIGNED
    check_plan(made, call, arch, entries(arch))


def test_structs_have_the_sizes_of_the_core():
    sizes = (ctypes.c_uint32 * 16)()
    plan.core().mi300_struct_sizes(sizes)
    assert sizes[4] == ctypes.sizeof(gemm_plan.GemmProblem)
    assert sizes[5] == ctypes.sizeof(gemm_plan.GemmPlan)


def constants(path):
    text = (csrc_dir() / path).read_text()
    return {name: int(value) for name, value in re.findall(r"(k\w+) = (\d+);", text)}


def test_plan_and_kernels_agree_on_the_rings():
    planned = constants("runtime/gemm_cost.h")
    device = constants("include/mi300/weight_stream.h") | constants("include/mi300/weight_ring.h")
    matrix = constants("include/mi300/matrix.h")
    assert planned["kGemmStreamDepth"] == device["kStreamDepth"]
    assert planned["kGemmRingSlots"] == device["kRingSlots"]
    assert planned["kGemmTileRows"] == matrix["kTileRows"]
    assert planned["kGemmStageBytes"] == matrix["kStageBytes"] == gemm_plan.STAGE_BYTES


@pytest.mark.parametrize("m", [16, 32, 64])
def test_scales_per_row_take_a_kernel_on_sm_90(m):
    """The library is up to twice as slow with them as with one scale."""
    info, known = plan.device_info(SM90), entries(SM90)
    call = gemm_plan.problem(m, 4096, 4096, SM90.fp8_dtype)
    call.args.scale_a_step = call.args.scale_b_step = 1
    made = gemm_plan.plan_gemm(call, info)
    assert made.shape.form == Form.GROUP
    check_plan(made, call, SM90, known)


@pytest.mark.parametrize("m", [1, 8, 16, 32])
def test_a_short_part_is_not_held_whole_by_the_ring_on_sm_90(m):
    made = gemm_plan.plan_gemm(
        gemm_plan.problem(m, 4096, 4096, SM90.fp8_dtype), plan.device_info(SM90)
    )
    args = made.launches[0].args
    assert made.shape.form == Form.GROUP
    assert made.shape.depth - 1 < -(-args.split_stages // args.k_waves)


def test_the_library_has_a_large_fp8_matmul_with_long_rows_from_8_rows_on():
    info = plan.device_info(SM90)
    forms = [
        gemm_plan.plan_gemm(gemm_plan.problem(m, n, k, operand), info).shape.form
        for m, n, k, operand in (
            (1, 13312, 16384, SM90.fp8_dtype),
            (8, 13312, 8192, torch.bfloat16),
            (8, 28672, 4096, SM90.fp8_dtype),
            (8, 13312, 16384, SM90.fp8_dtype),
            (16, 13312, 16384, SM90.fp8_dtype),
        )
    ]
    assert forms == [*[Form.GROUP] * 3, *[Form.VENDOR] * 2]


def test_the_library_has_wide_and_narrow_bf16_matmuls_where_it_was_faster():
    info = plan.device_info(SM90)
    forms = [
        gemm_plan.plan_gemm(gemm_plan.problem(m, n, k, torch.bfloat16), info).shape.form
        for m, n, k in (
            *((8, 128, 16384), (16, 16384, 2048), (32, 14336, 4096), (1, 28672, 4096)),
            *((1, 128, 16384), (32, 128, 16384), (32, 16384, 2048), (32, 28672, 4096)),
        )
    ]
    assert forms == [*[Form.GROUP] * 4, *[Form.VENDOR] * 4]


@pytest.mark.parametrize("operand", [SM90.fp8_dtype, torch.bfloat16], ids=str)
def test_the_library_has_matmuls_of_more_than_32_rows_on_sm_90(operand):
    """Our kernels lose there, also as one launch of several products that are large."""
    info = plan.device_info(SM90)

    def form(m, n, *more, **fields):
        call = gemm_plan.problem(m, n, 4096, operand, more=more)
        for name, value in fields.items():
            setattr(call.args, name, value)
        return gemm_plan.plan_gemm(call, info).shape.form

    for m in (33, 48, 64):
        for n in (4096, 6144, 14336, 28672):
            assert form(m, n) == form(m, n, addend=16) == Form.VENDOR, (m, n)
        assert form(m, 14336, 14336) == Form.VENDOR
    assert form(33, 4096, 1024, 1024) == Form.GROUP
    for m in (1, 8, 17, 32):
        assert form(m, 6144) == form(m, 14336, 14336) == form(m, 4096, addend=16) == Form.GROUP
