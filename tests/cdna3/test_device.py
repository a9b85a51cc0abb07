"""What surrounds a launch: guard bytes, the end of every wave, endless loops, wrong launches."""

from __future__ import annotations

import numpy as np
import pytest

from .checks import Fault
from .code_object import CodeObjectError
from .device import Device, Schedule
from .selftest import SCHEDULES, kernel, run_norm, run_ring
from .snippets import assemble_snippets, run_snippet

LOOP = ".Lagain_{0}:\n{1}  s_branch .Lagain_{0}\n"


@pytest.fixture(scope="module")
def kernels():
    return assemble_snippets(
        {
            "idle": LOOP.format("idle", "  s_sleep 1\n"),
            "busy": LOOP.format("busy", "  global_store_dword v40, v0, s[6:7]\n"),
            "open": "  s_branch .Lopen_end\n",
            "plain": "  v_mov_b32_e32 v16, v0\n",
        }
    )


@pytest.mark.parametrize("side", [-1, 1])
def test_a_changed_byte_beside_a_buffer_is_noticed(kernels, side):
    """Stores are checked one by one; the guards are the net below, and hold without them."""
    device = Device()
    args = [device.input(np.zeros(8192, np.uint8)), device.output(8192), device.zeros(32)]
    out = args[1]
    out.storage[out.start - 1 if side < 0 else out.start + out.size] ^= 1
    with pytest.raises(AssertionError, match="plain: guard bytes of buffer 1 changed"):
        device.launch(kernels["plain"], (1,), (64,), args)


def test_waves_that_wait_for_ever_are_a_deadlock(kernels):
    with pytest.raises(Fault, match="idle: deadlock: nothing was written") as caught:
        run_snippet(kernels["idle"], np.zeros((64, 1), np.uint32))
    assert caught.value.instruction.startswith(("s_sleep", "s_branch"))


def test_waves_that_work_for_ever_run_out_of_budget(kernels):
    device = Device(budget=10_000)
    args = [device.input(np.zeros(8192, np.uint8)), device.output(8192), device.zeros(32)]
    with pytest.raises(Fault, match="busy: budget: the launch ran past its budget"):
        device.launch(kernels["busy"], (1,), (64,), args)


def test_every_wave_ends_once(kernels):
    """The count that tests of kernels compare: s_endpgm of each wave of each workgroup."""
    device = Device()
    args = [device.input(np.zeros(8192, np.uint8)), device.output(8192), device.zeros(32)]
    counters = device.launch(kernels["plain"], (3,), (64,), args)
    assert (counters.workgroups, counters.waves, counters.ended) == (3, 3, 3)
    counters, _ = run_norm(kernel("norm", "norm.hip"), Schedule(), 3, 512)
    assert (counters.workgroups, counters.waves, counters.ended) == (2, 8, 8)


def test_a_wave_that_leaves_the_kernel_is_a_fault(kernels):
    with pytest.raises((Fault, CodeObjectError), match="no_end|leaves the kernel"):
        run_snippet(kernels["open"], np.zeros((64, 1), np.uint32))


def test_schedules_differ_and_repeat():
    """The same seed gives the same order of instructions, another seed another one."""
    code = kernel("ring", "ring.hip")
    counts = [dict(run_ring(code, s)[0].mnemonics) for s in (*SCHEDULES[:8], *SCHEDULES[:8])]
    assert counts[:8] == counts[8:]
    assert len({tuple(sorted(count.items())) for count in counts[:8]}) > 4


def test_a_launch_that_the_device_would_refuse(kernels):
    device = Device()
    args = [device.input(np.zeros(8192, np.uint8)), device.output(8192), device.zeros(32)]
    with pytest.raises(CodeObjectError, match="512 work-items per workgroup; expected 1 to 256"):
        device.launch(kernels["plain"], (1,), (512,), args)
    with pytest.raises(CodeObjectError, match="bytes of LDS; expected at most 65536"):
        device.launch(kernels["plain"], (1,), (64,), args, dynamic_lds=65536)
