"""Launch plans of `skinny_gemm` as data.

The plan is made in C++ (`csrc/runtime/gemm_plan.h`), because the operator needs it on every call.
Here are the structs it works on and a call of the same function, so that tests, the gfx942
interpreter and benchmarks see exactly what the operator launches. Every kernel takes one
`SkinnyGemmArgs` by value (`csrc/include/mi300/skinny_gemm_args.h`).

Entry points; grid and workgroup are one-dimensional and come from the plan, `lds_bytes` is dynamic:
    skinny_gemm_<fp8|bf16|fp16>_m<16|32|64>_t1           gfx942: dense, up to m rows
    skinny_gemm_<fp8|bf16|fp16>_m8_t<1|2>                sm_90: dense, t row tiles a wave
    skinny_gemm_<fp8|bf16|fp16>_unaligned                any row alignment and number of bytes of k
    skinny_gemm_group_<fp8|bf16|fp16>_m<8|..|64>_t<1|2>  sm_90: four waves multiply together
    skinny_gemm_sparse_fp8_m8_t1                         gfx942: 8 rows as 16 sparse ones
    skinny_gemm_ring_fp8_m<8|16>_t1                      gfx942: producer and consumer waves
    skinny_gemm_sum                                      gfx942: adds the parts of k in order
"""

from __future__ import annotations

import ctypes
import enum

import torch

from mi300_inductor.plan import DTYPES, DeviceInfo, core

MAX_ROWS = 64
STAGE_BYTES = 128

_POINTERS = ("weight", "activation", "out", "scale_a", "scale_b", "bias", "addend", "partial")
_STRIDES = ("weight_stride", "activation_stride", "addend_stride")
_COUNTS = (
    *("n", "m", "row_bytes", "row_groups", "splits", "split_stages", "waves", "k_waves"),
    *("chunk", "groups_in_grid", "quads_inverse", "share", "share_inverse"),
    *("scale_a_step", "scale_b_step"),
)
_CODES = ("out_type", "bias_type", "addend_type", "is_prefetched")


class Form(enum.IntEnum):
    """How a kernel multiplies; ANY in a problem leaves the choice to the plan."""

    ANY = 0
    DENSE = 1
    SPARSE = 2
    RING = 3
    GROUP = 4
    UNALIGNED = 5
    VENDOR = 6


class SkinnyGemmArgs(ctypes.Structure):
    """Arguments of a kernel; the meaning of each field is in skinny_gemm_args.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_long) for name in _STRIDES),
        *((name, ctypes.c_uint) for name in _COUNTS),
        *((name, ctypes.c_ubyte) for name in _CODES),
    ]


class GemmProblem(ctypes.Structure):
    """A call before it is planned; see gemm_plan.h."""

    _fields_ = [("args", SkinnyGemmArgs), ("operand", ctypes.c_int), ("form", ctypes.c_int)]


class GemmShape(ctypes.Structure):
    """How the work is cut: form, limit of m, row tiles a wave, waves, waves along k, parts of k."""

    _fields_ = [
        ("form", ctypes.c_int),
        *((name, ctypes.c_uint) for name in ("columns", "tiles", "waves", "k_waves", "splits")),
    ]

    @property
    def rows(self) -> int:
        """Weight rows that a workgroup takes at a time."""
        return int(self.waves // self.k_waves * self.tiles * 16)


class GemmLaunch(ctypes.Structure):
    """One launch: module (source stem), entry, geometry and arguments."""

    _fields_ = [
        ("module", ctypes.c_char * 32),
        ("entry", ctypes.c_char * 48),
        *((name, ctypes.c_uint) for name in ("grid", "block", "cluster", "lds_bytes")),
        ("is_dependent", ctypes.c_uint),
        ("args", SkinnyGemmArgs),
    ]


class GemmPlan(ctypes.Structure):
    """Up to two launches, in order on one stream; none means the vendor's library."""

    _fields_ = [
        ("shape", GemmShape),
        ("workspace_bytes", ctypes.c_ulong),
        ("launch_count", ctypes.c_uint),
        ("launch_array", GemmLaunch * 2),
    ]

    @property
    def launches(self) -> list[GemmLaunch]:
        """The launches of the plan; `args.partial` is still null."""
        return [self.launch_array[i] for i in range(self.launch_count)]


def problem(
    m: int,
    n: int,
    k: int,
    operand: torch.dtype,
    out_dtype: torch.dtype = torch.bfloat16,
    form: Form = Form.ANY,
) -> GemmProblem:
    """Describes a contiguous, aligned call without pointers.

    Args:
        m: Activation rows.
        n: Weight rows.
        k: Elements of a row.
        operand: Dtype of both operands.
        out_dtype: float32, bfloat16 or float16.
        form: Restricts the plan to one form.
    """
    row_bytes = k * operand.itemsize
    strides = {"weight_stride": row_bytes, "activation_stride": row_bytes}
    args = SkinnyGemmArgs(n=n, m=m, row_bytes=row_bytes, out_type=DTYPES[out_dtype], **strides)
    return GemmProblem(args, int(DTYPES[operand]), int(form))


def plan_gemm(call: GemmProblem, info: DeviceInfo) -> GemmPlan:
    """Plans a call with m, n and k above 0.

    A pure function of the problem (its operands' pointers count by their alignment alone) and the
    device.
    """
    plan = GemmPlan()
    core().mi300_plan_gemm(ctypes.byref(call), ctypes.byref(info), ctypes.byref(plan))
    return plan
