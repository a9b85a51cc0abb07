"""The executor's own kernels give right results in every schedule, with the expected counts."""

from __future__ import annotations

import pytest

from .selftest import RUNS, SCHEDULES, kernel, run_dense16, run_norm, run_ring


@pytest.mark.parametrize("name", RUNS)
def test_kernel_is_right_in_all_schedules(name):
    file, run = RUNS[name]
    code = kernel(name, file)
    assert len(SCHEDULES) > 20
    for schedule in SCHEDULES:
        counters, device = run(code, schedule)  # raises if a check fails or the result is wrong
        assert counters.ended == counters.waves > 0
        assert all((b.writes > 0).all() for b in device.buffers if b.uninitialized)


def test_counters_of_the_norm():
    rows, hidden = 6, 2048
    counters, device = run_norm(kernel("norm", "norm.hip"), SCHEDULES[0], rows, hidden)
    assert counters.workgroups == 2
    assert counters.instructions["barrier"] == rows * 4 * 2
    assert counters.bytes["global_load", 16] == 2 * rows * hidden * 4
    assert counters.bytes["global_store", 4] == rows * hidden
    assert counters.lines == 2 * rows * hidden * 4 // 128 + rows * hidden // 128
    assert counters.bank_conflicts == 0
    assert (device.buffers[0].reads == 2).all()


def test_counters_of_the_matmul():
    counters, device = run_dense16(kernel("dense16", "matmul.hip"), SCHEDULES[0])
    assert counters.mnemonics["v_mfma_f32_16x16x32_fp8_fp8"] == 3 * 160 // 32
    assert counters.instructions["matrix"] == 15
    assert (device.buffers[1].reads == 1).all()


def test_ring_counts_its_lds_traffic():
    counters, _ = run_ring(kernel("ring", "ring.hip"), SCHEDULES[0])
    assert counters.moved("lds_write") >= 2 * 17 * 64 * 4
    assert counters.moved("global_load") == 2 * 17 * 64 * 4
