"""The norm and SiLU kernels' gfx942 machine code, executed instruction by instruction.

The executor faults on accesses out of bounds, uninitialised reads, races in LDS and registers used
before their load has arrived, and counts writes, so a byte not written once is seen. Results are
held to the operators' contract against eager formulas on fresh inputs.
"""

import pytest
import torch

from ..cdna3.device import Schedule
from ..kernels.test_cpu_rows import BF16, F16, F32, ROW_OPS, make_args, values
from .row_args import usual_args
from .row_checks import check_outputs
from .row_problems import RowRun

FN, FNUZ, E5M2 = torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2


def check(op, args, rng, entry, cu_count=304):
    run = RowRun(op, args, cu_count)
    schedule = Schedule(rng.randrange(1 << 30), resident=2)
    check_outputs(op, args, run.launch(schedule), rng.drawn_seed)
    assert run.entries[0].startswith(entry), run.entries
    return run


@pytest.mark.parametrize("hidden", [8, 136, 2048, 16384])
@pytest.mark.parametrize("op", ROW_OPS)
def test_vector_kernels_equal_the_formula(op, hidden, rng):
    dtype, name = rng.choice([(BF16, "bf16"), (F16, "fp16")])
    group = rng.choice([-1, 8, 64, 128]) if hidden % 128 == 0 else -1
    args = usual_args(op, rng, (3, hidden), dtype, rng.choice([FN, FNUZ]), group)
    check(op, args, rng, f"{'silu_mul' if op.startswith('silu') else 'rms_norm'}_{name}_v")


@pytest.mark.parametrize("op", ["add_rms_norm_quant", "rms_norm_quant_dynamic"])
def test_a_workgroup_takes_several_rows(op, rng):
    args = usual_args(op, rng, (21, 2048), BF16, group=128)
    run = check(op, args, rng, "rms_norm_bf16_v", cu_count=1)
    assert run.counters[0].workgroups < 21


@pytest.mark.parametrize("op", ROW_OPS)
def test_any_combination_equals_the_formula(op, rng):
    for shape, dtypes in (((2, 33), [F32, BF16, F16]), ((1, 769), [BF16]), ((2, 64), [F32])):
        args = make_args(op, rng, shape, dtypes)
        check_outputs(op, args, RowRun(op, args).launch(), rng.drawn_seed)


@pytest.mark.parametrize("op", ROW_OPS)
def test_nan_and_infinity_propagate(op, rng):
    args = usual_args(op, rng, (4, 136), BF16, special=True)
    for index in (0, 1):
        if isinstance(args[index], torch.Tensor) and args[index].dim() == 2:
            args[index][index, 5], args[index][2 + index, 7] = float("nan"), -float("inf")
    check_outputs(op, args, RowRun(op, args).launch(), rng.drawn_seed)


@pytest.mark.parametrize("q_dtype", [FN, FNUZ, E5M2])
@pytest.mark.parametrize("limit", ["full", "infinite"])
def test_codes_equal_the_cast_of_pytorch(q_dtype, limit, rng):
    codes = torch.arange(256, dtype=torch.uint8).view(q_dtype).float()
    known = codes[codes.isfinite()].unique()
    middle = (known[1:] + known[:-1]) / 2
    near = torch.cat([known, middle, middle * 2, known * 2]).to(BF16).view(torch.int16)
    x = torch.cat([near, near + 1, near - 1, torch.randint(-(2**15), 2**15, (512,))]).short()
    x = x[: x.numel() // 8 * 8].view(BF16).reshape(2, -1)
    bound = {FN: 448.0, FNUZ: 240.0, E5M2: 57344.0}[q_dtype]
    bound = bound if limit == "full" else float("inf")
    gate = torch.full_like(x, 1.2785)  # silu(1.2785) is 1.0 in bf16, so y is `up`
    scales = [torch.ones(1), torch.full((1,), 0.37)]
    args = [gate, x, None, BF16, BF16, scales, q_dtype, "div", F32, -bound, bound, True]
    check_outputs("silu_mul_quant", args, RowRun("silu_mul_quant", args).launch(), rng.drawn_seed)


def test_strided_rows_and_a_misaligned_view(rng):
    wide = values((5, 304), BF16)
    for x, entry in (
        (wide[:, 8:144], "rms_norm_bf16_v1_plain"),
        (wide[:, :132], "rms_norm_any"),
        (wide.reshape(-1)[:1490].reshape(5, 298)[:, :136], "rms_norm_any"),
    ):
        check("rms_norm", [x, None, 1e-6, 0.0, BF16, BF16], rng, entry)


def test_every_schedule_gives_the_same_bits(rng):
    args = usual_args("add_rms_norm_quant_dynamic", rng, (7, 2048), BF16)
    results = [
        RowRun("add_rms_norm_quant_dynamic", args, 1).launch(Schedule(seed, 1 + seed % 3))
        for seed in range(6)
    ]
    for other in results[1:]:
        for name, tensor in other.items():
            assert torch.equal(tensor.view(torch.uint8), results[0][name].view(torch.uint8)), name


def test_static_quantisation_has_one_barrier_a_row(rng):
    args = usual_args("add_rms_norm_quant", rng, (2, 16384), BF16)
    run = check("add_rms_norm_quant", args, rng, "rms_norm_bf16_v2_static")
    waves_and_rows = 16 * 2
    assert run.counters[0].mnemonics["s_barrier"] == waves_and_rows
