"""What the card's driver makes of the row kernels: nothing is kept in local memory.

gfx942's resources stand in the code object; sm_90's registers are allotted by the driver, when it
compiles the PTX.
"""

import ctypes
import re

import pytest
import torch

from mi300_inductor import toolchain
from mi300_inductor.arch import SM90

LOCAL_BYTES = 3  # CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
ROW_SOURCES = [s for s in toolchain.sources(SM90) if not s.stem.startswith("skinny_gemm")]


@pytest.mark.parametrize("source", ROW_SOURCES, ids=lambda source: source.stem)
def test_no_row_kernel_spills(source):
    torch.zeros(1, device="cuda")  # makes a context current
    driver = ctypes.CDLL("libcuda.so.1")
    image = toolchain.compile_image(source, SM90).read_bytes() + b"\0"
    module, function, local = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int(-1)
    assert driver.cuModuleLoadData(ctypes.byref(module), image) == 0
    entries = re.findall(rb"\.entry (\w+)", image)
    assert entries
    for entry in entries:
        assert driver.cuModuleGetFunction(ctypes.byref(function), module, entry) == 0
        assert driver.cuFuncGetAttribute(ctypes.byref(local), LOCAL_BYTES, function) == 0
        assert local.value == 0, f"{entry.decode()} keeps {local.value} bytes in local memory"
    assert driver.cuModuleUnload(module) == 0
