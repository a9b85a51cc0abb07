"""Launch plans of `skinny_gemm` as data.

The plan is made in C++ (`csrc/runtime/gemm_plan.h`), because the operator needs it on every call.
Here are the structs it works on and a call of the same function, so that tests, the gfx942
interpreter and benchmarks see exactly what the operator launches. Every kernel takes one
`SkinnyGemmArgs` by value (`csrc/include/mi300/skinny_gemm_args.h`). `gemm_tuning.py` chooses other
plans than the rule's by measuring them.

Entry points; grid and workgroup are one-dimensional and come from the plan, `lds_bytes` is dynamic:
    skinny_gemm_<fp8|bf16|fp16>_m<16|32|64>_t1           gfx942: dense, up to m rows
    skinny_gemm_<fp8|bf16|fp16>_unaligned                any row alignment and number of bytes of k
    skinny_gemm_group_<fp8|bf16|fp16>_m<8|16|32|64>_t1   sm_90: teams of waves, wgmma from LDS
    skinny_gemm_sparse_fp8_m8_t1                         gfx942: 8 rows as 16 sparse ones
    skinny_gemm_ring_fp8_m<8|16>_t1                      gfx942: producer and consumer waves
    skinny_gemm_sum                                      gfx942: adds the parts of k in order
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence

import torch

from mi300_inductor.plan import DTYPES, DeviceInfo, check, core

MAX_ROWS = 64
STAGE_BYTES = 128

_POINTERS = ("weight", "activation", "out", "scale_a", "scale_b", "bias", "partial")
_OWN_COUNTS = ("n", "row_groups", "first_team", "teams")
_COUNTS = (
    *("m", "row_bytes", "splits", "split_stages", "waves", "k_waves", "k_shift"),
    *("rows", "tile_rows", "depth", "chunk", "quads_inverse", "share", "share_inverse"),
    *("scale_a_step", "scale_b_step"),
)
_CODES = ("out_type", "bias_type", "addend_type", "is_early")
_SET: list[tuple[str, type]] = [
    *((name, ctypes.c_void_p) for name in _POINTERS),
    ("weight_stride", ctypes.c_long),
    *((name, ctypes.c_uint) for name in _OWN_COUNTS),
]


class Form(enum.IntEnum):
    """How a kernel multiplies; ANY in a problem leaves the choice to the plan."""

    ANY = 0
    DENSE = 1
    SPARSE = 2
    RING = 3
    GROUP = 4
    UNALIGNED = 5
    VENDOR = 6


# More than there are ways to cut any problem.
_MOST_SHAPES = 1024


class GemmSet(ctypes.Structure):
    """What one of a launch's products has for itself; see skinny_gemm_args.h."""

    _fields_ = _SET


class GemmQuant(ctypes.Structure):
    """How the results are quantised; see skinny_gemm_args.h. No scale: not at all."""

    _fields_ = [
        ("scale", ctypes.c_void_p),
        ("clamp_min", ctypes.c_float),
        ("clamp_max", ctypes.c_float),
        ("scaling", ctypes.c_uint),
    ]


class SkinnyGemmArgs(ctypes.Structure):
    """Arguments of a kernel; the meaning of each field is in skinny_gemm_args.h.

    The first product's set comes first, field by field; the others are in `more`.
    """

    _fields_ = [
        *_SET,
        ("addend", ctypes.c_void_p),
        ("activation_stride", ctypes.c_long),
        ("addend_stride", ctypes.c_long),
        *((name, ctypes.c_uint) for name in _COUNTS),
        *((name, ctypes.c_ubyte) for name in _CODES),
        ("quant", GemmQuant),
        ("more", GemmSet * 2),
    ]


class GemmProblem(ctypes.Structure):
    """A call before it is planned; see gemm_plan.h."""

    _fields_ = [("args", SkinnyGemmArgs), ("operand", ctypes.c_int), ("form", ctypes.c_int)]


class GemmShape(ctypes.Structure):
    """How the work is cut.

    Form, limit of m, row tiles a wave (of four with the group form), weight rows of a tile, waves,
    waves along k, parts of k, stages of a ring.
    """

    _fields_ = [
        ("form", ctypes.c_int),
        *((name, ctypes.c_uint) for name in ("columns", "tiles", "tile_rows", "waves")),
        *((name, ctypes.c_uint) for name in ("k_waves", "splits", "depth")),
    ]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The fields in order, so that `GemmShape(*numbers)` is equal."""
        return tuple(int(getattr(self, name)) for name, *_ in self._fields_)

    def __str__(self) -> str:
        """The cut in words, for reports."""
        if self.form == Form.VENDOR:
            return "library"
        along_k = f" ({self.k_waves} along k)" if self.k_waves > 1 else ""
        ring = f", {self.depth} stages deep" if self.depth else ""
        return (
            f"{Form(self.form).name.lower()} up to {self.columns} rows, {self.waves} waves"
            f"{along_k}, tiles of {self.tile_rows}, k in {self.splits}{ring}"
        )

    @property
    def rows(self) -> int:
        """Weight rows that a workgroup takes at a time."""
        together = 4 if self.form == Form.GROUP else 1
        return int(self.waves // self.k_waves // together * self.tiles * self.tile_rows)


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
    more: Sequence[int] = (),
) -> GemmProblem:
    """Describes a contiguous, aligned call without pointers.

    Args:
        m: Activation rows.
        n: Weight rows.
        k: Elements of a row.
        operand: Dtype of both operands.
        out_dtype: float32, bfloat16 or float16.
        form: Restricts the plan to one form.
        more: Weight rows of up to two further products with the same activation rows and `k`.
    """
    row_bytes = k * operand.itemsize
    strides = {"weight_stride": row_bytes, "activation_stride": row_bytes}
    args = SkinnyGemmArgs(n=n, m=m, row_bytes=row_bytes, out_type=DTYPES[out_dtype], **strides)
    for own, rows in zip(args.more, more, strict=False):
        own.n, own.weight_stride = rows, row_bytes
    return GemmProblem(args, int(DTYPES[operand]), int(form))


def plan_gemm(call: GemmProblem, info: DeviceInfo) -> GemmPlan:
    """Plans a call with m, n and k above 0.

    A pure function of the problem (its operands' pointers count by their alignment alone) and the
    device.
    """
    plan = GemmPlan()
    core().mi300_plan_gemm(ctypes.byref(call), ctypes.byref(info), ctypes.byref(plan))
    return plan


def plan_shape(call: GemmProblem, shape: GemmShape, info: DeviceInfo) -> GemmPlan | None:
    """Plans a call that is cut in a given way; None if it cannot be cut so."""
    plan = GemmPlan()
    references = (ctypes.byref(item) for item in (call, info, shape, plan))
    return plan if core().mi300_shape_gemm(*references) == 0 else None


def list_shapes(call: GemmProblem, info: DeviceInfo) -> list[GemmShape]:
    """All ways in which the rule would cut a call, and those of the ring form; none: no kernel."""
    shapes = (GemmShape * _MOST_SHAPES)()
    references = ctypes.byref(call), ctypes.byref(info), shapes
    count = core().mi300_list_gemm(*references, _MOST_SHAPES)
    return [GemmShape(*shapes[i].numbers) for i in range(count)]


def choose_shape(library: ctypes.CDLL, device: int, call: GemmProblem, shape: GemmShape) -> bool:
    """Has the operators of a library cut calls like this one in a given way from now on.

    Args:
        library: One that holds the launcher's core, with its device installed.
        device: Index of the device.
        call: An example: size, dtypes, alignment, and which scales differ by row or column count.
        shape: The cut; the form VENDOR has the vendor's library do the call.

    Returns:
        Whether calls can be cut so; if not, nothing is changed.
    """
    references = ctypes.byref(call), ctypes.byref(shape)
    return bool(library.mi300_choose_gemm(device, *references) == 0)


def find_plan(library: ctypes.CDLL, device: int, call: GemmProblem) -> GemmPlan:
    """The plan that the operators of a library take for calls like this one.

    Raises:
        RuntimeError: if the library does not know the device.
    """
    plan = GemmPlan()
    check(library, library.mi300_find_gemm(device, ctypes.byref(call), ctypes.byref(plan)))
    return plan
