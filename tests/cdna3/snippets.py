"""Run single instructions: assembly snippets between a prologue and an epilogue.

A snippet finds v0..v31 loaded with its inputs and s[16:23] with scalars; afterwards v0..v31 are the
outputs. One code object holds all snippets of a test file.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .assembly import assemble
from .device import Device, Schedule
from .program import Kernel, load_kernels

REGISTERS = 32
LANES = 64

_HEADER = '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n.amdhsa_code_object_version 5\n.text\n'
_PROLOGUE = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx4 s[4:7], s[0:1], 0x0
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_and_b32_e32 v40, 63, v0
  v_lshlrev_b32_e32 v40, 7, v40
  s_waitcnt lgkmcnt(0)
  s_load_dwordx8 s[16:23], s[8:9], 0x0
"""
_EPILOGUE = """
  s_nop 15
  s_mov_b64 exec, -1
  s_waitcnt vmcnt(0) lgkmcnt(0)
{stores}  s_endpgm
.L{name}_end:
.size {name}, .L{name}_end-{name}
.section .rodata,"a",@progbits
.p2align 6, 0x0
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size 1024
  .amdhsa_kernarg_size 24
  .amdhsa_user_sgpr_count 2
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 128
  .amdhsa_next_free_sgpr 32
  .amdhsa_accum_offset 64
  .amdhsa_float_denorm_mode_32 3
  .amdhsa_float_denorm_mode_16_64 3
.end_amdhsa_kernel
.text
"""
_METADATA = """  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 24
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 0
    .kernarg_segment_align: 8
    .wavefront_size: 64
    .sgpr_count: 32
    .vgpr_count: 128
    .max_flat_workgroup_size: 256
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}}
      - {{.offset: 16, .size: 8, .value_kind: global_buffer, .address_space: global}}
"""


def assemble_snippets(snippets: Mapping[str, str]) -> dict[str, Kernel]:
    """One kernel per snippet, by its name."""
    text, metadata = _HEADER, "\n.amdgpu_metadata\n---\namdhsa.kernels:\n"
    for name, body in snippets.items():
        loads = "".join(
            f"  global_load_dwordx4 v[{r}:{r + 3}], v40, s[4:5] offset:{4 * r}\n"
            for r in range(0, REGISTERS, 4)
        )
        stores = "".join(
            f"  global_store_dwordx4 v40, v[{r}:{r + 3}], s[6:7] offset:{4 * r}\n"
            for r in range(0, REGISTERS, 4)
        )
        text += _PROLOGUE.format(name=name) + loads + "  s_waitcnt vmcnt(0) lgkmcnt(0)\n"
        text += body + _EPILOGUE.format(name=name, stores=stores)
        metadata += _METADATA.format(name=name)
    metadata += "amdhsa.target: amdgcn-amd-amdhsa--gfx942\namdhsa.version: [1, 2]\n...\n"
    return load_kernels(assemble(text + metadata + ".end_amdgpu_metadata\n"))


def run_snippet(
    kernel: Kernel,
    registers: np.ndarray,
    scalars: np.ndarray | None = None,
    schedule: Schedule | None = None,
) -> np.ndarray:
    """Run one wave; `registers` is [lanes, up to 32] uint32, the result [64, 32] uint32."""
    values = np.zeros((LANES, REGISTERS), np.uint32)
    values[:, : registers.shape[1]] = registers
    scalar_values = np.zeros(8, np.uint32)
    if scalars is not None:
        scalar_values[: len(scalars)] = scalars
    device = Device()
    args = [device.input(values), device.output(values.nbytes), device.input(scalar_values)]
    device.launch(kernel, (1,), (LANES,), args, schedule=schedule)
    return args[1].array(np.uint32).reshape(LANES, REGISTERS).copy()
