"""What eager and Inductor are given for an FP8 matmul on a CPU: the faster of torch's two ways.

On a CPU with AMX `torch._scaled_mm` goes to oneDNN, which computes element by element where the CPU
has no FP8 instructions: 3.0 s for 16 rows of 1024 x 1024 on a Xeon with amx_bf16, one thread, torch
2.13.0+cpu. Without oneDNN torch widens the operands and takes 21 ms. Nobody who knew of the second
way would keep the first, so no gain is claimed over it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor


@contextmanager
def faster_fp8_matmul(device: torch.device) -> Iterator[None]:
    """Switches oneDNN off inside the block where torch's FP8 matmul is faster without it.

    It is off for all operations of the block then, the attention's among them.
    """
    if device.type != "cpu" or not is_faster_without_onednn():
        yield
        return
    with _without_onednn():
        yield


def scaled_mm(a: Tensor, *others: Tensor, **options: Any) -> Tensor:
    """`torch._scaled_mm` the faster way, for those that time it alone."""
    with faster_fp8_matmul(a.device):
        return torch._scaled_mm(a, *others, **options)


@cache
def is_faster_without_onednn() -> bool:
    """Times one small matmul both ways; a factor of two decides, so that noise does not."""
    if not torch.backends.mkldnn.enabled:
        return False
    with_it = _milliseconds()
    with _without_onednn():
        return with_it > 2 * _milliseconds()


def _without_onednn() -> AbstractContextManager[None]:
    return torch.backends.mkldnn.flags(enabled=False, allow_tf32=None, fp32_precision=None)


def _milliseconds() -> float:
    a, weight = (torch.ones(rows, 512).to(torch.float8_e4m3fn) for rows in (4, 512))
    one, times = torch.ones(1), []
    for _ in range(3):
        start = time.perf_counter()
        torch._scaled_mm(a, weight.t(), one, one, out_dtype=torch.bfloat16)
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)
