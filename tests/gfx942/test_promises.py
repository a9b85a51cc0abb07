"""What the kernels promise, counted while they run: bytes moved, access widths, barriers, order."""

from __future__ import annotations

import pytest
import torch

from mi300_inductor.gemm_plan import Form

from ..cdna3.device import Schedule
from .cases import BF16, Case
from .gemm import prepare_gemm
from .gemm_cases import FP8, GemmCase
from .rows import prepare


def test_norm_reads_each_input_byte_once_with_16_byte_loads():
    rows, hidden = 6, 4096
    case = Case("add_rms_norm_quant", rows, hidden)
    call = prepare(case.op, case.build(), count_reads=True)
    call.run(cu_count=1)
    (counters,) = call.counters
    for name in ("x", "residual"):
        assert (call.inputs[name].reads == 1).all()
    wide = counters.bytes["global_load", 16]
    assert wide >= 2 * rows * hidden * 2  # both inputs; the weight comes on top, per workgroup
    assert wide <= 2 * rows * hidden * 2 + counters.workgroups * hidden * 2
    assert counters.bytes["global_store", 16] == rows * hidden * 2  # residual_out
    assert counters.bytes["global_store", 8] == rows * hidden  # q


def test_norm_has_one_barrier_a_row():
    rows, hidden = 12, 4096
    case = Case("add_rms_norm_quant", rows, hidden)
    barriers = []
    for count in (rows, 2 * rows):
        call = prepare(case.op, Case(case.op, count, hidden).build())
        (launch,) = call.launches(1)
        call.run(cu_count=1)
        waves = launch.block // 64
        barriers.append(call.counters[0].instructions["barrier"] // waves)
    assert barriers[1] - barriers[0] == rows


def test_silu_moves_the_bytes_once():
    rows, hidden = 16, 2048
    case = Case("silu_mul_quant", rows, hidden)
    call = prepare(case.op, case.build(), count_reads=True)
    call.run()
    for name in ("gate", "up"):
        assert (call.inputs[name].reads == 1).all()
    (counters,) = call.counters
    assert counters.bytes["global_load", 16] == 2 * rows * hidden * 2
    assert counters.bytes["global_store", 8] == rows * hidden
    assert counters.instructions["barrier"] == 0


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
    """Producer and consumer waves: no race, no deadlock, the same bits whatever the order."""
    case = GemmCase(8, 64, 4096, FP8, Form.RING)
    given = case.operands()
    results = [case.prepare(given).run(Schedule(seed, 2)) for seed in range(20)]
    assert all(torch.equal(results[0], result) for result in results[1:])


def test_norm_gives_the_same_bits_in_every_schedule():
    case = Case("add_rms_norm_quant_dynamic", 5, 12288)
    given = case.build()
    outputs = [prepare(case.op, given).run(Schedule(seed, 3), 1) for seed in range(5)]
    for name, first in outputs[0].items():
        for other in outputs[1:]:
            assert torch.equal(first.view(torch.uint8), other[name].view(torch.uint8)), name


def test_rows_of_llama_405b():
    """One full-size run: decode of 32 tokens at hidden 16384, the 405B model's."""
    case = Case("add_rms_norm_quant", 32, 16384, BF16)
    call = prepare(case.op, case.build(), count_reads=True)
    call.run()
    assert (call.inputs["residual"].reads == 1).all()


def test_matmul_of_llama_405b():
    """One full-size run: the fused q/k/v projection of one of eight shards, 8 tokens."""
    m, n, k = 8, 2304, 16384
    a, weight = torch.randn(m, k).to(FP8), torch.randn(n, k).to(FP8)
    scale = torch.ones(1)
    call = prepare_gemm(a, weight, scale, scale, count_reads=True)
    got = call.run().float()
    exact = a.float() @ weight.float().T
    assert (got - exact).abs().max() <= exact.abs().max() * 2.0**-7
    assert call.weight.reads is not None
    assert (call.weight.reads == 1).all()
