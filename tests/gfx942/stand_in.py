"""Run operators through the launcher's core with the executor as the HIP driver.

    python -m tests.gfx942.stand_in path/to/libamdhip64.so

Started by test_launcher.py in a process of its own, because the core takes the driver that is
loaded. Raises if a result is wrong.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path

from mi300_inductor import plan, toolchain
from mi300_inductor.arch import GFX942
from mi300_inductor.gemm_plan import Form

from ..cdna3.device import Device
from ..cdna3.program import Kernel
from .cases import BF16, E4M3FN, F16, Case
from .gemm import GemmCall
from .gemm_cases import FP8, GemmCase, check_product
from .gemm_list import parts_of, prepare_list
from .modules import download, load_module
from .rows import CAST_SATURATES, RowCall, prepare
from .test_rows import check_rows

_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)
_GET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p
)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 3, ctypes.c_void_p)


class Driver:
    """The executor behind HIP's module calls: modules and functions are numbered."""

    def __init__(self, library: Path) -> None:
        """Load the stand-in library and give it this object's functions."""
        self.modules: list[str] = []
        self.functions: list[Kernel] = []
        self.device: Device | None = None
        self.launches = 0
        self.error: BaseException | None = None
        self._images = {
            path.read_bytes()[:4096] + path.read_bytes()[-4096:]: name
            for name, path in toolchain.compile_images(GFX942).items()
        }
        self._sizes = {
            name: p.stat().st_size for name, p in toolchain.compile_images(GFX942).items()
        }
        self._callbacks = (_LOAD(self.load), _GET(self.get), _RUN(self.run))
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL).stand_in(*self._callbacks)

    def load(self, module: ctypes._Pointer, image: int) -> int:
        """hipModuleLoadData: which of the product's code objects is it?"""
        for content, name in self._images.items():
            size = self._sizes[name]
            if ctypes.string_at(image, 4096) == content[:4096] and (
                ctypes.string_at(image + size - 4096, 4096) == content[-4096:]
            ):
                self.modules.append(name)
                module[0] = len(self.modules)
                return 0
        return 209  # hipErrorNoBinaryForGpu

    def get(self, function: ctypes._Pointer, module: int, name: bytes) -> int:
        """hipModuleGetFunction."""
        kernels = load_module(self.modules[module - 1])
        if name.decode() not in kernels:
            return 500  # hipErrorNotFound
        self.functions.append(kernels[name.decode()])
        function[0] = len(self.functions)
        return 0

    def run(self, function: int, grid: int, block: int, lds: int, arguments: int) -> int:
        """hipModuleLaunchKernel, with the kernel's one by-value argument."""
        kernel = self.functions[function - 1]
        size = kernel.code.kernels[kernel.name][".args"][0][".size"]
        assert self.device is not None
        try:
            segment = ctypes.string_at(arguments, size)
            self.device.launch(kernel, (grid,), (block,), [segment], dynamic_lds=lds)
        except Exception as error:  # noqa: BLE001  (a ctypes callback cannot raise)
            self.error = error
            return 719  # hipErrorLaunchFailure
        self.launches += 1
        return 0


def _launch_all(driver: Driver, device: Device, launches: Sequence[object]) -> None:
    driver.device = device
    core = plan.core()
    for launch in launches:
        what = plan.Launch(
            launch.module,
            launch.entry,
            launch.grid,
            launch.block,
            launch.cluster,
            launch.lds_bytes,
            False,
        )
        status = core.mi300_launch(0, ctypes.byref(what), ctypes.byref(launch.args), None)
        if driver.error is not None:
            raise driver.error
        plan.check(core, status)


def _run_rows(driver: Driver, case: Case) -> None:
    given = case.build()
    call: RowCall = prepare(case.op, given)
    _launch_all(driver, call.device, call.launches())
    check_rows(case, given, {name: download(*out) for name, out in call.outputs.items()})


def _run_gemm(driver: Driver, case: GemmCase) -> None:
    given = case.operands()
    call: GemmCall = case.prepare(given)
    planned = call.plan()
    partial = call.device.output(planned.workspace_bytes)
    launches = planned.launches
    for launch in launches:
        launch.args.partial = partial.address if planned.workspace_bytes else None
    _launch_all(driver, call.device, launches)
    check_product(case, given, download(call.out, call.out_dtype, call.shape))


def _run_list(driver: Driver, case: GemmCase, widths: Sequence[int]) -> None:
    parts = parts_of(case, widths)
    given = [part.operands() for part in parts]
    call = prepare_list(parts, given)
    _launch_all(driver, call.device, call.launches)
    for part, operands, got in zip(parts, given, call.outputs(), strict=True):
        check_product(part, operands, got)


def main(library: Path) -> int:
    """Install the code objects as the product does, and run one call of each kind."""
    driver = Driver(library)
    info = plan.device_info(GFX942, cast_saturates=CAST_SATURATES)
    images = toolchain.compile_images(GFX942)
    plan.install_device_code(plan.build_core(), [plan.DeviceCode(0, info, images)])
    for case in (
        Case("rms_norm", 3, 512),
        Case("add_rms_norm", 3, 77, F16),
        Case("rms_norm_quant", 3, 512, BF16, {"scale_count": 2}),
        Case("add_rms_norm_quant", 3, 4096, F16, {"q_dtype": E4M3FN, "return_y": True}),
        Case("rms_norm_quant_dynamic", 3, 512, BF16, {"group_size": 128}),
        Case("add_rms_norm_quant_dynamic", 5, 520, BF16, {"group_size": 0}),
        Case("silu_mul", 5, 1032),
        Case("silu_mul_quant", 5, 1032, F16),
        Case("silu_mul_quant_dynamic", 3, 512),
    ):
        _run_rows(driver, case)
    for form in (Form.DENSE, Form.SPARSE, Form.RING):
        _run_gemm(driver, GemmCase(8, 96, 2048, FP8, form))
    _run_gemm(driver, GemmCase(5, 70, 333, BF16, bias=True))
    for form in (Form.DENSE, Form.SPARSE, Form.RING):
        _run_list(driver, GemmCase(8, 0, 2048, FP8, form), (96, 70))
        _run_list(driver, GemmCase(3, 0, 2048, FP8, form, bias=True), (96, 16, 24))
    _run_list(driver, GemmCase(5, 0, 333, BF16), (40, 70, 24))
    print(f"launches made: {driver.launches}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
