"""What the kernels promise, counted while they run: bytes moved, access widths, barriers, order."""

from __future__ import annotations

import pytest
import torch

from mi300_inductor.gemm_plan import Form

from ..cdna3.device import Schedule
from .cases import BF16, F16, Case
from .gemm_cases import FP8, GemmCase
from .rows import RowCall, assert_read_once, prepare

PER_GROUP = {"group_size": 128}
MOVES = [
    Case("rms_norm", 6, 4096),
    Case("add_rms_norm", 6, 16384, F16),
    Case("add_rms_norm_quant", 6, 4096, BF16),
    Case("add_rms_norm_quant", 6, 4096, F16, {"scale_count": 3, "return_y": True}, cu_count=1),
    Case("rms_norm_quant_dynamic", 6, 16384, BF16),
    Case("add_rms_norm_quant_dynamic", 6, 4096, BF16, PER_GROUP, cu_count=1),
    Case("silu_mul", 16, 2048, F16),
    Case("silu_mul_quant", 16, 2048, BF16, packed=True),
    Case("silu_mul_quant_dynamic", 16, 6656, BF16, {"return_y": True}),
    Case("silu_mul_quant_dynamic", 16, 2048, F16, PER_GROUP),
]


def run_counted(case: Case) -> RowCall:
    """The call, after it has run with counts of what was read."""
    call = prepare(case.op, case.build(), count_reads=True)
    call.run(cu_count=case.cu_count)
    return call


@pytest.mark.parametrize("case", MOVES, ids=[case.name for case in MOVES])
def test_rows_are_read_and_written_once_in_wide_accesses(case):
    """Inputs, y and residual_out by 16 bytes a lane, codes by 8; the weight once a workgroup."""
    call = run_counted(case)
    (counters,) = call.counters
    size, change = 2 * case.rows * case.hidden, case.change
    assert_read_once(call)
    two = case.op.startswith(("add", "silu"))
    weight = counters.workgroups * case.hidden * 2 if "norm" in case.op else 0
    assert counters.bytes["global_load", 16] == size * (1 + two) + weight
    scales = counters.moved("global_load") - counters.bytes["global_load", 16]
    words = 0 if case.op.endswith("dynamic") else change.get("scale_count", 1)
    assert scales <= counters.waves * 64 * 4 * words
    halves = case.op.startswith("add") + change.get("return_y", "quant" not in case.op)
    assert counters.bytes["global_store", 16] == size * halves
    codes = size // 2 * change.get("scale_count", 1) if "quant" in case.op else 0
    assert counters.bytes["global_store", 8] == codes


@pytest.mark.parametrize(
    "op,change,barriers",
    [
        ("add_rms_norm", {}, 1),
        ("add_rms_norm_quant", {"scale_count": 2}, 1),
        ("add_rms_norm_quant_dynamic", PER_GROUP, 1),
        ("rms_norm_quant_dynamic", {}, 2),  # one more for the largest element
    ],
)
def test_a_norm_has_so_many_barriers_a_row(op, change, barriers):
    """Twelve rows more of one persistent workgroup cost twelve times as many barriers."""
    counted = [run_counted(Case(op, rows, 4096, BF16, change, cu_count=1)) for rows in (12, 24)]
    (few,), (many,) = (call.counters for call in counted)
    assert few.workgroups == many.workgroups
    waves = few.waves // few.workgroups
    more = many.instructions["barrier"] - few.instructions["barrier"]
    assert more == 12 * barriers * waves


def test_silu_has_no_barrier_but_for_a_scale_per_token():
    for change, barriers in (({}, 1), (PER_GROUP, 0)):
        (counters,) = run_counted(Case("silu_mul_quant_dynamic", 5, 2048, BF16, change)).counters
        assert counters.instructions["barrier"] == barriers * counters.waves
    for op in ("silu_mul", "silu_mul_quant"):
        assert run_counted(Case(op, 5, 2048)).counters[0].instructions["barrier"] == 0


@pytest.mark.parametrize("form", [Form.DENSE, Form.SPARSE, Form.RING])
def test_gemm_streams_the_weights_once(form):
    m, n, k = 8, 128, 2048
    case = GemmCase(m, n, k, FP8, form)
    call = case.prepare(case.operands(), count_reads=True)
    call.run()
    assert call.weight.reads is not None
    assert (call.weight.reads == 1).all()
    counters = call.counters[0]
    assert counters.bytes["global_load", 16] >= n * k
    depth = 64 if form == Form.SPARSE else 32
    assert counters.instructions["matrix"] >= n // 16 * (k // depth)


def test_gemm_gives_the_same_bits_in_every_schedule():
    """Deterministic split-K: order of waves and workgroups does not matter."""
    case = GemmCase(4, 96, 4096, FP8, Form.DENSE)
    given = case.operands()
    results = [case.prepare(given).run(s) for s in [None, *(Schedule(k, 4) for k in range(4))]]
    assert case.prepare(given).plan().shape.splits > 1
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_ring_survives_twenty_schedules():
    """Producer and consumer waves: no race, no deadlock, the same bits whatever the order.

    One compute unit, so that each pair of waves passes 16 stages through its four slots.
    """
    case = GemmCase(8, 64, 4096, FP8, Form.RING, cu_count=1)
    shape = case.prepare(case.operands()).plan(case.cu_count).shape
    assert case.k // 128 // shape.k_waves // shape.splits == 16
    given = case.operands()
    results = [case.prepare(given).run(Schedule(seed, 2), case.cu_count) for seed in range(20)]
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_norm_gives_the_same_bits_in_every_schedule():
    case = Case("add_rms_norm_quant_dynamic", 5, 12288)
    given = case.build()
    outputs = [prepare(case.op, given).run(Schedule(seed, 3), 1) for seed in range(5)]
    for name, first in outputs[0].items():
        for other in outputs[1:]:
            assert torch.equal(first.view(torch.uint8), other[name].view(torch.uint8)), name
