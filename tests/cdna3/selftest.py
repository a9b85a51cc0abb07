"""The executor's own test kernels: how to run each one and check its result.

Used by `test_kernels.py` (they pass) and `test_mutants.py` (deliberate faults are caught).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from .assembly import compile_hip
from .counters import Counters
from .device import Device, Schedule
from .program import Kernel, load_kernels

KERNELS = Path(__file__).parent / "kernels"


class WrongResult(AssertionError):
    """The kernel ran without a fault and its output is wrong."""


def kernel(name: str, file: str) -> Kernel:
    """A kernel of `tests/cdna3/kernels`."""
    return load_kernels(compile_hip(KERNELS / file))[name]


def _float8(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    codes = torch.from_numpy(rng.normal(size=shape)).to(torch.float8_e4m3fnuz)
    return codes.view(torch.uint8).numpy(), codes.double().numpy()


def _require(ok: bool, what: str) -> None:
    if not ok:
        raise WrongResult(what)


def run_norm(
    code: Kernel, schedule: Schedule, rows: int = 5, hidden: int = 1100
) -> tuple[Counters, Device]:
    """RMS norm to e4m3fnuz; a code may differ by one where the last bit of 1/rms matters."""
    rng = np.random.default_rng()
    x = (rng.normal(size=(rows, hidden)) * 3).astype(np.float32)
    x[0, 7] = 40000.0
    x[0, 8:24] = 0.01
    device = Device()
    args = [device.input(x, count_reads=True), device.output(rows * hidden)]
    counters = device.launch(
        code, (2,), (256,), [*args, hidden, rows, 1e-5, 9.0], schedule=schedule
    )
    wide = x.astype(np.float64)
    y = np.clip(wide / np.sqrt((wide * wide).mean(1, keepdims=True) + 1e-5) * 9.0, -240, 240)
    expected = torch.from_numpy(y).to(torch.float8_e4m3fnuz)
    got = torch.from_numpy(args[1].bytes().copy().reshape(rows, hidden)).view(torch.float8_e4m3fnuz)
    differ = (got.view(torch.uint8) != expected.view(torch.uint8)).numpy()
    error = np.abs(got.double().numpy() - y)
    _require(differ.mean() < 1e-3, f"{differ.sum()} codes differ")
    _require(bool((error <= np.abs(y) / 16 * 1.001 + 2.0**-11).all()), "a code is not a neighbour")
    _require(bool((args[1].writes == 1).all()), "a byte was written twice or never")
    return counters, device


def _run_matmul(
    code: Kernel, schedule: Schedule, m: int, n: int, k: int, tile: int
) -> tuple[Counters, Device]:
    rng = np.random.default_rng()
    a_codes, a = _float8(rng, (m, k))
    w_codes, w = _float8(rng, (n, k))
    device = Device()
    args = [
        device.input(a_codes),
        device.input(w_codes, count_reads=True),
        device.output(4 * m * n),
    ]
    counters = device.launch(code, (-(-n // tile),), (64,), [*args, n, k, 0.37], schedule=schedule)
    got = args[2].array(np.float32).reshape(m, n)
    scale = np.abs(a) @ np.abs(w.T) * 0.37
    _require(bool((np.abs(got - a @ w.T * 0.37) <= 2.0**-18 * scale).all()), "the product is wrong")
    return counters, device


def run_dense16(code: Kernel, schedule: Schedule) -> tuple[Counters, Device]:
    """out[16, 40] over k 160; the last tile of columns is not full."""
    return _run_matmul(code, schedule, 16, 40, 160, 16)


def run_dense32(code: Kernel, schedule: Schedule) -> tuple[Counters, Device]:
    """out[32, 64] over k 96."""
    return _run_matmul(code, schedule, 32, 64, 96, 32)


def run_sparse8(code: Kernel, schedule: Schedule) -> tuple[Counters, Device]:
    """out[8, 32] over k 192."""
    return _run_matmul(code, schedule, 8, 32, 192, 16)


def run_ring(code: Kernel, schedule: Schedule, steps: int = 17) -> tuple[Counters, Device]:
    """One producer and one consumer wave."""
    x = np.random.default_rng().normal(size=(steps, 64)).astype(np.float32)
    device = Device()
    args = [device.input(x), device.output(256)]
    counters = device.launch(code, (2,), (128,), [*args, steps], schedule=schedule)
    expected = np.zeros(64, np.float32)
    for row in x:
        expected += row[np.arange(64) ^ 1]
    _require(bool((args[1].array(np.float32) == expected).all()), "the sums are wrong")
    return counters, device


def run_parts(code: Kernel, schedule: Schedule) -> tuple[Counters, Device]:
    """Eight workgroups; the last to arrive sums."""
    x = np.random.default_rng().normal(size=(8, 64)).astype(np.float32)
    device = Device()
    args = [device.input(x), device.output(2048), device.zeros(4), device.output(256)]
    counters = device.launch(code, (8,), (64,), args, schedule=schedule)
    expected = np.zeros(64, np.float32)
    for row in x:
        expected += row * np.float32(2)
    _require(bool((args[3].array(np.float32) == expected).all()), "the sums are wrong")
    return counters, device


# kernel: (file, how to run it)
Run = Callable[[Kernel, Schedule], tuple[Counters, Device]]
RUNS: dict[str, tuple[str, Run]] = {
    "norm": ("norm.hip", run_norm),
    "dense16": ("matmul.hip", run_dense16),
    "dense32": ("matmul.hip", run_dense32),
    "sparse8": ("matmul.hip", run_sparse8),
    "ring": ("ring.hip", run_ring),
    "parts": ("parts.hip", run_parts),
}
SCHEDULES = [Schedule(), *(Schedule(seed, resident=2, noise=seed + 1) for seed in range(20))]
