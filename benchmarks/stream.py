"""A kernel that moves a row operator's bytes and computes next to nothing: what a launch can reach.

It is launched as the operators are, by the core of `csrc/runtime`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.chains import Case
from benchmarks.timing import Unavailable
from mi300_inductor import arch, build, plan, toolchain

SOURCE = Path(__file__).parent / "stream.hip"
THREADS, PER_GROUP = 256, 512


class Arguments(ctypes.Structure):
    """As `StreamArgs` in stream.hip."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("a", "b", "wide", "narrow")] + [
        ("vectors", ctypes.c_longlong)
    ]


@cache
def _core() -> ctypes.CDLL:
    spec = arch.detect("cuda")
    if spec is None:
        raise Unavailable(f"stream: no kernels for {torch.cuda.get_device_name()}")
    build.load_kernels("CUDA")  # a device takes an image more only after the operators' own
    core = plan.open_core(build.build_library("runtime"))
    image = toolchain.compile_image(SOURCE, spec).read_bytes()
    plan.check(core, core.mi300_add_image(0, b"stream", image, len(image)))
    return core


def streamer(case: Case) -> Callable[..., tuple[Tensor, ...]]:
    """A call on the case's buffers: reads the rows, writes what the operator writes of them.

    Raises:
        Unavailable: for a card that the project has no kernels for.
    """
    core, is_norm = _core(), case.family == "norm"
    vectors = case.rows * case.hidden // 8

    def call(first: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        wide = torch.empty(vectors * 8 * is_norm, dtype=case.dtype, device=first.device)
        narrow = torch.empty(vectors * 8, dtype=case.q_dtype, device=first.device)
        # Packed gate and up are one run of memory: halves of it move the same bytes.
        start = first.data_ptr()
        second = others[0].data_ptr() if is_norm else start + vectors * 16
        written = wide.data_ptr() if is_norm else None
        given = Arguments(start, second, written, narrow.data_ptr(), vectors)
        what = plan.Launch(b"stream", b"stream", -(-vectors // PER_GROUP), THREADS, 1, 0, False)
        stream = torch.cuda.current_stream().cuda_stream
        launched = core.mi300_launch(0, ctypes.byref(what), ctypes.byref(given), stream)
        plan.check(core, launched)
        return wide, narrow

    return call
