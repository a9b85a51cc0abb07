"""The launcher's core for Python: launch plans as data, and installing device code.

The plan of a norm or SiLU call is made in C++ (`csrc/runtime/row_plan.h`) and kept there
(`row_plans.h`), because the operators need it on every call. Here are the structs it works on and
calls of the same functions, so that tests, the gfx942 interpreter and benchmarks see exactly what
the operators launch. Every kernel of `csrc/gpu` takes one struct by value; for the norm and SiLU
kernels it is `RowArgs` (`csrc/include/mi300/row_args.h`).

Entry points, all with a one-dimensional grid and workgroup from `RowLaunch`:
    rms_norm_<bf16|fp16>_v<1|2|4>_<plain|static|per_token|per_group>    rows in registers
    rms_norm_<bf16|fp16>_async_<plain|static|per_token|per_group>       sm_90: many rows
    rms_norm_<bf16|fp16>_usual_v<1|2|4>_<...>                           sm_90: as models call it
    rms_norm_<bf16|fp16>_usual_shared_v<1|2|4>_<...>                    the same, few rows: clusters
    silu_mul_<bf16|fp16>_v<1|2>_<static|per_group>                      flat; static also without q
    silu_mul_<bf16|fp16>_v<1|2|4|8>_per_token                           rows in registers
    silu_mul_<bf16|fp16>_usual_w<2|4>_<plain|static|per_group>          sm_90: as models call it
    silu_mul_<bf16|fp16>_usual_v<1|2|4>_per_token                       the same, rows in registers
    silu_mul_<bf16|fp16>_usual_shared_v1_per_token                      the same, few rows: clusters
    rms_norm_any, silu_mul_any                                          everything else
    tensor_scale, tensor_quantize                                       behind a per-tensor scale
"""

from __future__ import annotations

import ctypes
import enum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mi300_inductor import arch, toolchain
from mi300_inductor.arch import ArchSpec
from mi300_inductor.build import COMPILER, csrc_dir, run_compiler
from mi300_inductor.cache import cached

MAX_LAUNCHES = 3


class Dtype(enum.IntEnum):
    """Element types by the numbers that kernels know."""

    NONE = 0
    F32 = 1
    BF16 = 2
    F16 = 3
    E4M3FN = 4
    E4M3FNUZ = 5
    E5M2 = 6


DTYPES: dict[torch.dtype, Dtype] = {
    torch.float32: Dtype.F32,
    torch.bfloat16: Dtype.BF16,
    torch.float16: Dtype.F16,
    torch.float8_e4m3fn: Dtype.E4M3FN,
    torch.float8_e4m3fnuz: Dtype.E4M3FNUZ,
    torch.float8_e5m2: Dtype.E5M2,
}
QUANTS = ("none", "static", "per_token", "per_group")
SCALINGS = ("div", "mul", "mul_reciprocal")
SCALE_FORMS = ("amax_div", "amax_mul", "div_amax", "reciprocal_mul")  # each also with "_rounded"

_HOT_CODES = (
    *("inner_dtype", "sigmoid_dtype", "y_dtype", "q_dtype", "scaled_dtype"),
    *("quant", "scaling", "scale_form", "overflow", "norm_path", "target_path", "scale_count"),
)
_SCALE_FLOATS = ("scale_const", "scale_reciprocal", "amax_min", "scale_min")
_RARE_FLOATS = ("weight_offset", "clamp_min", "clamp_max")
_RARE_CODES = (
    *("is_scale_rounded", "first_dtype", "second_dtype"),
    *("weight_dtype", "sum_dtype", "residual_dtype"),
)


class RowArgs(ctypes.Structure):
    """Arguments of a norm or SiLU kernel; the meaning of each field is in row_args.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("first", "second", "weight")),
        *((name, ctypes.c_longlong) for name in ("rows", "first_stride", "second_stride")),
        *((name, ctypes.c_uint) for name in ("hidden", "threads", "workgroups", "cluster")),
        *((name, ctypes.c_void_p) for name in ("residual_out", "y", "q")),
        *((name, ctypes.c_ubyte) for name in _HOT_CODES),
        ("group", ctypes.c_uint),
        ("inverse_hidden", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in _SCALE_FLOATS),
        ("scales", ctypes.c_void_p * 4),
        ("scale_stride", ctypes.c_longlong),
        ("amax", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in _RARE_FLOATS),
        *((name, ctypes.c_ubyte) for name in _RARE_CODES),
        ("padding", ctypes.c_ubyte * 6),
    ]


class RowProblem(ctypes.Structure):
    """A norm or SiLU call before it is planned; see row_plan.h."""

    _fields_ = [("args", RowArgs), ("is_norm", ctypes.c_int), ("is_per_tensor", ctypes.c_int)]


class RowLaunch(ctypes.Structure):
    """One launch of a plan: module (source stem), entry, geometry and arguments."""

    _fields_ = [
        ("module", ctypes.c_char * 32),
        ("entry", ctypes.c_char * 48),
        *((name, ctypes.c_uint) for name in ("grid", "block", "cluster", "lds_bytes")),
        ("is_dependent", ctypes.c_uint),
        ("args", RowArgs),
    ]


class Launch(ctypes.Structure):
    """A launch of any kernel, as the core's `mi300_launch` takes it."""

    _fields_ = [
        ("module", ctypes.c_char_p),
        ("entry", ctypes.c_char_p),
        *((name, ctypes.c_uint) for name in ("grid", "block", "cluster", "lds_bytes")),
        ("is_dependent", ctypes.c_bool),
    ]


class DeviceInfo(ctypes.Structure):
    """What plans read of a device; see launcher.h."""

    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            *("wave_size", "cu_count", "threads_per_cu", "lds_per_group", "lds_per_cu"),
            *("max_cluster", "has_async_copy", "native_fp8", "cast_saturates"),
        )
    ]


def device_info(spec: ArchSpec, cu_count: int | None = None, cast_saturates: int = 0) -> DeviceInfo:
    """Describes a device to the planner.

    Args:
        spec: Its target.
        cu_count: Its own number of compute units; None means the target's.
        cast_saturates: Bit `1 << Dtype` for each FP8 dtype whose cast on that device saturates.
    """
    return DeviceInfo(
        wave_size=spec.wave_size,
        cu_count=cu_count or spec.cu_count,
        threads_per_cu=spec.threads_per_cu,
        lds_per_group=spec.lds_per_group,
        lds_per_cu=spec.lds_per_cu,
        max_cluster=spec.max_cluster,
        has_async_copy=int(spec.has_async_copy),
        native_fp8=int(DTYPES[spec.fp8_dtype]),
        cast_saturates=cast_saturates,
    )


def build_core() -> Path:
    """Builds the launcher's core without torch, or takes it from the cache; returns its path."""
    csrc = csrc_dir()
    source = csrc / "runtime" / "core_api.cpp"
    headers = sorted([*(csrc / "runtime").glob("*.h"), *(csrc / "include").rglob("*.h")])
    flags = ["-std=c++20", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    flags += ["-fvisibility=hidden", "-ffp-contract=off"]
    include = f"-I{csrc / 'include'}"

    def run(out: Path) -> None:
        run_compiler([COMPILER, *flags, include, str(source), "-o", str(out), "-ldl"])

    return cached([run_compiler([COMPILER, "--version"]), *flags, *headers, source], "core.so", run)


def open_core(library: Path) -> ctypes.CDLL:
    """Opens a library that holds core_api.cpp and declares its functions."""
    core = ctypes.CDLL(str(library))
    core.mi300_last_error.restype = ctypes.c_char_p
    core.mi300_add_image.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong]
    core.mi300_launch.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return core


@lru_cache(1)
def core() -> ctypes.CDLL:
    """Returns the torch-free core, built at the first call."""
    return open_core(build_core())


def check(library: ctypes.CDLL, status: int) -> None:
    """Raises the core's last error as RuntimeError unless the status is 0."""
    if status != 0:
        raise RuntimeError(library.mi300_last_error().decode())


def plan_rows(problem: RowProblem, info: DeviceInfo) -> list[RowLaunch]:
    """Plans a norm or SiLU call: the launches, to be made in order on one stream.

    A pure function of the problem (its pointers count only by their alignment and whether they are
    null) and the device.
    """
    launches = (RowLaunch * MAX_LAUNCHES)()
    count = core().mi300_plan_rows(ctypes.byref(problem), ctypes.byref(info), launches)
    return [launches[i] for i in range(count)]


def _probe_casts(index: int) -> int:
    """Bits of the FP8 dtypes whose cast saturates on a GPU."""
    huge = torch.full((2,), 1e6, device=torch.device("cuda", index))
    bits = 0
    for dtype, code in DTYPES.items():
        if code >= Dtype.E4M3FN:
            bits |= int(bool(huge.to(dtype).float().isfinite().all())) << code
    return bits


class DeviceCode(NamedTuple):
    """What one GPU of this process needs: its index, description and compiled kernels by module."""

    device: int
    info: DeviceInfo
    images: dict[str, Path]


def compile_for_devices() -> list[DeviceCode]:
    """Compiles the kernels for every supported GPU of this process (or takes them from the cache).

    Raises:
        RuntimeError: if no GPU is supported, or the compiler is missing or fails.
    """
    codes = []
    for index in range(torch.cuda.device_count()):
        spec = arch.detect(torch.device("cuda", index))
        if spec is not None:
            properties: Any = torch.cuda.get_device_properties(index)
            info = device_info(spec, properties.multi_processor_count, _probe_casts(index))
            codes.append(DeviceCode(index, info, toolchain.compile_images(spec)))
    if not codes:
        found = arch.unsupported_reason("cuda:0") or "no GPU"
        raise RuntimeError(
            f"launcher: no supported GPU; got {found}, expected gfx942 or sm_90. Move the model to "
            "the CPU."
        )
    return codes


def install_device_code(library: Path, codes: list[DeviceCode]) -> None:
    """Gives a loaded library that holds the launcher's core its devices and their kernels.

    Raises:
        RuntimeError: if the GPU's driver is missing or does not start.
    """
    runtime = open_core(library)
    for index, info, images in codes:
        check(runtime, runtime.mi300_add_device(index, ctypes.byref(info)))
        for name, image in images.items():
            data = image.read_bytes()
            check(runtime, runtime.mi300_add_image(index, name.encode(), data, len(data)))
